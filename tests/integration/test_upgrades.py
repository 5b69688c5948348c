"""The statements of docs/upgrades.md on members that join or leave permanently, and on copies of their
data."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.admin.documents import MemberDocument
from fleet.core.model import MemberStatus, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.conftest import IMPATIENT, MakeFleet, fleets
from tests.integration.clients import LIMIT_S, produce, read_all
from tests.integration.conftest import PATIENT, FleetCommand

OLD_RELEASE = ("p1", "p2", "p3")
NEW_RELEASE = "p4"
SETTLE_TIMEOUT_S = 120.0
"""A member that stops and starts several times is taken back later each time."""

pytestmark = [pytest.mark.size("test-all"), pytest.mark.timeout(600)]


@pytest.fixture
def grown(kafka: KafkaCluster, tmp_path: Path) -> Iterator[LocalFleet]:
    """A file with four members, of which three still run with the former file."""
    fleet = LocalFleet(tmp_path / "fleet", kafka.endpoints, 4, timing={**IMPATIENT, **PATIENT})
    for proxy_id in OLD_RELEASE:
        without(fleet, proxy_id, NEW_RELEASE)
    try:
        fleet.start(*OLD_RELEASE)
        fleet.await_ready()
        fleet.await_settled(frozenset(kafka.brokers), OLD_RELEASE)
        yield fleet
    finally:
        fleet.close()
        fleet.remove_data()


@pytest.fixture(scope="module")
def _four(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    with fleets(kafka, tmp_path_factory.mktemp("four")) as make:
        yield make(4, timing=PATIENT)


@pytest.fixture
def four(_four: LocalFleet) -> LocalFleet:
    """Three voters and an observer, all running and ready: one fleet for several tests."""
    removed = [each for each in _four.members if each not in _four.running]
    if removed:
        _four.start(*removed)
    _four.await_ready()
    return _four


def without(fleet: LocalFleet, proxy_id: ProxyId, removed: ProxyId) -> None:
    """Give a member a file without another member, from its next start on."""
    document: dict[str, Any] = yaml.safe_load(fleet.config.read_text())
    del document["members"][removed]
    fleet.configure(proxy_id, document)


def restart(fleet: LocalFleet, proxy_id: ProxyId, kafka: KafkaCluster, among: tuple[ProxyId, ...]) -> None:
    assert fleet.stop(proxy_id) == 0
    fleet.start(proxy_id)
    fleet.await_ready(proxy_id)
    fleet.await_settled(frozenset(kafka.brokers), among, SETTLE_TIMEOUT_S)


def known(fleet: LocalFleet, proxy_id: ProxyId) -> Mapping[ProxyId, MemberDocument]:
    """All members as one of them reports them; none if it does not answer in time."""
    document = fleet.try_ownership(proxy_id)
    return {} if document is None else {each.proxy_id: each for each in document.members}


def committed(fleet: LocalFleet, proxy_id: ProxyId, about: ProxyId) -> MemberStatus | None:
    member = known(fleet, proxy_id).get(about)
    return None if member is None else member.status


def all_are_up(fleet: LocalFleet, proxy_id: ProxyId, among: tuple[ProxyId, ...]) -> bool:
    """Whether one member knows exactly these members, and suspects none."""
    states = {name: each.condition for name, each in known(fleet, proxy_id).items()}
    return states == dict.fromkeys(among, "up")


def owners(fleet: LocalFleet, proxy_id: ProxyId) -> set[ProxyId]:
    document = fleet.ownership(proxy_id, LIMIT_S)
    return {owner for each in document.identities for owner in each.committed}


def test_member_is_added_and_removed(
    grown: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str], fleet_command: FleetCommand
) -> None:
    topic, values = make_topic(partitions=6), [b"%02d" % number for number in range(60)]
    for proxy_id in OLD_RELEASE:
        grown.own_config.pop(proxy_id)
        restart(grown, proxy_id, kafka, OLD_RELEASE)
    grown.start(NEW_RELEASE)
    grown.await_ready(NEW_RELEASE)
    grown.wait_until(lambda: committed(grown, "p1", NEW_RELEASE) is MemberStatus.UP, "the member is taken in")
    grown.wait_until(lambda: all_are_up(grown, "p1", (*OLD_RELEASE, NEW_RELEASE)), "four are up")
    produce(grown.bootstrap([NEW_RELEASE]), topic, values)
    # Three brokers are enough for three members: the fourth replaces one of them.
    fleet_command(grown, "drain", "p1")
    grown.await_settled(frozenset(kafka.brokers), ("p2", "p3", NEW_RELEASE))
    fleet_command(grown, "undrain", "p1")

    fleet_command(grown, "drain", NEW_RELEASE)
    grown.await_settled(frozenset(kafka.brokers), OLD_RELEASE)
    assert grown.stop(NEW_RELEASE) == 0
    # The others need the member in their files: members do not monitor a member that is not in their file.
    grown.wait_until(
        lambda: committed(grown, "p1", NEW_RELEASE) is MemberStatus.DOWN, "it is known to be down"
    )
    for proxy_id in OLD_RELEASE:
        without(grown, proxy_id, NEW_RELEASE)
        restart(grown, proxy_id, kafka, OLD_RELEASE)
    for proxy_id in OLD_RELEASE:
        grown.wait_until(
            partial(all_are_up, grown, proxy_id, OLD_RELEASE), f"{proxy_id} knows three, which are up"
        )
        assert NEW_RELEASE not in owners(grown, proxy_id)
    received = read_all(grown.bootstrap(OLD_RELEASE), topic, len(values), partitions=6)
    assert sorted(each.value() for each in received) == values


def test_a_voter_on_a_new_machine_votes_again(four: LocalFleet, fleet_command: FleetCommand) -> None:
    followers = [each for each in four.ownership("p1", LIMIT_S).quorum.voters if each != four.leader()]
    victim, other = followers[:2]
    four.kill(victim)
    shutil.rmtree(four.settings.member(victim).data_dir)
    fleet_command(four, "journal", "reset", "--node", victim)
    four.start(victim)
    four.await_ready(victim)
    four.wait_until(lambda: takes_part(four, victim), "the member votes again")
    four.kill(other)
    # The leader has one voter left, so this voter makes a majority of the two.
    for verb in ("drain", "undrain"):
        fleet_command(four, verb, victim)


@pytest.mark.parametrize("how", ["emptied", "restored"])
def test_voter_that_has_forgotten_votes_once_it_has_caught_up(
    four: LocalFleet, fleet_command: FleetCommand, tmp_path: Path, how: str
) -> None:
    """Without a reset, and without a sign in its files: the other voters remember more."""
    followers = [each for each in four.ownership("p1", LIMIT_S).quorum.voters if each != four.leader()]
    victim, other = followers[:2]
    survivor = str(four.leader())
    data_dir = four.settings.member(victim).data_dir
    four.kill(victim)
    shutil.copytree(data_dir, tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock"))
    four.start(victim)
    four.await_ready(victim)
    for verb in ("drain", "undrain"):
        fleet_command(four, verb, victim)
    four.wait_until(lambda: len(commit_indices(four)) == 1, "all members have applied the log")

    four.kill(victim, other)
    shutil.rmtree(data_dir)
    if how == "restored":
        shutil.copytree(tmp_path / "copy", data_dir)
    four.start(victim)
    four.wait_until(
        partial(distrusts, four, survivor, victim), "the other voters know that the journal was replaced"
    )
    four.wait_until(lambda: forgets(four, victim), "the member reports that it does not vote")
    assert not four.ownership(survivor, LIMIT_S).quorum.present
    four.start(other)
    four.await_ready()
    four.wait_until(lambda: all(takes_part(four, each) for each in OLD_RELEASE), "the member votes again")
    four.wait_until(lambda: not distrusts(four, survivor, victim), "and its votes count")


def distrusts(fleet: LocalFleet, proxy_id: ProxyId, voter: ProxyId) -> bool:
    document = fleet.try_ownership(proxy_id)
    return document is not None and voter in document.distrusted_voters


def forgets(fleet: LocalFleet, proxy_id: ProxyId) -> bool:
    document = fleet.try_ownership(proxy_id)
    return document is not None and "forgotten promises" in str(document.raft_error)


def takes_part(fleet: LocalFleet, proxy_id: ProxyId) -> bool:
    document = fleet.try_ownership(proxy_id)
    return document is not None and document.quorum.present and document.raft_error is None


def test_other_voters_commit_after_a_stop_of_the_whole_fleet(
    four: LocalFleet, fleet_command: FleetCommand
) -> None:
    four.wait_until(lambda: len(commit_indices(four)) == 1, "all members have applied the log")
    with ThreadPoolExecutor() as pool:
        assert set(pool.map(four.stop, four.members)) == {0}
    document: dict[str, Any] = yaml.safe_load(four.config.read_text())
    document["members"]["p1"]["voter"] = False
    document["members"][NEW_RELEASE]["voter"] = True
    four.config.write_text(yaml.safe_dump(document, sort_keys=False))
    four.start()
    four.await_ready()
    for proxy_id in four.members:
        assert four.ownership(proxy_id, LIMIT_S).quorum.voters == ("p2", "p3", NEW_RELEASE)
    four.wait_until(lambda: all(takes_part(four, each) for each in four.members), "a leader of the new ones")
    four.kill("p2")
    # The voters p3 and the new one remain: without its vote nothing is committed.
    for verb in ("drain", "undrain"):
        fleet_command(four, verb, "p3")
    assert four.ownership("p1", LIMIT_S).role == "observer"


def test_members_whose_files_name_other_voters_get_no_link(grown: LocalFleet) -> None:
    """Each half would take itself for a majority: p1 and p2 by their file, p3 and p4 by theirs."""
    document: dict[str, Any] = yaml.safe_load(grown.config.read_text())
    document["members"]["p2"]["voter"] = False
    document["members"][NEW_RELEASE]["voter"] = True
    for proxy_id in OLD_RELEASE:
        grown.own_config.pop(proxy_id)
    grown.configure("p3", document)
    assert grown.stop("p3") == 0
    grown.start("p3")
    for proxy_id in ("p1", "p2"):
        grown.wait_until(partial(refuses, grown, proxy_id, "p3"), f"{proxy_id} logs why it refuses p3")
        assert not known(grown, proxy_id)["p3"].connected
    grown.wait_until(lambda: takes_part(grown, "p1"), "the other two continue")
    assert not grown.ownership("p3", LIMIT_S).quorum.present


def refuses(fleet: LocalFleet, proxy_id: ProxyId, peer: ProxyId) -> bool:
    return f"{peer!r} counts other voters than this member" in fleet.log(proxy_id).read_text()


def commit_indices(fleet: LocalFleet) -> set[int | None]:
    """The indices of all members; None for a member that does not answer in time."""
    documents = map(fleet.try_ownership, fleet.members)
    return {None if document is None else document.commit_index for document in documents}


def test_copies_of_all_data_restore_the_fleet(
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
    fleet.wait_until(lambda: all_are_up(fleet, "p1", OLD_RELEASE), "p3 is a voter again")
    fleet.kill(*fleet.members)

    shutil.rmtree(fleet.data)
    shutil.copytree(tmp_path / "backup", fleet.data)
    fleet.start()
    fleet.await_ready()
    fleet.await_settled(frozenset(kafka.brokers), ("p1", "p2"))
    for proxy_id in fleet.members:
        assert {each.proxy_id: each.drained for each in fleet.ownership(proxy_id, LIMIT_S).members} == {
            "p1": False,
            "p2": False,
            "p3": True,
        }
