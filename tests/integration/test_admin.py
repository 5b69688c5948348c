"""The commands and the admin pages of a running fleet, and a drain that no client notices."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jsonschema
import pytest

from fleet.core.model import BrokerId, Endpoint, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.proxy.wire.metadata import Table
from tests.integration import wire
from tests.integration.clients import Load, count, led_by, wait_for
from tests.integration.conftest import ROOT, FleetCommand
from tests.integration.metrics import Samples, scrape
from tests.integration.wire import IN_ORDER, Connection, Pipeline

pytestmark = pytest.mark.size("test-all")

Owners = dict[BrokerId, list[ProxyId]]


def fits(document: dict[str, Any], schema: str) -> dict[str, Any]:
    """Read the document, which must match its schema in docs/schemas."""
    text = (ROOT / "docs" / "schemas" / f"{schema}.schema.json").read_text()
    jsonschema.validate(document, json.loads(text), cls=jsonschema.Draft202012Validator)
    return document


def page(fleet: LocalFleet, proxy_id: ProxyId, path: str) -> dict[str, Any]:
    status, body = fleet.get(proxy_id, path, limit_s=20)
    assert status == 200, body
    answer: dict[str, Any] = json.loads(body)
    return answer


def owners_in(samples: Samples, view: str) -> Owners:
    """The ownership table as one member exports it: every existing series, each with the value 1."""
    table: Owners = {}
    for labels, value in samples["fleet_identity_owner"]:
        if labels["view"] == view:
            assert value == 1
            table.setdefault(int(labels["broker_id"]), []).append(labels["proxy_id"])
    return table


def committed(document: dict[str, Any]) -> Owners:
    return {each["broker_id"]: each["committed"] for each in document["identities"]}


def advertised(document: dict[str, Any]) -> Owners:
    return {each["broker_id"]: each["advertised"] for each in document["identities"]}


def test_status_shows_owners_and_plan_shows_moves(
    fleet: LocalFleet, kafka: KafkaCluster, fleet_command: FleetCommand
) -> None:
    status = fits(fleet_command(fleet, "status"), "status")
    assert status["agree"] is True
    assert status["leader"] in fleet.members
    assert status["quorum"] == {"present": True, "voters": ["p1", "p2", "p3"], "lost_s": 0}
    assert {each["proxy_id"]: each["condition"] for each in status["members"]} == dict.fromkeys(
        fleet.members, "up"
    )
    assert {each["broker_id"]: (each["host"], each["port"], each["up"]) for each in status["brokers"]} == {
        broker_id: (broker.host, broker.port, True) for broker_id, broker in kafka.brokers.items()
    }
    owners = committed(status)
    assert advertised(status) == owners
    assert owners.keys() == kafka.brokers.keys()
    assert sorted(owners.values()) == [["p1"], ["p2"], ["p3"]]

    plan = fits(fleet_command(fleet, "plan", "--without", "p2"), "plan")
    (move,) = plan["moves"]
    assert owners[move["broker_id"]] == move["before"] == ["p2"]
    assert set(move["after"]) < {"p1", "p3"}
    assert sorted([*plan["stays"], move["broker_id"]]) == sorted(owners)
    assert {each["proxy_id"]: each["before"] for each in plan["loads"]} == {"p1": 1, "p2": 1, "p3": 1}
    assert sum(each["after"] for each in plan["loads"]) == 3
    assert committed(fleet_command(fleet, "status")) == owners


@pytest.mark.size("test")
def test_drain_follows_its_plan_and_producers_notice_nothing(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str], fleet_command: FleetCommand
) -> None:
    before = fleet_command(fleet, "status")
    (planned,) = fleet_command(fleet, "plan", "--without", "p2")["moves"]
    others, topic = ["p1", "p3"], make_topic()
    moving = planned["broker_id"]
    partition = led_by(kafka, topic, moving)
    cut = Pipeline(bound_port(fleet, "p2", moving), topic, partition)
    with Load(fleet.bootstrap(), make_topic()) as load, cut:
        wait_for(lambda: cut.answered > 100, "answers of a connection that will be drained")
        drained = fits(fleet_command(fleet, "drain", "p2"), "drain")
        assert (drained["proxy_id"], drained["drained"], drained["applied"]) == ("p2", True, True)
        fleet.await_settled(frozenset(kafka.brokers), others)
        load.await_flow()
        wait_for(cut.ended, "the end of the drained connection")

        status = fits(fleet_command(fleet, "status"), "status")
        assert {each["proxy_id"]: each["condition"] for each in status["members"]} == {
            "p1": "up",
            "p2": "drained",
            "p3": "up",
        }
        owners = {**committed(before), planned["broker_id"]: planned["after"]}
        assert committed(status) == advertised(status) == owners
        assert status["generation"] > before["generation"]
        for proxy_id in fleet.members:
            wait_for(partial(agree, fleet, proxy_id, owners), f"Metadata and metrics of {proxy_id}")
            assert scrape(fleet, proxy_id)["fleet_directory_generation"] == [({}, status["generation"])]
        second_answer = fleet_command(fleet, "drain", "p2")
        assert (second_answer["drained"], second_answer["applied"]) == (True, False)

        undrained = fits(fleet_command(fleet, "undrain", "p2"), "drain")
        assert (undrained["drained"], undrained["applied"]) == (False, True)
        fleet.await_settled(frozenset(kafka.brokers), fleet.members)
        load.await_flow()
    assert load.failures == load.errors == []
    assert load.acknowledged == count(kafka.bootstrap_servers, load.topic)
    assert (cut.end, cut.refused) == (IN_ORDER, [])
    assert cut.answered == count(kafka.bootstrap_servers, topic, [partition])
    after = fleet_command(fleet, "status")
    assert after["generation"] > status["generation"]
    assert sorted(committed(after).values()) == [["p1"], ["p2"], ["p3"]]
    (reported,) = [each for each in page(fleet, "p1", "/ownership")["takeovers"] if each["reason"] == "drain"]
    assert (reported["proxy_id"], reported["broker_ids"]) == ("p2", [planned["broker_id"]])
    assert reported["detected_mono_s"] <= reported["advertised_mono_s"] < time.monotonic()
    assert reported["detected_mono_s"] <= reported["committed_mono_s"] < time.monotonic()


def test_pin_moves_a_broker_until_it_is_unpinned(
    fleet: LocalFleet, kafka: KafkaCluster, fleet_command: FleetCommand
) -> None:
    before = committed(fleet_command(fleet, "status"))
    broker_id, (owner, *_) = next(iter(sorted(before.items())))
    target = next(each for each in fleet.members if each != owner)
    pinned = fits(fleet_command(fleet, "pin", str(broker_id), target), "pin")
    try:
        assert (pinned["broker_id"], pinned["proxy_id"], pinned["applied"]) == (broker_id, target, True)
        second_answer = fleet_command(fleet, "pin", str(broker_id), target)
        assert (second_answer["proxy_id"], second_answer["applied"]) == (target, False)

        def is_moved() -> bool:
            status = fleet_command(fleet, "status")
            return committed(status)[broker_id] == advertised(status)[broker_id] == [target]

        wait_for(is_moved, f"broker {broker_id} at {target}")
        identities = {each["broker_id"]: each for each in fleet_command(fleet, "status")["identities"]}
        assert {each: identities[each]["pinned_to"] for each in before} == {
            each: target if each == broker_id else None for each in before
        }
    finally:
        unpinned = fits(fleet_command(fleet, "unpin", str(broker_id)), "pin")
        fleet.await_settled(frozenset(kafka.brokers), fleet.members)
    assert (unpinned["broker_id"], unpinned["proxy_id"], unpinned["applied"]) == (broker_id, None, True)
    assert fleet_command(fleet, "unpin", str(broker_id))["applied"] is False
    after = fleet_command(fleet, "status")
    assert all(each["pinned_to"] is None for each in after["identities"])
    assert sorted(committed(after).values()) == [["p1"], ["p2"], ["p3"]]


def bound_port(fleet: LocalFleet, proxy_id: ProxyId, broker_id: BrokerId) -> Endpoint:
    """The address that a member binds for an identity.

    What passes there is not searched for addresses: among thousands of correlation ids some look like ports.
    """
    (listener,) = fleet.settings.member(proxy_id).listeners
    offset = fleet.settings.identities.offset(broker_id)
    assert offset is not None
    return Endpoint(listener.bind_host, listener.first_port + offset)


def agree(fleet: LocalFleet, proxy_id: ProxyId, owners: Owners) -> bool:
    """Whether a member's Metadata has these owners, and its metrics have exactly the same table."""
    samples = scrape(fleet, proxy_id)
    return (
        metadata_owners(fleet, proxy_id)
        == owners_in(samples, "committed")
        == owners_in(samples, "advertised")
        == owners
    )


def metadata_owners(fleet: LocalFleet, proxy_id: ProxyId) -> Owners:
    """The member that each identity is advertised at in one member's Metadata."""
    with Connection(fleet.bootstrap_endpoint(proxy_id)) as connection:
        table: Table = wire.brokers_of(connection.ask(wire.metadata(1)))
    return {broker_id: [str(fleet.owner_of(endpoint))] for broker_id, endpoint in table.items()}


def test_every_member_is_healthy_ready_and_exports_all_metrics(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str]
) -> None:
    owners = committed(page(fleet, "p1", "/ownership"))
    for proxy_id in fleet.members:
        assert page(fleet, proxy_id, "/healthz") == {"status": "ok"}
        ready = fits(page(fleet, proxy_id, "/readyz"), "ready")
        assert {each["name"]: each["ok"] for each in ready["checks"]} == {
            "workers": True,
            "directory": True,
            "upstream": True,
        }
        fits(page(fleet, proxy_id, "/ownership"), "ownership")
        samples = scrape(fleet, proxy_id)
        assert owners_in(samples, "committed") == owners_in(samples, "advertised") == owners
        assert {labels["broker_id"]: value for labels, value in samples["fleet_upstream_up"]} == {
            str(broker_id): 1.0 for broker_id in kafka.brokers
        }
        conditions = samples["fleet_member_condition"]
        states = {(each["proxy_id"], each["condition"]): value for each, value in conditions}
        assert {each for each, value in states.items() if value} == {(each, "up") for each in fleet.members}
        assert samples["fleet_directory_staleness_seconds"] == [({}, 0.0)]
    wait_for(lambda: leading(fleet) == {fleet.leader()}, "one leader, the same by metrics and ownership")


def leading(fleet: LocalFleet) -> set[ProxyId]:
    """The members whose metrics report that they lead."""
    return {each for each in fleet.members if scrape(fleet, each)["fleet_raft_leader"] == [({}, 1.0)]}


def test_requests_connections_bytes_and_refusals_are_counted(fleet: LocalFleet) -> None:
    """A worker reports its counters once per second."""

    def value(name: str, **labels: str) -> float:
        return sum(
            each for found, each in scrape(fleet, "p1").get(name, []) if labels.items() <= found.items()
        )

    requests_before = value("fleet_requests_total", api="Metadata")
    refused_before = value("fleet_protocol_errors_total", reason="unsupported_version")
    bytes_before = value("fleet_bytes_total", direction="to_client", broker_id="bootstrap")
    with Connection(fleet.bootstrap_endpoint("p1")) as connection:
        answer = connection.ask(wire.metadata(1))
        wait_for(lambda: value("fleet_requests_total", api="Metadata") > requests_before, "a request counted")
        assert value("fleet_client_connections", broker_id="bootstrap") >= 1
        assert value("fleet_rewrite_duration_seconds_count") >= 1
        # The request may have been counted a second before its answer.
        wait_for(
            lambda: (
                value("fleet_bytes_total", direction="to_client", broker_id="bootstrap")
                >= bytes_before + len(answer)
            ),
            "an answer counted",
        )
        connection.send(wire.request(999, 0, 2))
        assert connection.ends()
    wait_for(
        lambda: value("fleet_protocol_errors_total", reason="unsupported_version") > refused_before,
        "a refusal counted",
    )
