"""Weights from a topic, and a fleet that balances by them."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
from confluent_kafka import Producer

from fleet.core.event_schema import EVENTS, WeightEvent
from fleet.core.model import BrokerId, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.conftest import MakeFleet, MakeTopic
from tests.integration.clients import LIMIT_S, Load, count, wait_for
from tests.integration.conftest import FleetCommand

pytestmark = pytest.mark.size("test-all")

HOT, COLD = 1_000_000.0, 1.0


def owners(fleet: LocalFleet) -> dict[BrokerId, tuple[ProxyId, ...]]:
    return {each.broker_id: each.committed for each in fleet.ownership("p1").identities}


def tell(kafka: KafkaCluster, prefix: str, weights: Mapping[BrokerId, float], fleet: str = "demo") -> None:
    """Produce weights as the pipeline does."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    now_ms = time.time_ns() // 1_000_000
    for broker_id, weight in weights.items():
        place = f"{fleet}/{broker_id}"
        event = WeightEvent(f"{place}/weight/{now_ms}", fleet, broker_id, weight, now_ms)
        producer.produce(f"{prefix}weights", EVENTS.encode(event), place)
    producer.produce(f"{prefix}weights", b"no weight", b"nothing")
    assert producer.flush(LIMIT_S) == 0


def hot_pair(fleet: LocalFleet) -> list[BrokerId]:
    """The identities of the proxy that has two, of two proxies."""
    owned = owners(fleet)
    loaded = max(fleet.members, key=lambda each: sum(each in one for one in owned.values()))
    found = [broker_id for broker_id, one in owned.items() if one == (loaded,)]
    assert len(found) == 2
    return found


def test_plan_by_weight_changes_nothing(
    kafka: KafkaCluster, make_fleet: MakeFleet, fleet_command: FleetCommand
) -> None:
    fleet = make_fleet(2, events={"topic_prefix": "weights-a."}, racks=False)
    before, hot, generation = owners(fleet), hot_pair(fleet), fleet.ownership("p1").generation
    tell(kafka, "weights-a.", dict.fromkeys(before, HOT), fleet="another")
    tell(kafka, "weights-a.", {each: HOT if each in hot else COLD for each in before})
    planned = fleet_command(fleet, "plan", "--weights")
    assert planned["weighed"]
    after = {**before, **{move["broker_id"]: tuple(move["after"]) for move in planned["moves"]}}
    assert len({after[each] for each in hot}) == 2
    loads = {each["proxy_id"]: (each["weight_before"], each["weight_after"]) for each in planned["loads"]}
    assert max(was for was, _ in loads.values()) == 2 * HOT
    assert max(now for _, now in loads.values()) <= HOT + COLD
    assert owners(fleet) == before
    assert fleet.ownership("p1").generation == generation


def test_balance_by_weight_is_unnoticed_by_producers(
    kafka: KafkaCluster, make_fleet: MakeFleet, make_topic: MakeTopic, fleet_command: FleetCommand
) -> None:
    """Two hot identities at one of two proxies are separated; small differences of weights move nothing."""
    balance = {"by": "weights", "every_s": 1}
    fleet = make_fleet(2, events={"topic_prefix": "weights-b."}, balance=balance, racks=False)
    before, hot = owners(fleet), hot_pair(fleet)
    with Load(fleet.bootstrap(), make_topic()) as load:
        tell(kafka, "weights-b.", {each: HOT if each in hot else COLD for each in before})
        wait_for(lambda: owners(fleet) != before, "a rebalance by weight")
        load.await_flow()
        after, generation = owners(fleet), fleet.ownership("p1").generation
        assert len({after[each] for each in hot}) == 2
        tell(kafka, "weights-b.", {each: HOT * 1.1 if each in hot else HOT * 0.001 for each in before})
        assert fleet_command(fleet, "plan", "--weights")["moves"] == []
        load.await_flow()
        assert fleet.ownership("p1").generation == generation
    assert load.failures == load.errors == []
    assert load.acknowledged == count(kafka.bootstrap_servers, load.topic)
