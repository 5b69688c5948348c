"""What docs/upgrades.md says of members that come and go for good, and of copies of their data."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet
from fleet.model import BrokerId, MemberStatus, ProxyId
from tests.conftest import IMPATIENT, MakeFleet
from tests.integration.clients import produce, read_all
from tests.integration.conftest import PATIENT, FleetCommand

OLD = ("p1", "p2", "p3")
NEW = "p4"
SETTLED_LIMIT_S = 120.0
"""A member that goes and comes several times is taken back later each time."""


@pytest.fixture
def grown(kafka: KafkaCluster, tmp_path: Path) -> Iterator[LocalFleet]:
    """A file with four members, of which three run with the file of before."""
    fleet = LocalFleet(tmp_path / "fleet", kafka.endpoints, 4, timing={**IMPATIENT, **PATIENT})
    for proxy_id in OLD:
        without(fleet, proxy_id, NEW)
    try:
        fleet.start(*OLD)
        fleet.await_ready()
        fleet.await_settled(frozenset(kafka.brokers), OLD)
        yield fleet
    finally:
        fleet.close()
        fleet.remove_data()


def without(fleet: LocalFleet, proxy_id: ProxyId, gone: ProxyId) -> None:
    """Give a member a file that another one is not in, from its next start on."""
    document: dict[str, Any] = yaml.safe_load(fleet.config.read_text())
    del document["members"][gone]
    fleet._configure(proxy_id, document)


def restart(fleet: LocalFleet, proxy_id: ProxyId, kafka: KafkaCluster, among: tuple[ProxyId, ...]) -> None:
    assert fleet.stop(proxy_id) == 0
    fleet.start(proxy_id)
    fleet.await_ready(proxy_id)
    fleet.await_settled(frozenset(kafka.brokers), among, SETTLED_LIMIT_S)


def known(fleet: LocalFleet, proxy_id: ProxyId) -> dict[ProxyId, str]:
    return {each.proxy_id: each.state for each in fleet.ownership(proxy_id).members}


def committed(fleet: LocalFleet, proxy_id: ProxyId, about: ProxyId) -> MemberStatus | None:
    return next(each.status for each in fleet.ownership(proxy_id).members if each.proxy_id == about)


def owners(fleet: LocalFleet, proxy_id: ProxyId) -> dict[BrokerId, tuple[ProxyId, ...]]:
    return {each.broker_id: each.committed for each in fleet.ownership(proxy_id).identities}


def test_a_member_is_added_and_taken_away_again(
    grown: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str], fleet_command: FleetCommand
) -> None:
    topic, values = make_topic(partitions=6), [b"%02d" % number for number in range(60)]
    for proxy_id in OLD:
        grown._own_config.pop(proxy_id)
        restart(grown, proxy_id, kafka, OLD)
    grown.start(NEW)
    grown.await_ready(NEW)
    grown.wait_until(lambda: committed(grown, "p1", NEW) is MemberStatus.UP, "it is taken in")
    assert known(grown, "p1") == dict.fromkeys((*OLD, NEW), "up")
    produce(grown.bootstrap([NEW]), topic, values)
    # Three brokers are enough for three members: the fourth stands for one of them where another must not.
    fleet_command(grown, "drain", "p1")
    grown.await_settled(frozenset(kafka.brokers), ("p2", "p3", NEW))
    fleet_command(grown, "undrain", "p1")

    fleet_command(grown, "drain", NEW)
    grown.await_settled(frozenset(kafka.brokers), OLD)
    assert grown.stop(NEW) == 0
    # As long as the others have it in their files: who is not in them is not found dead any more.
    grown.wait_until(lambda: committed(grown, "p1", NEW) is MemberStatus.DOWN, "it is known to be down")
    for proxy_id in OLD:
        without(grown, proxy_id, NEW)
        restart(grown, proxy_id, kafka, OLD)
    for proxy_id in OLD:
        assert known(grown, proxy_id) == dict.fromkeys(OLD, "up")
        assert NEW not in {owner for each in owners(grown, proxy_id).values() for owner in each}
    seen = read_all(grown.bootstrap(OLD), topic, len(values), partitions=6)
    assert sorted(each.value() for each in seen) == values


def test_a_voter_on_a_new_machine_votes_again(
    make_fleet: MakeFleet, kafka: KafkaCluster, fleet_command: FleetCommand
) -> None:
    fleet = make_fleet(3, timing=PATIENT)
    victim = next(each for each in fleet.members if each != fleet.leader())
    fleet.kill(victim)
    shutil.rmtree(fleet.settings.member(victim).data_dir)
    fleet_command(fleet, "journal", "reset", "--node", victim)
    fleet.start(victim)
    fleet.await_ready(victim)
    fleet.await_settled(frozenset(kafka.brokers))
    fleet.wait_until(lambda: fleet.ownership(victim).raft_trouble is None, "it votes again")
    fleet.kill(next(each for each in fleet.members if each not in (victim, fleet.leader())))
    fleet.wait_until(lambda: fleet.ownership(victim).quorum.present, "a quorum of two")


def test_copies_of_all_data_bring_back_what_was_known_when_they_were_made(
    make_fleet: MakeFleet, kafka: KafkaCluster, fleet_command: FleetCommand, tmp_path: Path
) -> None:
    fleet = make_fleet(3, timing=PATIENT)
    fleet_command(fleet, "drain", "p3")
    fleet.await_settled(frozenset(kafka.brokers), ("p1", "p2"))
    fleet.kill(*fleet.members)
    shutil.copytree(fleet.data, tmp_path / "backup", ignore=shutil.ignore_patterns("*.sock"))

    fleet.start()
    fleet.await_ready()
    fleet_command(fleet, "undrain", "p3")
    fleet.await_settled(frozenset(kafka.brokers))
    assert known(fleet, "p1")["p3"] == "up"
    fleet.kill(*fleet.members)

    shutil.rmtree(fleet.data)
    shutil.copytree(tmp_path / "backup", fleet.data)
    fleet.start()
    fleet.await_ready()
    fleet.await_settled(frozenset(kafka.brokers), ("p1", "p2"))
    for proxy_id in fleet.members:
        assert {each.proxy_id: each.drained for each in fleet.ownership(proxy_id).members} == {
            "p1": False,
            "p2": False,
            "p3": True,
        }
