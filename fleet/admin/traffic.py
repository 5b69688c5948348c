"""What passes each identity: of one member, and at what rate through all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from fleet.admin.documents import CountedMember, IdentityRate, IdentityTraffic, TrafficDocument
from fleet.admin.snapshot import FleetView
from fleet.admin.totals import total
from fleet.core.errors import FleetError
from fleet.core.model import BrokerId, ProxyId
from fleet.runtime.ipc import BOOTSTRAP, WorkerCounters

Counts = Mapping[ProxyId, TrafficDocument | FleetError]
_NOTHING_YET: Final = WorkerCounters()


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
    # One that has said hello, and nothing yet, comes with all that it has ever passed.
    workers = tuple(sorted(each.pid for each in view.workers if each.counters != _NOTHING_YET))
    return TrafficDocument(view.me, view.incarnation, view.now.mono_s, workers, identities)


def rates(before: Counts, now: Counts) -> tuple[IdentityRate, ...]:
    """What passes each identity, at all members together.

    Args:
        before: the counts before these; whom they cannot be compared with has connections and no rate.
    """
    connections: dict[BrokerId, int] = defaultdict(int)
    to_broker: dict[BrokerId, float] = defaultdict(float)
    to_client: dict[BrokerId, float] = defaultdict(float)
    for proxy_id, counted in now.items():
        if isinstance(counted, FleetError):
            continue
        last = _comparable(before.get(proxy_id), counted)
        known = {} if last is None else {each.broker_id: each for each in last.identities}
        for each in counted.identities:
            connections[each.broker_id] += each.connections
            if last is None:
                continue
            elapsed_s = counted.now_mono_s - last.now_mono_s
            was = known.get(each.broker_id, IdentityTraffic(each.broker_id, 0, 0, 0))
            # A control process that was replaced knows nothing of workers that are gone.
            to_broker[each.broker_id] += max(0, each.to_broker_bytes - was.to_broker_bytes) / elapsed_s
            to_client[each.broker_id] += max(0, each.to_client_bytes - was.to_client_bytes) / elapsed_s
    return tuple(
        IdentityRate(broker_id, connections[broker_id], to_broker[broker_id], to_client[broker_id])
        for broker_id in sorted(connections)
    )


def _comparable(last: TrafficDocument | FleetError | None, now: TrafficDocument) -> TrafficDocument | None:
    """The count before, where it was of the same life, and of every worker that is counted now.

    A control process that was replaced hears of its workers one after the other, and with each of what it has
    passed in its whole life.
    """
    if not isinstance(last, TrafficDocument) or last.incarnation != now.incarnation:
        return None
    return last if last.now_mono_s < now.now_mono_s and {*now.workers} <= {*last.workers} else None


def counted(before: Counts, now: Counts) -> tuple[CountedMember, ...]:
    """Whose numbers are in the rates between two counts."""
    return tuple(
        CountedMember(proxy_id, str(each), rated=False)
        if isinstance(each, FleetError)
        else CountedMember(proxy_id, None, rated=_comparable(before.get(proxy_id), each) is not None)
        for proxy_id, each in now.items()
    )
