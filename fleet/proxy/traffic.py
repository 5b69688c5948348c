"""Counts the traffic of one worker by listener and broker, between two messages to control.

All bytes, requests and connections are counted in plain integers. Some reads are sampled at random. A sample
has the latency of the first request in the read, the sizes of request and answer, the client, and the number
of requests in flight on the connection.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from math import log2
from typing import Final

from fleet.core.model import BrokerId
from fleet.core.traffic import ApiTraffic
from fleet.proxy.wire.counters import WireCounters
from fleet.runtime.ipc import ConnectionRow, TrafficMessage, TrafficRow

READS_PER_SAMPLE: Final = 64
"""Average number of reads for one sample."""
MAX_CLIENTS_REPORTED: Final = 10
MAX_CLIENTS_COUNTED: Final = 1_000
"""Client ids counted for one listener and broker between two messages; later ones count as others."""
MAX_CONNECTIONS_REPORTED: Final = 2_000
"""Connections reported in one message."""
OTHER_CLIENTS: Final = "…"
BUCKETS_PER_OCTAVE: Final = 4


def bucket_of(took_s: float) -> int:
    """Return the bucket of a latency; see `ApiTraffic`. Less than a microsecond counts as one."""
    return int(BUCKETS_PER_OCTAVE * log2(max(1.0, took_s * 1e6)))


class ApiSamples:
    """The timed answers of one API."""

    __slots__ = ("latency", "request_bytes", "response_bytes")

    def __init__(self) -> None:
        self.request_bytes = 0
        self.response_bytes = 0
        self.latency: Counter[int] = Counter()


class Traffic:
    """The traffic of all connections of one identity at one listener, and the number of open ones."""

    __slots__ = (
        "_clients",
        "_in_flight_peak",
        "_reported",
        "_reported_requests",
        "_samples",
        "connections",
        "opened",
        "to_broker_bytes",
        "to_client_bytes",
        "wire",
    )

    def __init__(self) -> None:
        self.connections = 0
        self.opened = 0
        self.to_broker_bytes = 0
        self.to_client_bytes = 0
        self.wire = WireCounters()
        self._in_flight_peak = 0
        self._samples: dict[int, ApiSamples] = {}
        self._clients: Counter[str] = Counter()
        self._reported = (0, 0, 0)
        self._reported_requests = list(self.wire.requests)

    def sampled(self, client_id: str, in_flight: int) -> None:
        """Count a sampled read."""
        self._in_flight_peak = max(self._in_flight_peak, in_flight)
        known = client_id in self._clients or len(self._clients) < MAX_CLIENTS_COUNTED
        self._clients[client_id if known else OTHER_CLIENTS] += 1

    def answered(self, api_key: int, request_bytes: int, response_bytes: int, took_s: float) -> None:
        """Count the answer to a sampled request, which has begun to arrive."""
        samples = self._samples.get(api_key)
        if samples is None:
            samples = self._samples[api_key] = ApiSamples()
        samples.request_bytes += request_bytes
        samples.response_bytes += response_bytes
        samples.latency[bucket_of(took_s)] += 1

    def take(self, listener: str, broker_id: BrokerId) -> TrafficRow | None:
        """Return the traffic since the last call; None without traffic and open connections."""
        opened, to_broker_bytes, to_client_bytes = self._reported
        self._reported = (self.opened, self.to_broker_bytes, self.to_client_bytes)
        if self._reported == (opened, to_broker_bytes, to_client_bytes) and not self.connections:
            return None
        row = TrafficRow(
            listener,
            broker_id,
            self.opened - opened,
            self.connections,
            self.to_broker_bytes - to_broker_bytes,
            self.to_client_bytes - to_client_bytes,
            self._in_flight_peak,
            self._apis(),
            dict(self._clients.most_common(MAX_CLIENTS_REPORTED)),
        )
        self._in_flight_peak = 0
        self._samples = {}
        self._clients = Counter()
        return row

    def _apis(self) -> dict[int, ApiTraffic]:
        requests, before = self.wire.requests, self._reported_requests
        if requests == before and not self._samples:
            return {}
        self._reported_requests = list(requests)
        return {
            key: self._api(key, now - was)
            for key, (now, was) in enumerate(zip(requests, before, strict=True))
            if now > was or key in self._samples
        }

    def _api(self, api_key: int, requests: int) -> ApiTraffic:
        samples = self._samples.get(api_key)
        if samples is None:
            return ApiTraffic(requests)
        return ApiTraffic(
            requests,
            samples.latency.total(),
            samples.request_bytes,
            samples.response_bytes,
            dict(samples.latency),
        )


class Sampling:
    """Chooses which reads from the clients of a worker are sampled.

    ``reads`` is the number of reads up to the next sample; below 0 no read is sampled.
    """

    __slots__ = ("reads",)

    def __init__(self) -> None:
        self.reads = 0

    def schedule_next(self) -> None:
        """Choose the next sample at random, so that samples never follow the rhythm of a client."""
        self.reads = random.randrange(1, 2 * READS_PER_SAMPLE)


class TrafficLog:
    """The traffic and the connections that control has no message about yet.

    Args:
        worker: identifies the worker and its process.
        rows: takes the traffic since its last call.
        now_s: by the monotonic clock, like all times here; the wall clock may jump.
    """

    def __init__(self, worker: str, rows: Callable[[], tuple[TrafficRow, ...]], now_s: float) -> None:
        self._worker = worker
        self._rows = rows
        self._connections: deque[ConnectionRow] = deque()
        self._dropped = 0
        self._since_s = now_s
        self._reported = 0

    def note(self, row: ConnectionRow) -> None:
        """Add the begin or the end of a connection."""
        if len(self._connections) < MAX_CONNECTIONS_REPORTED:
            self._connections.append(row)
        else:
            self._dropped += 1

    def take(self, now_s: float, wall_ms: int) -> TrafficMessage:
        """Return the message for control with everything since the last one."""
        self._reported += 1
        message = TrafficMessage(
            self._worker,
            wall_ms,
            round((now_s - self._since_s) * 1000.0),
            self._rows(),
            tuple(self._connections),
            self._dropped,
            self._reported,
        )
        self._connections.clear()
        self._dropped = 0
        self._since_s = now_s
        return message
