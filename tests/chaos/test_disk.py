"""Disks that are full and journals that are damaged: the member says so, serves on, and comes back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet
from fleet.demo.spawn import end
from fleet.raft.journal import FIRST_FRAME
from tests.chaos.conftest import PATIENT
from tests.conftest import fleets
from tests.integration import wire
from tests.integration.wire import ApiVersions, Connection

MOUNT = 'mount -t tmpfs -o size=512k tmpfs "$0" && cp -r "$1"/. "$0" && exec "${@:2}"'
"""A file system of 512 KiB in a mount namespace of its own, for one member."""


@pytest.fixture
def own(kafka: KafkaCluster, tmp_path: Path) -> Iterator[LocalFleet]:
    with fleets(kafka, tmp_path) as make:
        yield make(timing=PATIENT)


def serves(fleet: LocalFleet, proxy_id: str) -> bool:
    """Whether a broker answers through a member."""
    with Connection(fleet.bootstrap_endpoint(proxy_id)) as connection:
        return ApiVersions.parse(connection.ask(wire.request(wire.API_VERSIONS, 0, 1))).error_code == 0


def journal(fleet: LocalFleet, action: str, proxy_id: str) -> tuple[int, dict[str, object]]:
    command = [sys.executable, "-m", "fleet", "journal", action, "--config", str(fleet.config)]
    done = subprocess.run([*command, "--node", proxy_id, "--json"], stdout=subprocess.PIPE, check=False)
    return done.returncode, json.loads(done.stdout)


def fill(path: Path) -> None:
    """Make a file as large as what is left of the file system."""
    disk = os.statvfs(path.parent)
    with path.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize)


def said(fleet: LocalFleet, proxy_id: str, what: str, since: int = 0) -> bool:
    return what in fleet.log(proxy_id).read_text()[since:]


def test_a_damaged_journal_costs_the_vote_and_a_reset_brings_it_back(own: LocalFleet) -> None:
    victim = next(each for each in own.members if each != own.leader())
    own.kill(victim)
    path = own.settings.member(victim).data_dir / "raft" / "journal"
    data = bytearray(path.read_bytes())
    data[FIRST_FRAME + 20] ^= 0xFF
    path.write_bytes(data + data[FIRST_FRAME:])
    own.start(victim)
    own.wait_until(lambda: said(own, victim, "fleet journal reset"), "the log names the command")

    # The workers go on with the directory that is in a file; nothing was changed.
    own.wait_until(lambda: serves(own, victim), "served without control")
    code, found = journal(own, "check", victim)
    assert (code, found["running"]) == (1, True)
    code, refused = journal(own, "reset", victim)
    assert code == 1
    assert refused["error"]["kind"] == "start", "it runs"  # type: ignore[index]
    own.stop(victim)
    code, repaired = journal(own, "repair", victim)
    assert (code, repaired["error"]["kind"]) == (1, "journal")  # type: ignore[index]

    code, done = journal(own, "reset", victim)
    assert code == 0
    since = len(own.log(victim).read_text())
    own.start(victim)
    own.await_ready(victim)
    own.wait_until(lambda: said(own, victim, "votes again", since), "caught up")
    own.wait_until(lambda: own.ownership(victim).raft_trouble is None, "it says so")
    assert {Path(str(each)).exists() for each in done["changed"]} == {True}  # type: ignore[attr-defined]
    # It is a voter in earnest: with one of the others gone there is a quorum because of it.
    other = next(each for each in own.members if each not in (victim, own.leader()))
    own.kill(other)
    own.wait_until(lambda: own.ownership(victim).quorum.present, "a quorum of two")


def test_a_full_disk_costs_the_vote_until_there_is_room_again(own: LocalFleet) -> None:
    """On a file system of its own, which really is full."""
    victim = next(each for each in own.members if each != own.leader())
    own.stop(victim)
    folder = own.settings.member(victim).data_dir
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.sock"))
    command = [sys.executable, "-m", "fleet", "node", "--config", str(own.config), "--node", victim]
    with own.log(victim).open("ab") as log:
        process = subprocess.Popen(
            ["unshare", "-Urm", "bash", "-c", MOUNT, str(folder), str(copy), *command], stderr=log, stdout=log
        )
    inside = Path(f"/proc/{process.pid}/root{folder}")
    try:
        own.wait_until(lambda: own.is_ready(victim), "back on a small file system")
        own.wait_until(lambda: own.ownership(victim).quorum.present, "it has a quorum")
        fill(inside / "ballast")
        since = len(own.log(victim).read_text())
        other = next(each for each in own.members if each != victim)
        commits = iter(range(2000))

        def trouble() -> bool:
            _commit(own, other, next(commits) % 2 == 0)
            return own.ownership(victim).raft_trouble is not None

        own.wait_until(trouble, "the disk is full")
        assert "No space left on device" in str(own.ownership(victim).raft_trouble)
        assert "No space left on device" in json.loads(own.get(victim, "/healthz")[1])["raft"]
        assert said(own, victim, "takes no part until this is gone", since)
        assert serves(own, victim)
        assert own.is_ready(victim)

        (inside / "ballast").unlink()
        own.wait_until(lambda: own.ownership(victim).raft_trouble is None, "it takes part again")
        own.wait_until(
            lambda: own.ownership(victim).commit_index >= own.ownership(other).commit_index, "caught up"
        )
        assert own.ownership(victim).quorum.present
    finally:
        end([process], patience_s=10.0)


def _commit(fleet: LocalFleet, proxy_id: str, drained: bool) -> None:
    """Have a member drained or undrained, which every member notes in its journal."""
    action = "drain" if drained else "undrain"
    command = [sys.executable, "-m", "fleet", action, proxy_id, "--config", str(fleet.config), "--json"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
