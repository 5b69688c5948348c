"""The traffic that a worker counts, and its messages to control."""

from __future__ import annotations

import pytest

from fleet.core.traffic import ApiTraffic
from fleet.proxy.counters import Counters
from fleet.proxy.traffic import (
    MAX_CLIENTS_COUNTED,
    MAX_CLIENTS_REPORTED,
    MAX_CONNECTIONS_REPORTED,
    OTHER_CLIENTS,
    Traffic,
    TrafficLog,
    bucket_of,
)
from fleet.runtime.ipc import ConnectionRow, TrafficRow

PRODUCE, FETCH = 0, 1


@pytest.mark.parametrize(
    ("took_s", "bucket"), [(0.0, 0), (1e-6, 0), (1.19e-6, 1), (2e-6, 4), (1e-3, 39), (1.0, 79), (3600.0, 126)]
)
def test_bucket_is_a_quarter_of_an_octave(took_s: float, bucket: int) -> None:
    assert bucket_of(took_s) == bucket
    assert took_s <= 1e-6 or 2 ** (bucket / 4) <= took_s * 1e6 < 2 ** ((bucket + 1) / 4)


def test_row_has_the_traffic_since_the_previous_row() -> None:
    traffic = Traffic()
    assert traffic.take("inside", 3) is None

    traffic.opened, traffic.connections, traffic.to_broker_bytes, traffic.to_client_bytes = 3, 2, 500, 7_000
    traffic.wire.requests[FETCH] = 40
    traffic.wire.requests[PRODUCE] = 2
    traffic.sampled("a", 4)
    traffic.sampled("b", 9)
    traffic.sampled("a", 1)
    traffic.answered(FETCH, 100, 3_000, 0.001)
    traffic.answered(FETCH, 120, 4_000, 0.001)
    apis = {PRODUCE: ApiTraffic(2), FETCH: ApiTraffic(40, 2, 220, 7_000, {39: 2})}
    assert traffic.take("inside", 3) == TrafficRow("inside", 3, 3, 2, 500, 7_000, 9, apis, {"a": 2, "b": 1})

    traffic.wire.requests[FETCH] += 1
    traffic.to_client_bytes += 10
    assert traffic.take("inside", 3) == TrafficRow("inside", 3, 0, 2, 0, 10, 0, {FETCH: ApiTraffic(1)}, {})
    # An answer may arrive without a request; open connections are reported even without traffic.
    traffic.answered(FETCH, 1, 2, 2e-6)
    apis = {FETCH: ApiTraffic(0, 1, 1, 2, {4: 1})}
    assert traffic.take("inside", 3) == TrafficRow("inside", 3, 0, 2, 0, 0, 0, apis, {})
    traffic.connections = 0
    assert traffic.take("inside", 3) is None


def test_clients_are_distinguished_up_to_a_limit() -> None:
    traffic = Traffic()
    traffic.connections = 1
    for number in range(MAX_CLIENTS_COUNTED + 50):
        traffic.sampled(f"c{number}", 1)
    for _ in range(3):
        traffic.sampled("c7", 1)
    row = traffic.take("inside", 1)
    assert row is not None
    assert len(row.clients) == MAX_CLIENTS_REPORTED
    assert list(row.clients.items())[:2] == [(OTHER_CLIENTS, 50), ("c7", 4)]


def test_totals_are_by_broker_and_rows_by_listener_too() -> None:
    counters = Counters()
    inside, outside = counters.traffic("inside", 1), counters.traffic("outside", 1)
    assert counters.traffic("inside", 1) is inside
    inside.wire.requests[FETCH], outside.wire.requests[FETCH] = 3, 4
    inside.to_broker_bytes, outside.to_broker_bytes = 10, 20
    inside.connections, outside.connections = 1, 2
    snapshot = counters.snapshot({}, 1, 1, False)
    assert (snapshot.requests, snapshot.bytes_to_broker, snapshot.connections) == (
        {FETCH: 7},
        {1: 30},
        {1: 3},
    )
    assert [(row.listener, row.bytes_to_broker) for row in counters.rows()] == [
        ("inside", 10),
        ("outside", 20),
    ]


def connection(number: int) -> ConnectionRow:
    return ConnectionRow(number, 5, "inside", 1, True, "192.0.2.7:4", "c")


def test_connections_above_the_limit_are_only_counted() -> None:
    rows = (TrafficRow("inside", 1, 0, 1, 0, 0, 0, {}, {}),)
    log = TrafficLog("0-77-1", lambda: rows, 1.0)
    for number in range(MAX_CONNECTIONS_REPORTED + 3):
        log.note(connection(number))
    message = log.take(2.5, wall_ms=7_000)
    assert (message.worker, message.at_ms, message.period_ms, message.dropped) == ("0-77-1", 7_000, 1_500, 3)
    assert message.rows == rows
    assert message.connections == tuple(map(connection, range(MAX_CONNECTIONS_REPORTED)))
    message = log.take(3.5, wall_ms=7_000)
    assert (message.connections, message.dropped) == ((), 0)


def test_clock_jump_changes_neither_period_nor_number() -> None:
    """Found: the period was as long as the jump, and negative when the clock was set back."""
    log = TrafficLog("0-77-1", tuple, 1.0)
    messages = [log.take(2.0, wall_ms=5_000), log.take(3.0, wall_ms=3_605_000), log.take(4.0, wall_ms=5_000)]
    assert [each.period_ms for each in messages] == [1_000, 1_000, 1_000]
    assert [(each.at_ms, each.number) for each in messages] == [(5_000, 1), (3_605_000, 2), (5_000, 3)]
