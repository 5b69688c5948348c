"""kcat behind the fleet: the typical uses of scripts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.integration.clients import LIMIT_S, read_all
from tools.bootstrap import KCAT

pytestmark = pytest.mark.size("test-all")

MakeTopic = Callable[..., str]


def kcat(fleet: LocalFleet, *arguments: str, stdin: str = "") -> str:
    """Run kcat, which must succeed. Returns: its output."""
    done = subprocess.run(
        [KCAT, "-b", fleet.bootstrap(), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.proves("kcat", "administration", "addresses")
def test_kcat_lists_only_fleet_addresses(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    for proxy_id in fleet.members:
        listed = json.loads(kcat(fleet, "-b", fleet.bootstrap([proxy_id]), "-L", "-J"))
        names = {each["id"]: each["name"].rpartition(":") for each in listed["brokers"]}
        assert names.keys() == kafka.brokers.keys()
        found = {broker_id: Endpoint(host, int(port)) for broker_id, (host, _, port) in names.items()}
        owned = {each.broker_id: each.committed for each in fleet.ownership(proxy_id).identities}
        assert {each: (fleet.owner_of(endpoint),) for each, endpoint in found.items()} == owned
        assert topic in {each["topic"] for each in listed["topics"]}


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(False, marks=pytest.mark.proves("kcat", "produce", "consume")),
        pytest.param(True, marks=pytest.mark.proves("kcat", "produce", "classic group")),
    ],
)
def test_kcat_consumes_what_it_produces(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic, group: bool
) -> None:
    topic, lines = make_topic(), [f"line {number}" for number in range(300)]
    kcat(fleet, "-P", "-t", topic, "-X", "enable.idempotence=true", stdin="\n".join(lines))
    log = read_all(kafka.bootstrap_servers, topic, len(lines))
    assert sorted((each.value() or b"").decode() for each in log) == sorted(lines)
    if group:
        arguments = ("-X", "auto.offset.reset=earliest", "-G", topic, "-c", str(len(lines)), topic)
        assert sorted(kcat(fleet, *arguments).splitlines()) == sorted(lines)
    else:
        assert sorted(kcat(fleet, "-C", "-t", topic, "-e", "-q").splitlines()) == sorted(lines)
