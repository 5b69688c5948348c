"""How much passes each identity: by the minute, from traffic events, and what it weighs, from that.

The first is Spark's own expressions, for there are many events: one a second from each worker, listener and
broker. The second is `fleet.pipeline.forecast`, for each identity and minute.
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
LATE: Final = "2 minutes"
"""When a minute has been over for so long, by the newest event, it is told; what comes later does not count:
what has waited in a spool for longer says nothing of now."""
CPU_US_PER_REQUEST: Final = 30.0
CPU_US_PER_BYTE: Final = 0.35e-3
"""Of a worker, as measured (docs/performance.md: `small` and `produce`)."""
AHEAD_MINUTES: Final = 30
"""A weight is what is expected for so long: for less, no connection need move."""
MINUTE_COLUMNS: Final = (*IDENTITY, "minute", "requests", "bytes", "cpu_us")
_STATE_SCHEMA: Final = "season string"
_RECORD_SCHEMA: Final = "key binary, value binary"


@dataclass(frozen=True, slots=True)
class Requests:
    """Of `fleet.runtime.ipc.ApiTraffic`, what is summed."""

    requests: int


@dataclass(frozen=True, slots=True)
class Sized:
    """Of a `TrafficEvent`, what is summed but for the requests: the rest need not be read."""

    id: str
    fleet: str
    broker_id: BrokerId
    at_ms: int
    bytes_to_broker: int
    bytes_to_client: int


@dataclass(frozen=True, slots=True)
class Summed(Sized):
    """One that says the sum of its requests."""

    requests: int
    kind: Literal["traffic"] = "traffic"
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class Passed(Sized):
    """One that may be older: it had its requests by API alone."""

    requests: int | None = None
    apis: Mapping[int, Requests] | None = None
    kind: Literal["traffic"] = "traffic"
    version: Literal[1] = 1


def minutes(traffic: DataFrame) -> DataFrame:
    """Requests, bytes and an estimate of processor time, by identity and minute; of a stream or all at once.

    Args:
        traffic: a column for each field of `Passed`; events may be there more than once.
    """
    by_api = F.aggregate(
        F.map_values("apis"), F.lit(0).cast("bigint"), lambda sum, api: sum + api["requests"]
    )
    passed = F.col("bytes_to_broker") + F.col("bytes_to_client")
    # Of an event that is told twice, the same: numbers, and a hash for its name.
    event = F.struct(
        F.xxhash64("id").alias("id"), F.coalesce("requests", by_api).alias("requests"), passed.alias("bytes")
    )
    told = traffic.where("broker_id >= 0").select(
        *IDENTITY, F.timestamp_millis("at_ms").alias("at"), event.alias("event")
    )
    told = told.where(
        "event.requests is not null"
    )  # an event that does not say it would make its minute null
    if told.isStreaming:
        told = told.withWatermark("at", LATE)
    sets = told.groupBy(*IDENTITY, F.window("at", "1 minute")).agg(F.collect_set("event").alias("events"))
    sums = sets.select(*IDENTITY, "window", _sum_of("requests"), _sum_of("bytes"))
    cpu_us = F.col("requests") * CPU_US_PER_REQUEST + F.col("bytes") * CPU_US_PER_BYTE
    return (
        sums.withColumn("minute", F.col("window.start")).withColumn("cpu_us", cpu_us).select(*MINUTE_COLUMNS)
    )


def _sum_of(name: str) -> Column:
    """Over the column `events`."""
    return F.aggregate("events", F.lit(0).cast("bigint"), lambda sum, event: sum + event[name]).alias(name)


def weights(loads: DataFrame) -> DataFrame:
    """Records for the topic of weights, a key and a value each, from a stream of what `minutes` gives."""
    told = loads.select(*IDENTITY, F.unix_millis("minute").alias("minute_ms"), "cpu_us")
    return told.groupBy(*IDENTITY).applyInPandasWithState(
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
        weight=known.ahead(AHEAD_MINUTES) / 60,
        at_ms=known.until_ms,
    )
    yield pd.DataFrame({"key": [place.encode()], "value": [EVENTS.encode(weight)]})
