"""Full or read-only disks, and torn or damaged journals: the member reports them, serves on, and recovers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from fleet.admin import client
from fleet.core.model import BrokerId, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.spawn import end
from fleet.raft.journal import FIRST_FRAME, MARKER
from tests.chaos.conftest import PATIENT_TIMING
from tests.conftest import MakeTopic, fleets
from tests.integration import wire
from tests.integration.wire import ApiVersions, Connection

pytestmark = pytest.mark.size("test-all")

MOUNT = (
    'mount -t tmpfs -o size=512k,mode=700 tmpfs "$0" && cp -a "$1"/. "$0" && '
    'for lock in lock member/lock; do mount --bind "$1/$lock" "$0/$lock" || exit; done && exec "${@:2}"'
)
"""A file system of 512 KiB in a mount namespace of its own, for one member.

Locks are elsewhere: a file system with a file that is open for writing cannot be made read-only by hand.
"""

REFUSED_VOTES = 3
"""Number of requests for a vote that the member must refuse."""


@pytest.fixture
def own_fleet(kafka: KafkaCluster, tmp_path: Path) -> Iterator[LocalFleet]:
    with fleets(kafka, tmp_path) as make:
        yield make(timing=PATIENT_TIMING)


def serves(fleet: LocalFleet, proxy_id: str) -> bool:
    """Whether a broker answers through a member."""
    with Connection(fleet.bootstrap_endpoint(proxy_id)) as connection:
        return ApiVersions.parse(connection.ask(wire.request(wire.API_VERSIONS, 0, 1))).error_code == 0


def journal(fleet: LocalFleet, action: str, proxy_id: str) -> tuple[int, Any]:
    command = [sys.executable, "-m", "fleet", "journal", action, "--config", str(fleet.config)]
    done = subprocess.run([*command, "--node", proxy_id, "--json"], stdout=subprocess.PIPE, check=False)
    return done.returncode, json.loads(done.stdout)


def remount(pid: int, folder: Path, options: str) -> bool:
    """Remount a member's file system. Returns: whether it worked; not while a file is open for writing."""
    inside = ["nsenter", "-t", str(pid), "-U", "-m", "--preserve-credentials"]
    command = [*inside, "mount", "-o", f"remount,{options}", str(folder)]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def fill(path: Path) -> None:
    """Fill the rest of the file system with a file."""
    disk = os.statvfs(path.parent)
    with path.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize)


def log_has(fleet: LocalFleet, proxy_id: str, text: str, since: int = 0) -> bool:
    return text in fleet.log(proxy_id).read_text()[since:]


def raft_state(
    fleet: LocalFleet, proxy_id: ProxyId
) -> tuple[int, dict[BrokerId, tuple[ProxyId, ...]], dict[ProxyId, bool]]:
    """A member's Raft state: the generation, the owners, and the drained members."""
    document = fleet.ownership(proxy_id)
    owners = {each.broker_id: each.committed for each in document.identities}
    return document.generation, owners, {each.proxy_id: each.drained for each in document.members}


def owners(fleet: LocalFleet, proxy_id: ProxyId) -> set[ProxyId]:
    """The members that own identities, as one member reports them."""
    return {each.committed[0] for each in fleet.ownership(proxy_id).identities}


def check_reports_raft_error(fleet: LocalFleet, proxy_id: ProxyId, reason: str, since: int) -> None:
    """Check that a member reports why it does not take part in Raft, and that it is ready anyway."""
    assert reason in str(fleet.ownership(proxy_id).raft_error)
    assert reason in json.loads(fleet.get(proxy_id, "/healthz")[1])["raft"]
    assert b"fleet_raft_degraded 1.0" in fleet.get(proxy_id, "/metrics")[1]
    command = [sys.executable, "-m", "fleet", "status", "--config", str(fleet.config), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    errors = {each["proxy_id"]: each["raft_error"] for each in json.loads(done.stdout)["answers"]}
    assert [each for each in errors if errors[each]] == [proxy_id]
    assert reason in errors[proxy_id]
    text = fleet.log(proxy_id).read_text()[since:]
    assert any(
        "Raft is stopped until this error is resolved" in line and reason in line
        for line in text.splitlines()
    )
    assert fleet.is_ready(proxy_id)


def test_torn_journal_is_repaired_and_damaged_one_needs_a_reset(own_fleet: LocalFleet) -> None:
    victim = next(each for each in own_fleet.members if each != own_fleet.leader())
    path = own_fleet.settings.member(victim).private_dir / "raft" / "journal"
    check_torn_tail_repair(own_fleet, victim, path)

    own_fleet.kill(victim)
    data = bytearray(path.read_bytes())
    data[FIRST_FRAME + 20] ^= 0xFF
    path.write_bytes(data + data[FIRST_FRAME:])
    own_fleet.start(victim)
    own_fleet.wait_until(
        lambda: log_has(own_fleet, victim, "fleet journal reset"), "the log names the command"
    )

    # The workers continue with the directory in a file. No owner changed.
    own_fleet.wait_until(lambda: serves(own_fleet, victim), "served without control")
    code, found = journal(own_fleet, "check", victim)
    assert (code, found["running"]) == (1, True)
    code, refused = journal(own_fleet, "reset", victim)
    assert code == 1
    assert refused["error"]["kind"] == "start", "the member runs"
    own_fleet.stop(victim)
    code, repaired = journal(own_fleet, "repair", victim)
    assert (code, repaired["error"]["kind"]) == (1, "journal")

    code, done = journal(own_fleet, "reset", victim)
    assert code == 0
    since = len(own_fleet.log(victim).read_text())
    own_fleet.start(victim)
    own_fleet.await_ready(victim)
    own_fleet.wait_until(lambda: log_has(own_fleet, victim, "votes again", since), "caught up")
    own_fleet.wait_until(
        lambda: own_fleet.ownership(victim).raft_error is None, "the member reports no error"
    )
    assert {Path(str(each)).exists() for each in done["changed"]} == {True}
    # The member really votes: without one of the others, a commit needs its vote.
    other = next(each for each in own_fleet.members if each not in (victim, own_fleet.leader()))
    own_fleet.kill(other)
    commit(own_fleet, victim, other, True)


def check_torn_tail_repair(own_fleet: LocalFleet, victim: ProxyId, path: Path) -> None:
    """A torn write and a torn rewrite are repaired. Nothing else is lost, and the member votes again."""
    own_fleet.kill(victim)
    whole = path.read_bytes()
    torn = whole[whole.rindex(MARKER) : -3]
    path.write_bytes(whole + torn)
    torn_rewrite = path.with_name("journal.new")
    torn_rewrite.write_bytes(whole[: len(whole) // 2])
    other = next(each for each in own_fleet.members if each not in (victim, own_fleet.leader()))
    commit(own_fleet, other, other, True)  # entries that the member must catch up with

    code, found = journal(own_fleet, "check", victim)
    survey = found["survey"]
    assert (code, survey["verdict"], survey["torn_bytes"], survey["refusal"]) == (0, "torn", len(torn), "")
    assert "fleet journal repair" in found["advice"]
    code, repaired = journal(own_fleet, "repair", victim)
    assert (code, repaired["survey"]["verdict"]) == (0, "whole")
    assert set(repaired["changed"]) == {str(path), str(torn_rewrite)}
    assert path.read_bytes() == whole
    assert not torn_rewrite.exists()
    assert repaired["survey"]["last_index"] == survey["last_index"] > 0

    since = len(own_fleet.log(victim).read_text())
    own_fleet.start(victim)
    own_fleet.await_ready(victim)
    leader = own_fleet.leader()
    assert leader is not None
    own_fleet.wait_until(
        lambda: raft_state(own_fleet, victim) == raft_state(own_fleet, leader), "the same state as its peers"
    )
    assert raft_state(own_fleet, victim)[2][other] is True
    document = own_fleet.ownership(victim)
    assert (document.raft_error, document.quorum.present) == (None, True)
    assert not log_has(own_fleet, victim, "trimmed", since), "nothing was left for the start to fix"
    commit(own_fleet, other, other, False)


def test_full_or_read_only_disk_costs_the_vote_until_writable(
    own_fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    """The member has its own file system, which is first full and then read-only."""
    before, after = make_topic(), make_topic()
    victim = next(each for each in own_fleet.members if each != own_fleet.leader())
    own_fleet.stop(victim)
    folder = own_fleet.settings.member(victim).data_dir
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
    command = [sys.executable, "-m", "fleet", "node", "--config", str(own_fleet.config), "--node", victim]
    with own_fleet.log(victim).open("ab") as log:
        process = subprocess.Popen(
            ["unshare", "-Urm", "bash", "-c", MOUNT, str(folder), str(copy), *command], stderr=log, stdout=log
        )
    inside = Path(f"/proc/{process.pid}/root{folder}")
    try:
        own_fleet.wait_until(lambda: own_fleet.is_ready(victim), "back on a small file system")
        own_fleet.wait_until(lambda: own_fleet.ownership(victim).quorum.present, "a quorum at the member")
        other = next(each for each in own_fleet.members if each != victim)
        commits = iter(range(2000))

        def has_raft_error() -> bool:
            commit(own_fleet, other, other, next(commits) % 2 == 0)
            return own_fleet.ownership(victim).raft_error is not None

        fill(inside / "ballast")
        since = len(own_fleet.log(victim).read_text())
        own_fleet.wait_until(has_raft_error, "the disk is full")
        check_reports_raft_error(own_fleet, victim, "No space left on device", since)
        assert serves(own_fleet, victim)

        (inside / "ballast").unlink()
        own_fleet.wait_until(
            lambda: own_fleet.ownership(victim).raft_error is None, "the member takes part in Raft again"
        )
        own_fleet.wait_until(
            lambda: own_fleet.ownership(victim).commit_index >= own_fleet.ownership(other).commit_index,
            "caught up",
        )
        assert own_fleet.ownership(victim).quorum.present

        own_fleet.wait_until(lambda: victim in owners(own_fleet, victim), "an identity of the member")
        # Raft has closed its journal on the full disk. Only now can the disk be made read-only, or get space.
        fill(inside / "ballast")
        own_fleet.wait_until(has_raft_error, "the disk is full again")
        since = len(own_fleet.log(victim).read_text())
        own_fleet.wait_until(lambda: remount(process.pid, folder, "ro,size=2m"), "read-only")
        own_fleet.wait_until(
            lambda: log_has(own_fleet, victim, "Read-only file system", since), "another write attempt"
        )
        with pytest.raises(OSError, match="Read-only file system"):
            (inside / "raft" / "journal").open("r+b")
        disk = os.statvfs(inside)
        assert disk.f_bavail * disk.f_frsize > 1 << 20, "there is room"
        check_reports_raft_error(own_fleet, victim, "Read-only file system", since)
        check_record_passes(own_fleet, victim, kafka, before)
        third = next(each for each in own_fleet.members if each not in (victim, own_fleet.leader()))
        own_fleet.kill(third)
        last = next(each for each in own_fleet.members if each not in (victim, third))
        check_neither_acknowledges_nor_votes(own_fleet, last)
        check_record_passes(own_fleet, victim, kafka, after)

        assert remount(process.pid, folder, "rw")
        own_fleet.wait_until(
            lambda: own_fleet.ownership(victim).raft_error is None, "the member takes part in Raft again"
        )
        own_fleet.wait_until(lambda: own_fleet.ownership(last).quorum.present, "a quorum of two")
        commit(own_fleet, last, third, True)
        own_fleet.wait_until(
            lambda: raft_state(own_fleet, victim) == raft_state(own_fleet, last), "caught up"
        )
        assert raft_state(own_fleet, victim)[2][third] is True
    finally:
        end([process], patience_s=0.0)


def check_record_passes(fleet: LocalFleet, proxy_id: ProxyId, kafka: KafkaCluster, topic: str) -> None:
    """Produce a record with acks=all through a member's identity, and read it."""
    with Connection(fleet.bootstrap_endpoint(proxy_id)) as connection:
        brokers = wire.brokers_of(connection.ask(wire.metadata(1)))
    owned = {each: endpoint for each, endpoint in brokers.items() if fleet.owner_of(endpoint) == proxy_id}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    leaders = {each.id: each.leader for each in admin.list_topics(topic).topics[topic].partitions.values()}
    partition = next(each for each in leaders if leaders[each] in owned)
    with Connection(owned[leaders[partition]]) as connection:
        answer = connection.ask(wire.produce_record(1, topic, partition, wire.one_record()))
        proposer = 4 + 2 + len(topic) + 4 + 4  # ProduceResponse.json v7: one topic, one partition, its index
        assert struct.unpack_from(">h", answer, proposer) == (0,)
        assert b"value" in connection.ask(wire.fetch(2, topic, partition, 1000))


def check_neither_acknowledges_nor_votes(fleet: LocalFleet, last: ProxyId) -> None:
    """Check that the last other member no longer leads, and does not win an election."""
    fleet.wait_until(lambda: not fleet.ownership(last).quorum.present, "the loss of the quorum")
    since = fleet.ownership(last)

    def was_candidate() -> bool:
        now = fleet.ownership(last)
        assert not now.quorum.present
        return now.term >= since.term + REFUSED_VOTES

    fleet.wait_until(was_candidate, "a candidacy of the member")
    assert fleet.ownership(last).commit_index == since.commit_index


def commit(fleet: LocalFleet, proposer: ProxyId, proxy_id: ProxyId, drained: bool) -> None:
    """Let one member drain or undrain another. Every member writes this to its journal."""
    asyncio.run(client.drain([client.admin_urls(fleet.settings)[proposer]], proxy_id, drained))
