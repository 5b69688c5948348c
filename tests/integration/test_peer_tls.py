"""A fleet whose links use mutual TLS: it forms, commits, takes over, rotates, and rejects strangers."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import CERTIFICATE_DAYS, LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.spawn import end, spawn_module
from fleet.tls import issuing
from tests.conftest import MakeFleet
from tests.integration.metrics import expiries

pytestmark = pytest.mark.size("test-all")


def is_in(text: str, file: Path) -> bool:
    return file.exists() and text in file.read_text()


def linked(fleet: LocalFleet, proxy_id: ProxyId) -> set[ProxyId]:
    """The members that one member has a link to, including itself."""
    return {each.proxy_id for each in fleet.ownership(proxy_id).members if each.connected}


def test_tls_fleet_takes_over_rotates_and_keeps_strangers_out(
    kafka: KafkaCluster, make_fleet: MakeFleet, tmp_path: Path
) -> None:
    fleet, brokers = make_fleet(peer_tls=True), frozenset(kafka.brokers)
    assert all(linked(fleet, each) == set(fleet.members) for each in fleet.members)
    before_s = expiries(fleet, "p1")["peer_tls.certificate"]
    leader = fleet.leader()
    assert leader is not None
    survivors = [each for each in fleet.members if each != leader]
    generation = fleet.ownership(survivors[0]).generation

    fleet.kill(leader)
    fleet.await_settled(brokers, survivors)
    assert fleet.ownership(survivors[0]).generation > generation

    # A process with the same configuration and data, but another authority, gets no link.
    rogue = tmp_path / "rogue"
    issuing.make("demo", fleet.members, rogue / "certs", CERTIFICATE_DAYS, datetime.now(UTC))
    shutil.copy(fleet.config, rogue)
    command = ("node", "--config", str(rogue / fleet.config.name), "--node", leader)
    process = spawn_module("fleet", *command, log=rogue / "log")
    try:
        for log in (rogue / "log", *map(fleet.log, survivors)):
            fleet.wait_until(partial(is_in, "no link: ", log), f"a refusal in {log}")
        assert linked(fleet, leader) == {leader}
        assert all(linked(fleet, each) == set(survivors) for each in survivors)
    finally:
        end([process], patience_s=0.0)
    fleet.start(leader)
    fleet.await_settled(brokers, fleet.members)

    # New certificates for all, and a takeover over links that use them.
    issuing.renew("demo", fleet.members, fleet.certificates, 2 * CERTIFICATE_DAYS, datetime.now(UTC))
    assert expiries(fleet, "p1")["peer_tls.certificate"] > before_s + 86_400
    fleet.kill(survivors[0])
    rest = [each for each in fleet.members if each != survivors[0]]
    fleet.await_settled(brokers, rest)
    fleet.start(survivors[0])
    fleet.await_settled(brokers, fleet.members)
