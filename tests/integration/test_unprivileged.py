"""A member as in a container: no capabilities, no gain by exec, one writable folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.conftest import MakeTopic, fleets
from tests.integration.clients import produce, read_all
from tests.integration.conftest import PATIENT, FleetCommand

pytestmark = pytest.mark.size("test-all")

CONTAINERFILE = Path(__file__).parents[2] / "deploy" / "container" / "Containerfile"
READ_ONLY = """
mount --make-rprivate / && mount --bind "$0" "$0" && cd / || exit
while read -r _ _ _ _ at _; do
    [ "$at" = "$0" ] || mount -o remount,bind,ro "$at" || exit
done < /proc/self/mountinfo
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""
"""All mounts read-only except the folder, and no capabilities: for unshare, which grants them first."""
RECORDS = [b"%d" % number for number in range(200)]


@pytest.fixture
def confined(kafka: KafkaCluster, tmp_path: Path) -> Iterator[LocalFleet]:
    """A fleet of one member, restarted without rights."""
    with fleets(kafka, tmp_path) as make:
        fleet = make(1, timing=PATIENT)
        assert fleet.stop("p1") == 0
        data = fleet.settings.member("p1").data_dir
        fleet.through["p1"] = ("unshare", "-Urm", "bash", "-c", READ_ONLY, str(data))
        fleet.start("p1")
        fleet.await_settled(frozenset(kafka.brokers))
        yield fleet


def test_member_serves_without_rights_and_one_writable_folder(
    confined: LocalFleet, make_topic: MakeTopic, fleet_command: FleetCommand
) -> None:
    supervisor = psutil.Process(confined.pid("p1"))
    family = [supervisor, *supervisor.children(recursive=True)]
    assert len(family) >= 3
    for each in family:
        lines = Path(f"/proc/{each.pid}/status").read_text().splitlines()
        status = dict(line.split(":\t") for line in lines if ":\t" in line)
        assert {int(status[f"Cap{which}"], 16) for which in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
        assert status["NoNewPrivs"] == "1"
        mounts = [line.split() for line in Path(f"/proc/{each.pid}/mountinfo").read_text().splitlines()]
        # The last instruction of each kind hides the others.
        options = {mount[4]: mount[5].split(",") for mount in mounts}
        assert [at for at in options if "rw" in options[at]] == [str(confined.settings.member("p1").data_dir)]
    assert fleet_command(confined, "ready", "--node", "p1")["ready"]
    topic = make_topic()
    produce(confined.bootstrap(), topic, RECORDS)
    read = read_all(confined.bootstrap(), topic, len(RECORDS))
    assert sorted(each.value() for each in read) == sorted(RECORDS)
    data = confined.settings.member("p1").data_dir
    assert {each.stat().st_mode & 0o077 for each in (data, *data.rglob("*"))} == {0}
    assert confined.stop("p1") == 0
    log = confined.log("p1").read_text()
    assert not [each for each in ("Read-only file system", "Permission denied", "Traceback") if each in log]


def test_image_has_its_own_user_and_a_working_health_check() -> None:
    text = CONTAINERFILE.read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    last_stage = lines[max(at for at, line in enumerate(lines) if line[0] == "FROM") :]
    instructions = dict(last_stage)
    uid, gid = instructions["USER"].split(":")
    assert min(int(uid), int(gid)) >= 1000  # numeric, so that Kubernetes can check that it is not root
    assert f"--gid {gid} " in instructions["RUN"]
    assert f"--uid {uid} " in instructions["RUN"]
    assert (json.loads(instructions["ENTRYPOINT"]), json.loads(instructions["CMD"])) == (["fleet"], ["node"])
    assert json.loads(instructions["HEALTHCHECK"].partition(" CMD ")[2]) == ["fleet", "ready"]
