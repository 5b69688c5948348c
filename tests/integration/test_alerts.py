"""What raises an alert, done to a real fleet under a real Prometheus; what does not, raises none.

`for` is shorter here (see `HURRY`); expressions and windows are those that operators load. Two alerts have no
cause here that would not take minutes, and are tested with written series alone (deploy/prometheus/
alerts_test.yml): FleetGenerationsDiffer and FleetTakeoverRate.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest
import yaml

from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet
from fleet.model import IdentitySpace
from tests.conftest import fleets
from tests.integration.clients import LIMIT_S, wait_for
from tests.integration.conftest import PATIENT
from tests.integration.prometheus import Prometheus, admin_address, in_a_hurry, prometheus
from tools.bootstrap import ROOT

FLEET: Final = "fleet"
NARROW: Final = "fleet-narrow"
ALERT_LIMIT_S: Final = 2 * LIMIT_S
LONGEST_FOR_S: Final = 20
"""Of the alerts about members, in a hurry: two minutes."""


@pytest.fixture(scope="module")
def whole(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    with fleets(kafka, tmp_path_factory.mktemp("alerts")) as make:
        yield make(3, timing=PATIENT)


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
    with prometheus(tmp_path_factory.mktemp("prometheus"), {FLEET: whole, NARROW: narrow}) as running:
        yield running


@pytest.fixture
def own(whole: LocalFleet, kafka: KafkaCluster, watching: Prometheus) -> LocalFleet:
    """Three members; what a test before has stopped runs again, and nothing fires any more."""
    gone = [each for each in whole.members if each not in whole.running]
    if gone:
        whole.start(*gone)
    whole.await_ready()
    whole.await_settled(frozenset(kafka.brokers))
    wait_for(lambda: not watching.firing(FLEET), "no alert any more", ALERT_LIMIT_S)
    return whole


def follower(fleet: LocalFleet) -> str:
    leader = fleet.leader()
    return next(each for each in fleet.members if each != leader)


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
    seen = f'count_over_time(fleet:identities_unserved:ratio{{job="{FLEET}"}}[1h]) > {2 * LONGEST_FOR_S}'
    wait_for(lambda: watching.ask(seen), "enough evaluations", ALERT_LIMIT_S)
    assert {value for _, value in watching.ask(f'up{{job="{FLEET}"}}')} == {1.0}
    assert len(watching.ask(f'fleet_identity_live_owners{{job="{FLEET}"}}')) == 3 * len(own.members)
    assert watching.ask(f'max_over_time(fleet:identities_unserved:ratio{{job="{FLEET}"}}[1h])') == [
        ({"job": FLEET}, 0.0)
    ]
    assert watching.fired(FLEET, 3600) == set()


def test_a_broker_without_a_port_and_a_certificate_that_ends_are_told_of(watching: Prometheus) -> None:
    expected = {
        ("FleetIdentityWithoutOwner", "3"),
        ("FleetCertificateExpires", "peer_tls.certificate"),
        ("FleetErrorBudgetBurnsFast", ""),
        ("FleetErrorBudgetBurnsSlowly", ""),
    }
    wait_for(lambda: watching.firing(NARROW) == expected, f"{expected}, and nothing else", ALERT_LIMIT_S)


def test_a_member_that_is_killed_is_told_of_and_its_takeover_is_not(
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


def test_a_broker_that_is_down_is_told_of_and_costs_nothing_of_the_budget(
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


def test_too_few_voters_are_told_of_and_then_a_fleet_that_is_gone(
    own: LocalFleet, watching: Prometheus
) -> None:
    last = follower(own)
    dead = [each for each in own.members if each != last]
    own.kill(*dead)
    expected = {
        ("FleetNoLeader", ""),
        ("FleetDirectoryStale", admin_address(own, last)),
        *(("FleetMemberDown", each) for each in dead),
        *(("FleetMetricsMissing", admin_address(own, each)) for each in dead),
    }
    wait_for(lambda: watching.firing(FLEET) == expected, f"{expected}", ALERT_LIMIT_S)

    own.kill(last)
    gone = {
        ("FleetErrorBudgetBurnsFast", ""),
        ("FleetErrorBudgetBurnsSlowly", ""),
        *(("FleetMetricsMissing", admin_address(own, each)) for each in own.members),
    }
    wait_for(lambda: watching.firing(FLEET) == gone, f"{gone}", ALERT_LIMIT_S)
