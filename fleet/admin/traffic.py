"""Traffic of each identity: the counters of one member, and the rates over all members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from fleet.admin.documents import IdentityRate, IdentityTraffic, RateSource, TrafficDocument
from fleet.admin.snapshot import FleetView
from fleet.admin.totals import total
from fleet.core.errors import FleetError
from fleet.core.model import BrokerId, ProxyId
from fleet.runtime.ipc import BOOTSTRAP, WorkerCounters

Counts = Mapping[ProxyId, TrafficDocument | FleetError]
_NO_COUNTERS: Final = WorkerCounters()


def traffic_document(view: FleetView) -> TrafficDocument:
    """The counters of this member; connections to bootstrap ports belong to no identity."""
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
    # A worker that has connected but not yet sent counters will add all bytes of its life at once.
    workers = tuple(sorted(each.pid for each in view.workers if each.counters != _NO_COUNTERS))
    return TrafficDocument(view.me, view.incarnation, view.now.mono_s, workers, identities)


def rates(before: Counts, now: Counts) -> tuple[IdentityRate, ...]:
    """The traffic of each identity over all members.

    Args:
        before: the previous counts. A member whose two counts cannot be compared adds connections and no
            rate.
        now: the current counts.
    """
    connections: dict[BrokerId, int] = defaultdict(int)
    to_broker: dict[BrokerId, float] = defaultdict(float)
    to_client: dict[BrokerId, float] = defaultdict(float)
    for proxy_id, current in now.items():
        if isinstance(current, FleetError):
            continue
        last = _comparable(before.get(proxy_id), current)
        known = {} if last is None else {each.broker_id: each for each in last.identities}
        for each in current.identities:
            connections[each.broker_id] += each.connections
            if last is None:
                continue
            elapsed_s = current.now_mono_s - last.now_mono_s
            was = known.get(each.broker_id, IdentityTraffic(each.broker_id, 0, 0, 0))
            # A new control process does not know the counters of workers that ended before its start.
            to_broker[each.broker_id] += max(0, each.to_broker_bytes - was.to_broker_bytes) / elapsed_s
            to_client[each.broker_id] += max(0, each.to_client_bytes - was.to_client_bytes) / elapsed_s
    return tuple(
        IdentityRate(broker_id, connections[broker_id], to_broker[broker_id], to_client[broker_id])
        for broker_id in sorted(connections)
    )


def _comparable(last: TrafficDocument | FleetError | None, now: TrafficDocument) -> TrafficDocument | None:
    """The previous count, if it is of the same incarnation and includes every worker of the current count.

    The workers of a new control process connect one after the other, and each adds the bytes of its whole
    life.
    """
    if not isinstance(last, TrafficDocument) or last.incarnation != now.incarnation:
        return None
    return last if last.now_mono_s < now.now_mono_s and {*now.workers} <= {*last.workers} else None


def rate_sources(before: Counts, now: Counts) -> tuple[RateSource, ...]:
    """For each member, whether the rates between two counts include its counters."""
    return tuple(
        RateSource(proxy_id, str(each), rated=False)
        if isinstance(each, FleetError)
        else RateSource(proxy_id, None, rated=_comparable(before.get(proxy_id), each) is not None)
        for proxy_id, each in now.items()
    )
