"""Anomalies that are found, and similar events that are not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from fleet.core.event_schema import ConnectionEvent, LivenessEvent
from fleet.core.model import Liveness
from fleet.pipeline.anomalies import (
    FLAP_WINDOW_MS,
    MIN_FLAPS,
    MIN_ONE_SIDED_MS,
    MIN_STALE_MS,
    MIN_STALE_OPENS,
    flapping,
    one_sided,
    stale_clients,
)
from fleet.pipeline.spark_schema import ddl_of

pytestmark = pytest.mark.size("test")

BEGIN_MS = 1_790_000_000_000 // FLAP_WINDOW_MS * FLAP_WINDOW_MS
UNTIL_MS = BEGIN_MS + 3_600_000

_numbers = count()


def table(spark: SparkSession, kind: type[Any], rows: Sequence[Any]) -> DataFrame:
    """Return a table with each row twice, as at-least-once delivery may give."""
    names = kind.__dataclass_fields__
    return spark.createDataFrame(
        [tuple(getattr(row, name) for name in names) for row in rows for _ in range(2)], ddl_of(kind)
    )


def suspected(observer: str, suspect: str, from_ms: int, to_ms: int | None) -> list[LivenessEvent]:
    """Return the events of a suspicion; `to_ms` None: it lasts."""
    times = [(from_ms, Liveness.UP, Liveness.SUSPECT)]
    if to_ms is not None:
        times.append((to_ms, Liveness.SUSPECT, Liveness.UP))
    return [
        LivenessEvent(
            f"l{next(_numbers):05}", "f", observer, suspect, before, after, "silent", BEGIN_MS + at_ms
        )
        for at_ms, before, after in times
    ]


def test_repeatedly_suspected_member_is_flapping(spark: SparkSession) -> None:
    events = []
    for number in range(MIN_FLAPS):
        events += suspected("p1", "p2", 20_000 * number, 20_000 * number + 5_000)
    for number in range(MIN_FLAPS - 1):
        events += suspected("p1", "p3", 20_000 * number, 20_000 * number + 5_000)
    for number in range(MIN_FLAPS):
        events += suspected(
            "p3", "p2", (FLAP_WINDOW_MS + 1_000) * number, (FLAP_WINDOW_MS + 1_000) * number + 500
        )
    (found,) = flapping(table(spark, LivenessEvent, events)).collect()
    assert (found.told_by, found.proxy_id, found.flaps) == ("p1", "p2", MIN_FLAPS)
    assert (found.from_ms, found.to_ms) == (BEGIN_MS, BEGIN_MS + 20_000 * (MIN_FLAPS - 1))


def test_suspicion_without_counterpart_is_one_sided(spark: SparkSession) -> None:
    long = MIN_ONE_SIDED_MS + 1
    events = [
        *suspected("p1", "p2", 0, long),
        *suspected("p1", "p3", 0, long),
        *suspected("p3", "p1", 5_000, 6_000),
        *suspected("p2", "p3", 0, MIN_ONE_SIDED_MS - 1),
        *suspected("p3", "p2", 60_000, None),
        *suspected("p2", "p1", 2 * long, 2 * long + 100),  # too late to match the first suspicion
    ]
    rows = one_sided(table(spark, LivenessEvent, events), UNTIL_MS).collect()
    assert {(row.told_by, row.proxy_id, row.from_ms, row.to_ms) for row in rows} == {
        ("p1", "p2", BEGIN_MS, BEGIN_MS + long),
        ("p3", "p2", BEGIN_MS + 60_000, UNTIL_MS),
    }


def opened(
    host: str, client_id: str, at_ms: int, *, owned: bool = False, broker_id: int = 1
) -> ConnectionEvent:
    name = f"c{next(_numbers):05}"
    return ConnectionEvent(
        id=name,
        fleet="f",
        told_by="p1",
        connection=name,
        what="opened",
        why=None,
        listener="inside",
        broker_id=broker_id,
        owned=owned,
        client=f"{host}:{40_000 + next(_numbers)}",
        client_id=client_id,
        open_ms=0,
        at_ms=BEGIN_MS + at_ms,
    )


def test_client_that_keeps_stale_address_is_found(spark: SparkSession) -> None:
    step_ms = MIN_STALE_MS // (MIN_STALE_OPENS - 1)
    events = [
        *(opened("192.0.2.1", "stays", step_ms * number) for number in range(MIN_STALE_OPENS)),
        *(opened("192.0.2.2", "leaves", 100 * number) for number in range(MIN_STALE_OPENS)),
        *(opened("192.0.2.3", "rare", step_ms * number) for number in range(MIN_STALE_OPENS - 1)),
        *(opened("192.0.2.4", "right", step_ms * number, owned=True) for number in range(MIN_STALE_OPENS)),
        *(
            opened("192.0.2.5", "bootstrap", step_ms * number, broker_id=-1)
            for number in range(MIN_STALE_OPENS)
        ),
    ]
    (found,) = stale_clients(table(spark, ConnectionEvent, events)).collect()
    assert (found.host, found.client_id, found.broker_id, found.told_by) == ("192.0.2.1", "stays", 1, "p1")
    assert (found.from_ms, found.to_ms, found.opens) == (BEGIN_MS, BEGIN_MS + MIN_STALE_MS, MIN_STALE_OPENS)
