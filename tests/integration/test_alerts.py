"""Causes of alerts in a real fleet under a real Prometheus, and events that raise no alert.

`for` is shorter here (see `HURRY`); expressions and windows are those that operators load. The same
Prometheus is asked what the dashboard asks.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from typing import Final

import pytest
import yaml

from fleet.core.model import BrokerId, IdentitySpace, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.harness import is_fully_linked
from tests.chaos.network import PeerNetwork, network
from tests.conftest import IMPATIENT, MakeTopic, restore_fleet
from tests.dashboards import dashboard, queries, with_variables_replaced
from tests.integration.clients import LIMIT_S, Load, Reader, wait_for
from tests.integration.conftest import PATIENT, FleetCommand
from tests.integration.prometheus import (
    SCRAPE_S,
    Alert,
    Prometheus,
    admin_address,
    in_a_hurry,
    prometheus,
)
from tests.integration.wire import Connection
from tools.bootstrap import ROOT

pytestmark = [pytest.mark.size("test-all"), pytest.mark.timeout(900)]
Owners = dict[BrokerId, set[ProxyId]]

FLEET: Final = "fleet"
NARROW_FLEET: Final = "fleet-narrow"
ALERT_LIMIT_S: Final = 2 * LIMIT_S
LONGEST_FOR_S: Final = 20
"""The sped-up `for` of the alerts about members: two minutes."""
MAX_TAKEOVERS: Final = 4
"""The number of takeovers at which FleetTakeoverRate does not fire."""
LASTING: Final = {("FleetTakeoverRate", "")}
"""The alerts that fire for a quarter of an hour, during the tests after their own one."""


@pytest.fixture(scope="module")
def linked(
    kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalFleet, PeerNetwork]]:
    """Three members, and the links between them."""
    folder = tmp_path_factory.mktemp("alerts")
    running = LocalFleet(folder / "fleet", kafka.endpoints, timing={**IMPATIENT, **PATIENT})
    with network(running, folder) as links:
        with running:
            running.await_settled(frozenset(kafka.brokers))
            yield running, links
        running.remove_data()


@pytest.fixture(scope="module")
def whole(linked: tuple[LocalFleet, PeerNetwork]) -> LocalFleet:
    return linked[0]


@pytest.fixture(scope="module")
def narrow(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """One member without a port for broker 3, and with certificates for a week."""
    folder = tmp_path_factory.mktemp("narrow")
    space = IdentitySpace(first_id=1, count=2)
    running = LocalFleet(folder, kafka.endpoints, 1, identities=space, peer_tls=True, timing=PATIENT)
    with running:
        yield running
    running.remove_data()


@pytest.fixture(scope="module")
def watching(
    whole: LocalFleet, narrow: LocalFleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    with prometheus(tmp_path_factory.mktemp("prometheus"), {FLEET: whole, NARROW_FLEET: narrow}) as running:
        yield running


@pytest.fixture
def own(whole: LocalFleet, kafka: KafkaCluster, watching: Prometheus) -> LocalFleet:
    """Three members, all running again after the former test, all scraped, and without a firing alert.

    Found: where Prometheus has scraped only one that is dead, the fleet is gone, and the error budget burns.
    """
    restore_fleet(whole, kafka)
    scraped = f'up{{job="{FLEET}"}} == 1'
    wait_for(lambda: len(watching.ask(scraped)) == len(whole.members), "every member scraped")
    wait_for(lambda: not watching.firing(FLEET) - LASTING, "no alert any more", ALERT_LIMIT_S)
    return whole


def follower(fleet: LocalFleet) -> ProxyId:
    leader = fleet.leader()
    return next(each for each in fleet.members if each != leader)


def are(watching: Prometheus, view: str, expected: list[Owners]) -> bool:
    """Whether all members together export one of these tables to Prometheus, and nothing else."""
    found: Owners = {}
    for labels, value in watching.ask(f'fleet_identity_owner{{job="{FLEET}", view="{view}"}}'):
        assert value == 1
        found.setdefault(int(labels["broker_id"]), set()).add(labels["proxy_id"])
    return found in expected


def test_only_for_and_interval_are_in_a_hurry() -> None:
    text = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    before = {each["alert"]: each for group in yaml.safe_load(text)["groups"] for each in group["rules"]}
    after = {
        each["alert"]: each for group in yaml.safe_load(in_a_hurry(text))["groups"] for each in group["rules"]
    }
    assert {name: rule["expr"] for name, rule in after.items()} == {
        name: rule["expr"] for name, rule in before.items()
    }
    assert after["FleetMemberDown"]["for"] == f"{LONGEST_FOR_S * 1000}ms"


def test_a_fleet_at_rest_raises_nothing(own: LocalFleet, watching: Prometheus) -> None:
    past_alert_query = (
        f'count_over_time(fleet:identities_unserved:ratio{{job="{FLEET}"}}[1h]) > {2 * LONGEST_FOR_S}'
    )
    wait_for(lambda: watching.ask(past_alert_query), "enough evaluations", ALERT_LIMIT_S)
    up = f'up{{job="{FLEET}"}}'
    wait_for(lambda: {value for _, value in watching.ask(up)} == {1.0}, "all are scraped")
    each_of_all = f'fleet_identity_live_owners{{job="{FLEET}"}}'
    wait_for(lambda: len(watching.ask(each_of_all)) == 3 * len(own.members), "all members report all others")
    assert watching.ask(f'max_over_time(fleet:identities_unserved:ratio{{job="{FLEET}"}}[1h])') == [
        ({"job": FLEET}, 0.0)
    ]
    assert watching.fired(FLEET, 3600) == set()


def test_alerts_report_missing_port_and_expiring_certificate(watching: Prometheus) -> None:
    expected = {
        ("FleetIdentityWithoutOwner", "3"),
        ("FleetCertificateExpires", "peer_tls.certificate"),
        ("FleetErrorBudgetBurnsFast", ""),
        ("FleetErrorBudgetBurnsSlowly", ""),
    }
    wait_for(
        lambda: watching.firing(NARROW_FLEET) == expected, f"{expected}, and nothing else", ALERT_LIMIT_S
    )


def test_alerts_report_a_killed_member_but_not_its_takeover(
    own: LocalFleet, kafka: KafkaCluster, watching: Prometheus
) -> None:
    victim = follower(own)
    others = [each for each in own.members if each != victim]
    began_s = time.monotonic()
    own.kill(victim)
    expected = {("FleetMemberDown", victim), ("FleetMetricsMissing", admin_address(own, victim))}
    wait_for(lambda: watching.firing(FLEET) == expected, f"{expected}", ALERT_LIMIT_S)
    own.await_settled(frozenset(kafka.brokers), others)
    assert watching.ask(f'max(fleet_takeovers_total{{job="{FLEET}"}})')[0][1] > 0
    assert watching.fired(FLEET, time.monotonic() - began_s) == expected

    own.start(victim)
    wait_for(lambda: not watching.firing(FLEET), "no alert any more", ALERT_LIMIT_S)


def test_takeover_is_seen_and_every_dashboard_panel_has_data(
    own: LocalFleet, kafka: KafkaCluster, watching: Prometheus, make_topic: MakeTopic
) -> None:
    """Found: a reason was exported from its first takeover on, so Prometheus did not see an increase."""
    victim, topic = follower(own), make_topic()
    others = [each for each in own.members if each != victim]
    before = {each.broker_id: set(each.committed) for each in own.ownership(victim).identities}
    for view in ("advertised", "committed"):
        wait_for(partial(are, watching, view, [before]), f"{before}, {view}")
    (moving,) = (broker_id for broker_id, found in before.items() if found == {victim})
    after = [{**before, moving: {each}} for each in others]
    reporters = {admin_address(own, each) for each in others}
    broken = f'increase(fleet_protocol_errors_total{{job="{FLEET}"}}[1m]) > 0'
    with Load(own.bootstrap(), topic, rate_per_s=120) as load, Reader(own.bootstrap(), topic) as reader:
        wait_for(lambda: reader.received, "records read")
        killed_s = own.kill(victim)
        for view in ("advertised", "committed"):
            wait_for(partial(are, watching, view, after), f"{moving} elsewhere, {view}")
        wait_for(lambda: counting(watching, killed_s) == reporters, "a takeover that both have counted")
        with Connection(own.bootstrap_endpoint(others[0])) as connection:
            connection.send(struct.pack(">i", -1) + bytes(60))
            assert connection.ends()
        wait_for(lambda: watching.ask(broken), "a frame that is none")
        for title, expression in queries(dashboard()):
            wait_for(partial(has_data, watching, expression), f"{title}: {expression}")
        load.await_flow()
        acknowledged = load.acknowledged
        wait_for(lambda: reader.received >= acknowledged, "records read, after the takeover, too")
    assert load.failures == []


def counting(watching: Prometheus, since_s: float) -> set[str]:
    """The members with an increased takeover counter in Prometheus since a moment."""
    window_s = math.ceil(time.monotonic() - since_s) + 3 * SCRAPE_S
    increase = f'increase(fleet_takeovers_total{{job="{FLEET}"}}[{window_s}s])'
    return {labels["instance"] for labels, _ in watching.ask(f"sum by (instance) ({increase}) > 0")}


def has_data(watching: Prometheus, expression: str) -> bool:
    return any(not math.isnan(value) for _, value in watching.ask(with_variables_replaced(expression)))


def test_alert_reports_a_member_that_misses_a_commit(
    own: LocalFleet,
    linked: tuple[LocalFleet, PeerNetwork],
    kafka: KafkaCluster,
    watching: Prometheus,
    fleet_command: FleetCommand,
) -> None:
    leader, links = own.leader(), linked[1]
    assert leader is not None
    cut_off, other = (each for each in own.members if each != leader)
    expected: set[Alert] = {("FleetGenerationsDiffer", "")}
    began_s = time.monotonic()
    links.cut(cut_off, leader)
    links.cut(cut_off, other)
    try:
        fleet_command(own, "drain", other, "--admin", f"http://{admin_address(own, leader)}")
        wait_for(lambda: expected <= watching.firing(FLEET), f"{expected}", ALERT_LIMIT_S)
    finally:
        links.heal()
        wait_for(lambda: is_fully_linked(own), "every link")
        fleet_command(own, "undrain", other)
    own.await_settled(frozenset(kafka.brokers))
    wait_for(lambda: not watching.firing(FLEET), "no alert any more", ALERT_LIMIT_S)
    # The member has no quorum of its own either, and reports this after 15 s.
    late = {("FleetDirectoryStale", admin_address(own, cut_off))}
    # Nor does the member hear the others, and reports this after 20 s; a slow machine needs as long for all
    # this.
    late |= {("FleetMemberDown", each) for each in own.members}
    assert watching.fired(FLEET, time.monotonic() - began_s) - late == expected


def test_alert_reports_a_dead_broker_and_no_budget_is_spent(
    own: LocalFleet, kafka: KafkaCluster, watching: Prometheus
) -> None:
    began_s = time.monotonic()
    kafka.kill(3)
    try:
        expected = {("FleetUpstreamDown", "3")}
        wait_for(lambda: watching.firing(FLEET) == expected, f"{expected}", ALERT_LIMIT_S)
        assert watching.fired(FLEET, time.monotonic() - began_s) == expected
    finally:
        kafka.start_broker(3)
        kafka.await_ready()
    wait_for(lambda: not watching.firing(FLEET), "no alert any more", ALERT_LIMIT_S)


def test_alert_reports_members_that_flap(own: LocalFleet, kafka: KafkaCluster, watching: Prometheus) -> None:
    """Two members alternate, because a flapping member is taken back later each time; the leader counts
    all."""
    leader, expected = own.leader(), {("FleetTakeoverRate", "")}
    assert watching.firing(FLEET) == set()
    victims = cycle(each for each in own.members if each != leader)
    for victim in islice(victims, MAX_TAKEOVERS + 1):
        own.await_settled(frozenset(kafka.brokers))
        if watching.firing(FLEET) == expected:
            break  # takeovers of the former tests count, too
        own.kill(victim)
        own.await_settled(frozenset(kafka.brokers), own.running)
        own.start(victim)
    wait_for(lambda: watching.firing(FLEET) == expected, f"{expected}", ALERT_LIMIT_S)


def test_alerts_report_too_few_voters_and_then_a_dead_fleet(own: LocalFleet, watching: Prometheus) -> None:
    last = follower(own)
    dead = [each for each in own.members if each != last]
    own.kill(*dead)
    expected = {
        ("FleetNoLeader", ""),
        ("FleetDirectoryStale", admin_address(own, last)),
        *(("FleetMemberDown", each) for each in dead),
        *(("FleetMetricsMissing", admin_address(own, each)) for each in dead),
    }
    wait_for(lambda: watching.firing(FLEET) - LASTING == expected, f"{expected}", ALERT_LIMIT_S)

    own.kill(last)
    gone = {
        ("FleetErrorBudgetBurnsFast", ""),
        ("FleetErrorBudgetBurnsSlowly", ""),
        *(("FleetMetricsMissing", admin_address(own, each)) for each in own.members),
    }
    wait_for(lambda: watching.firing(FLEET) - LASTING == gone, f"{gone}", ALERT_LIMIT_S)
