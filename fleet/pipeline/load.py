"""The load of each identity by minute, from traffic events, and the weight of each identity, from its load.

The load uses only Spark's own expressions, because there are many events: one a second from each worker,
listener and broker. The weight uses `fleet.pipeline.forecast`, for each identity and minute.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from fleet.core.event_schema import EVENTS, WeightEvent
from fleet.core.model import BrokerId
from fleet.pipeline.forecast import SeasonalForecast

IDENTITY: Final = ("fleet", "broker_id")
WATERMARK_DELAY: Final = "2 minutes"
"""Delay between the end of a minute and the writing of its load. The newest event is the clock.

Events that arrive after the delay are ignored: they waited in a spool, and do not describe the
current load."""
CPU_US_PER_REQUEST: Final = 30.0
CPU_US_PER_BYTE: Final = 0.35e-3
"""Processor time of a worker, as measured (docs/performance.md: `small` and `produce`)."""
FORECAST_MINUTES: Final = 30
"""A weight is the load expected over this time. For a shorter time, moving a connection is not worthwhile."""
MINUTE_COLUMNS: Final = (*IDENTITY, "minute", "requests", "bytes", "cpu_us")
_STATE_SCHEMA: Final = "season string"
_RECORD_SCHEMA: Final = "key binary, value binary"


@dataclass(frozen=True, slots=True)
class ApiRequests:
    """The fields of `fleet.runtime.ipc.ApiTraffic` that the job sums."""

    requests: int


@dataclass(frozen=True, slots=True)
class TrafficBytes:
    """The fields of a `TrafficEvent` that the job reads, without the requests."""

    id: str
    fleet: str
    broker_id: BrokerId
    at_ms: int
    bytes_to_broker: int
    bytes_to_client: int


@dataclass(frozen=True, slots=True)
class SummedTraffic(TrafficBytes):
    """A traffic event with the sum of its requests."""

    requests: int
    kind: Literal["traffic"] = "traffic"
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class Traffic(TrafficBytes):
    """Any traffic event; an older one has its requests only by API."""

    requests: int | None = None
    apis: Mapping[int, ApiRequests] | None = None
    kind: Literal["traffic"] = "traffic"
    version: Literal[1] = 1


def minutes(traffic: DataFrame) -> DataFrame:
    """Sum requests and bytes, and estimate processor time, by identity and minute, in a stream or a batch.

    Args:
        traffic: a column for each field of `Traffic`; events may be repeated.
    """
    by_api = F.aggregate(
        F.map_values("apis"), F.lit(0).cast("bigint"), lambda sum, api: sum + api["requests"]
    )
    total_bytes = F.col("bytes_to_broker") + F.col("bytes_to_client")
    # Repeated events give equal structs of numbers, with a hash in place of the id.
    event = F.struct(
        F.xxhash64("id").alias("id"),
        F.coalesce("requests", by_api).alias("requests"),
        total_bytes.alias("bytes"),
    )
    rows = traffic.where("broker_id >= 0").select(
        *IDENTITY, F.timestamp_millis("at_ms").alias("at"), event.alias("event")
    )
    # A null in one event would make the sum of its minute null.
    rows = rows.where("event.requests is not null")
    if rows.isStreaming:
        rows = rows.withWatermark("at", WATERMARK_DELAY)
    sets = rows.groupBy(*IDENTITY, F.window("at", "1 minute")).agg(F.collect_set("event").alias("events"))
    sums = sets.select(*IDENTITY, "window", _sum_of("requests"), _sum_of("bytes"))
    cpu_us = F.col("requests") * CPU_US_PER_REQUEST + F.col("bytes") * CPU_US_PER_BYTE
    return (
        sums.withColumn("minute", F.col("window.start")).withColumn("cpu_us", cpu_us).select(*MINUTE_COLUMNS)
    )


def _sum_of(name: str) -> Column:
    """Sum a field over the column `events`."""
    return F.aggregate("events", F.lit(0).cast("bigint"), lambda sum, event: sum + event[name]).alias(name)


def weights(loads: DataFrame) -> DataFrame:
    """Return records for the topic of weights, with key and value, from a stream of the rows of `minutes`."""
    costs = loads.select(*IDENTITY, F.unix_millis("minute").alias("minute_ms"), "cpu_us")
    return costs.groupBy(*IDENTITY).applyInPandasWithState(
        _weigh, _RECORD_SCHEMA, _STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
    )


def _weigh(
    key: tuple[Any, ...], batches: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    fleet, broker_id = key
    known = SeasonalForecast()
    if state.exists:
        stored = json.loads(state.get[0])
        known = SeasonalForecast(**{**stored, "season": tuple(stored["season"])})
    seen = pd.concat([batch[["minute_ms", "cpu_us"]] for batch in batches]).sort_values("minute_ms")
    for minute_ms, cpu_us in seen.itertuples(index=False):
        known = known.learn(int(minute_ms), float(cpu_us))
    state.update((json.dumps(asdict(known)),))
    place = f"{fleet}/{broker_id}"
    weight = WeightEvent(
        id=f"{place}/weight/{known.until_ms}",
        fleet=str(fleet),
        broker_id=int(broker_id),
        weight=known.predict(FORECAST_MINUTES) / 60,
        at_ms=known.until_ms,
    )
    yield pd.DataFrame({"key": [place.encode()], "value": [EVENTS.encode(weight)]})
