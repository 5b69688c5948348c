"""`fleet doctor` finds the problems of real fleets: missing members, and addresses that lead elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.core.model import IdentitySpace
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.nat import advertise_elsewhere
from tests.conftest import IMPATIENT
from tests.integration.clients import LIMIT_S
from tests.integration.conftest import PATIENT
from tests.integration.relay import Relays
from tools.bootstrap import ROOT

pytestmark = pytest.mark.size("test-all")

LEAKY_HOST = "127.188.121.121"


def doctor(fleet: LocalFleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fleet", "doctor", "--config", str(fleet.config), *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def findings(fleet: LocalFleet) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the findings."""
    done = doctor(fleet, "--json")
    document = json.loads(done.stdout)
    assert document["ok"] is (done.returncode == 0)
    return done.returncode, [each for each in document["findings"] if each["verdict"] != "ok"]


def test_doctor_on_a_healthy_fleet_reaches_every_broker(fleet: LocalFleet, kafka: KafkaCluster) -> None:
    code, found = findings(fleet)
    assert code == 0
    assert {(each["check"], each["subject"], each["verdict"]) for each in found} == {
        ("brokers", f"broker {broker_id}", "warning") for broker_id in kafka.brokers
    }
    output = doctor(fleet).stdout
    assert "addresses    all: 12 advertised addresses lead to a member" in output  # 3 x (1 + 3)
    assert "leaks        all: Metadata of 3 bootstrap addresses names only members" in output
    assert "allow only members to connect to the brokers" in output


@pytest.mark.timeout(300)
def test_doctor_finds_dead_members_and_addresses_of_brokers(
    kafka: KafkaCluster, relays: Relays, tmp_path: Path
) -> None:
    leaky = LocalFleet(
        tmp_path,
        kafka.endpoints,
        identities=IdentitySpace(first_id=1, count=4),
        timing={**IMPATIENT, **PATIENT},
    )
    leads_to = advertise_elsewhere(leaky, LEAKY_HOST)
    first = leaky.bootstrap_endpoint("p1")
    for advertised, bound in leads_to.items():
        # Like a load balancer with swapped entries: brokers also answer the probes of members.
        relays.forward(advertised, kafka.endpoints[0] if advertised == first else bound)
    with leaky:
        leaky.await_settled(frozenset(kafka.brokers))
        code, found = findings(leaky)
        assert code == 1
        leaks = [each for each in found if each["check"] == "leaks"]
        assert {each["subject"] for each in leaks} == {f"p1 external bootstrap at {first}"}
        assert {f"clients get {each}" for each in kafka.endpoints} == {
            each["detail"].partition(" for ")[0] for each in leaks
        }
        leaky.kill("p2")
        leaky.wait_until(lambda: leaky.is_settled(frozenset(kafka.brokers), ("p1", "p3")), "p2 is bypassed")
        code, found = findings(leaky)
        assert code == 1
        failed = [each for each in found if each["verdict"] == "failed"]
        assert [each["subject"] for each in failed if each["check"] == "members"] == ["p2"]
        leaky.kill("p1", "p3")
        without_voters = doctor(leaky, "--json")
    assert (without_voters.returncode, json.loads(without_voters.stdout)["error"]["kind"]) == (
        3,
        "unreachable",
    )
