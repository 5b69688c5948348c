"""The ownership timeline as a job of Spark: `fleet.pipeline.timeline` for each identity.

The stream of rows is append-only. Of two rows with the same key the one with the greater revision holds,
which `current` picks; so a file that is written is never changed.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, Final

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from fleet.pipeline.spark_schema import ddl_of
from fleet.pipeline.timeline import Change, Known, Row

SETTLED_AFTER: Final = "15 minutes"
"""For longer than a member that starts tells of what is past (`fleet.events.recorder.RETOLD_MS`)."""
# What Spark makes of our frames is of no concern to whoever reads the log.
warnings.filterwarnings("ignore", "The behavior of DataFrame concatenation", FutureWarning)

IDENTITY: Final = ("fleet", "broker_id")
ROW_SCHEMA: Final = f"fleet string, broker_id bigint, {ddl_of(Row)}, revision bigint"
_STATE_SCHEMA: Final = "known string, revision bigint"
_NO_TIME: Final = -1


def timeline(ownership: DataFrame) -> DataFrame:
    """Rows (see `ROW_SCHEMA`) from ownership events, for a stream or all at once."""
    proposed = F.timestamp_millis("proposed_at_ms")
    told = ownership.select(
        *IDENTITY,
        proposed.alias("proposed_at"),
        F.to_json(F.struct(*Change.__dataclass_fields__)).alias("change"),
    )
    if not ownership.isStreaming:
        return told.groupBy(*IDENTITY).applyInPandas(_all_at_once, ROW_SCHEMA)
    return (
        told.withWatermark("proposed_at", SETTLED_AFTER)
        .groupBy(*IDENTITY)
        .applyInPandasWithState(
            _batch_by_batch, ROW_SCHEMA, _STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
        )
    )


def current(rows: DataFrame) -> DataFrame:
    """The rows that hold."""
    other = F.when(F.col("what") == "overlap", F.col("owners"))
    key = (*IDENTITY, "what", "generation", "other")
    columns = [name for name in rows.columns if name not in key]
    newest = F.max_by(F.struct(*columns), "revision").alias("newest")
    grouped = rows.withColumn("other", other).groupBy(*key).agg(newest)
    return grouped.select(*IDENTITY, "what", "generation", "newest.*").where(~F.col("withdrawn"))


def read(spark: SparkSession, place: str) -> DataFrame:
    """The rows that are written there; what was written before there was some column has null in it."""
    return spark.read.schema(f"{ROW_SCHEMA}, day date").parquet(place).drop("day")


def _all_at_once(key: tuple[Any, ...], told: pd.DataFrame) -> pd.DataFrame:
    _, rows = Known().learn(_changes(told["change"]), _NO_TIME)
    return _frame(key, rows, 1)


def _batch_by_batch(
    key: tuple[Any, ...], batches: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    known, revision = Known(), 0
    if state.exists:
        stored, revision = state.get
        known = _decode(stored)
    told = [change for batch in batches for change in _changes(batch["change"])]
    known, rows = known.learn(told, state.getCurrentWatermarkMs())
    revision += 1
    state.update((_encode(known), revision))
    if rows:
        yield _frame(key, rows, revision)


def _changes(column: Iterable[str]) -> list[Change]:
    return [_change(json.loads(text)) for text in column]


def _change(fields: dict[str, Any]) -> Change:
    before = fields.pop("before", None)
    return Change(
        **{**fields, "owners": tuple(fields["owners"]), "before": None if before is None else tuple(before)}
    )


def _encode(known: Known) -> str:
    return json.dumps({"changes": [asdict(each) for each in known.changes], "since_ms": known.since_ms})


def _decode(text: str) -> Known:
    stored = json.loads(text)
    return Known(tuple(map(_change, stored["changes"])), stored["since_ms"])


def _frame(key: tuple[Any, ...], rows: list[Row], revision: int) -> pd.DataFrame:
    """Whole numbers stay so where some of them are null."""
    fleet, broker_id = key
    table = pd.DataFrame(
        [{"fleet": fleet, "broker_id": broker_id, **asdict(row), "revision": revision} for row in rows],
        columns=["fleet", "broker_id", *Row.__dataclass_fields__, "revision"],
    )
    for name in table.columns:
        if name.endswith("_ms"):
            table[name] = table[name].astype("Int64")
    table["owners"] = table["owners"].map(list)
    return table
