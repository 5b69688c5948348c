"""What passes each identity: of one member, and at what rate through all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fleet.admin.documents import CountedMember, IdentityRate, IdentityTraffic, TrafficDocument
from fleet.admin.totals import total
from fleet.admin.view import FleetView
from fleet.errors import FleetError
from fleet.ipc import BOOTSTRAP
from fleet.model import BrokerId, ProxyId

Counts = Mapping[ProxyId, TrafficDocument | FleetError]


def traffic_document(view: FleetView) -> TrafficDocument:
    """What has passed this member; connections to bootstrap ports are nobody's."""
    now = total((view.retired, *(worker.counters for worker in view.workers)))
    passed = {*now.connections, *now.bytes_to_broker, *now.bytes_to_client} - {BOOTSTRAP}
    identities = tuple(
        IdentityTraffic(
            broker_id,
            now.connections.get(broker_id, 0),
            now.bytes_to_broker.get(broker_id, 0),
            now.bytes_to_client.get(broker_id, 0),
        )
        for broker_id in sorted(passed)
    )
    return TrafficDocument(view.me, view.incarnation, view.now.mono_s, identities)


def rates(before: Counts, now: Counts) -> tuple[IdentityRate, ...]:
    """What passes each identity, at all members together.

    Args:
        before: the counts before these; who is not in it, or was another life, has connections and no rate.
    """
    connections: dict[BrokerId, int] = defaultdict(int)
    to_broker: dict[BrokerId, float] = defaultdict(float)
    to_client: dict[BrokerId, float] = defaultdict(float)
    for proxy_id, counted in now.items():
        if isinstance(counted, FleetError):
            continue
        last = before.get(proxy_id)
        known: dict[BrokerId, IdentityTraffic] = {}
        elapsed_s = 0.0
        if isinstance(last, TrafficDocument) and last.incarnation == counted.incarnation:
            known = {each.broker_id: each for each in last.identities}
            elapsed_s = counted.now_mono_s - last.now_mono_s
        for each in counted.identities:
            connections[each.broker_id] += each.connections
            if elapsed_s <= 0:
                continue
            was = known.get(each.broker_id, IdentityTraffic(each.broker_id, 0, 0, 0))
            # A control process that was replaced counts from where the workers are.
            to_broker[each.broker_id] += max(0, each.to_broker_bytes - was.to_broker_bytes) / elapsed_s
            to_client[each.broker_id] += max(0, each.to_client_bytes - was.to_client_bytes) / elapsed_s
    return tuple(
        IdentityRate(broker_id, connections[broker_id], to_broker[broker_id], to_client[broker_id])
        for broker_id in sorted(connections)
    )


def counted(now: Counts) -> tuple[CountedMember, ...]:
    return tuple(
        CountedMember(proxy_id, str(each) if isinstance(each, FleetError) else None)
        for proxy_id, each in now.items()
    )
