"""Helpers for takeovers of a group coordinator's member."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from fleet.core.model import BrokerId, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.harness import wait_for
from tests.chaos.trees import Tree
from tests.integration import wire
from tests.integration.clients import LIMIT_S
from tests.integration.wire import Connection


def coordinator(kafka: KafkaCluster, group: str) -> BrokerId:
    """The broker that coordinates a group, even if the group does not exist yet."""
    found: list[BrokerId] = []
    with Connection(kafka.endpoints[0]) as connection:

        def is_known() -> bool:
            answer = wire.coordinator_of(connection.ask(wire.find_coordinator(1, group)))
            found.extend([] if answer is None else [answer])
            return bool(found)

        wait_for(is_known, f"a coordinator of {group}", LIMIT_S)
    return found[0]


def group_with_coordinator_of(kafka: KafkaCluster, group: str) -> str:
    """The name of another group with the same coordinator."""
    coordinator_id, names = coordinator(kafka, group), (f"{group}-{number}" for number in itertools.count(1))
    return next(name for name in names if coordinator(kafka, name) == coordinator_id)


def owner_of_coordinator(fleet: LocalFleet, kafka: KafkaCluster, group: str) -> ProxyId:
    """The member that owns the identity of a group's coordinator."""
    return fleet.owners()[coordinator(kafka, group)]


def kill_proxy_of_coordinator(fleet: LocalFleet, kafka: KafkaCluster, group: str) -> ProxyId:
    """Kill the member that owns the identity of a group's coordinator. Returns: the member."""
    victim = owner_of_coordinator(fleet, kafka, group)
    tree = Tree(fleet, victim)
    fleet.kill(victim)
    tree.prove_gone()
    return victim


def await_protocols(kafka: KafkaCluster, protocols: Mapping[str, str]) -> None:
    """Wait until the brokers report groups as stable, by protocol: classic, consumer …"""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def has_protocols() -> bool:
        listed = admin.list_consumer_groups().result(LIMIT_S).valid
        types = {each.group_id: each.type.name.lower() for each in listed}
        return protocols.items() <= types.items()

    wait_for(has_protocols, f"groups {dict(protocols)}", LIMIT_S)
