"""Drains of a member while a client program is at work."""

from __future__ import annotations

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.coordinators import await_protocols, owner_of_coordinator
from tests.clients.program import Program
from tests.integration.conftest import FleetCommand


def drain_owner_of_coordinator(
    fleet: LocalFleet, kafka: KafkaCluster, group: str, program: Program, fleet_command: FleetCommand
) -> None:
    """Drain and undrain the owner of a group's coordinator. Records flow before, between and after.

    Args: group:   the name of a classic group.
          program: the running client, a member of the group.
    """
    program.await_flow()
    await_protocols(kafka, {group: "classic"})
    drain_and_undrain(fleet, kafka, owner_of_coordinator(fleet, kafka, group), program, fleet_command)


def drain_and_undrain(
    fleet: LocalFleet, kafka: KafkaCluster, drained: ProxyId, program: Program, fleet_command: FleetCommand
) -> None:
    """Drain and undrain a member. Records of a running client flow between and after."""
    others = tuple(each for each in fleet.members if each != drained)
    fleet_command(fleet, "drain", drained)
    fleet.await_settled(frozenset(kafka.brokers), others)
    program.await_flow()
    fleet_command(fleet, "undrain", drained)
    fleet.await_settled(frozenset(kafka.brokers))
    program.await_flow()
