"""Fleets in front of real brokers of several releases. Relays record what their clients receive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleet.core.model import BrokerId, Endpoint, IdentitySpace
from fleet.drills.cluster.fleet import LISTENER, LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.kafka_jars import CHECKOUT_LIBS
from fleet.drills.cluster.nat import advertise_elsewhere
from tests.conftest import AUTHORIZER, IMPATIENT, make_cluster
from tests.integration.relay import Relays
from tools.bootstrap import OLDER_KAFKAS, older_kafka

NEWEST: Final = "newest"
RELEASES: Final = (*OLDER_KAFKAS, NEWEST)
NAT_HOST: Final = "127.88.7.7"


@dataclass(frozen=True)
class ReleaseSetup:
    """A fleet in front of brokers of one release, and the relays between the fleet and its clients."""

    release: str
    kafka: KafkaCluster
    fleet: LocalFleet
    relays: Relays

    @property
    def has_transactions_2(self) -> bool:
        """Whether each transaction ends an epoch of its producer (KIP-890)."""
        return not self.release.startswith("3.")

    @property
    def has_new_groups(self) -> bool:
        """Whether brokers assign partitions to the members of groups (KIP-848)."""
        return not self.release.startswith("3.")


def cluster(release: str, folder: Path) -> KafkaCluster:
    """Prepare three brokers of a release, not started yet, with ACLs."""
    libs = CHECKOUT_LIBS if release == NEWEST else older_kafka(release)
    return make_cluster(folder, libs=libs, properties=AUTHORIZER)


@contextmanager
def release_setup(release: str, kafka: KafkaCluster, folder: Path) -> Iterator[ReleaseSetup]:
    """Start three members in front of running brokers."""
    relays = Relays()
    fleet = LocalFleet(
        folder, kafka.endpoints, 3, identities=IdentitySpace(first_id=1, count=4), timing=IMPATIENT
    )
    for advertised, bound in advertise_elsewhere(fleet, NAT_HOST).items():
        relays.forward(advertised, bound)
    try:
        with fleet:
            fleet.await_settled(frozenset(kafka.brokers))
            yield ReleaseSetup(release, kafka, fleet, relays)
    finally:
        relays.close()
        fleet.remove_data()


def advertised(fleet: LocalFleet) -> Mapping[BrokerId, Endpoint]:
    """The endpoint that an idle fleet advertises for each broker."""
    found = {}
    for each in fleet.ownership(fleet.members[0]).identities:
        owner = fleet.settings.member(each.committed[0]).to_member(fleet.settings)
        endpoint = owner.endpoint(LISTENER, each.broker_id)
        assert endpoint is not None
        found[each.broker_id] = endpoint
    return found
