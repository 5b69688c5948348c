"""The ownership timeline as a Spark job: `fleet.pipeline.timeline` for each identity.

The stream of rows is append-only, so a written file never changes. Of two rows with the same key, the row
with the greater revision holds; `current` selects these rows.
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
from fleet.pipeline.timeline import Change, OwnershipHistory, Row

SETTLED_AFTER: Final = "15 minutes"
"""Must be longer than the age of commands that a starting member reports: `REPLAY_LIMIT_MS` of
`fleet.events.recorder`."""
# The warning is about Spark's own use of our frames, so it does not help a reader of the log.
warnings.filterwarnings("ignore", "The behavior of DataFrame concatenation", FutureWarning)

IDENTITY: Final = ("fleet", "broker_id")
ROW_SCHEMA: Final = f"fleet string, broker_id bigint, {ddl_of(Row)}, revision bigint"
_STATE_SCHEMA: Final = "known string, revision bigint"
_NOTHING_SETTLED_MS: Final = -1


def timeline(ownership: DataFrame) -> DataFrame:
    """Return rows (see `ROW_SCHEMA`) for ownership events, in a stream or a batch."""
    proposed = F.timestamp_millis("proposed_at_ms")
    changes = ownership.select(
        *IDENTITY,
        proposed.alias("proposed_at"),
        F.to_json(F.struct(*Change.__dataclass_fields__)).alias("change"),
    )
    if not ownership.isStreaming:
        return changes.groupBy(*IDENTITY).applyInPandas(_process_batch, ROW_SCHEMA)
    return (
        changes.withWatermark("proposed_at", SETTLED_AFTER)
        .groupBy(*IDENTITY)
        .applyInPandasWithState(
            _process_stream, ROW_SCHEMA, _STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
        )
    )


def current(rows: DataFrame) -> DataFrame:
    """Return the rows that hold."""
    other = F.when(F.col("what") == "overlap", F.col("owners"))
    key = (*IDENTITY, "what", "generation", "other")
    columns = [name for name in rows.columns if name not in key]
    newest = F.max_by(F.struct(*columns), "revision").alias("newest")
    grouped = rows.withColumn("other", other).groupBy(*key).agg(newest)
    return grouped.select(*IDENTITY, "what", "generation", "newest.*").where(~F.col("withdrawn"))


def read(spark: SparkSession, place: str) -> DataFrame:
    """Read all rows of a table. A column is null in files that were written before the column existed."""
    return spark.read.schema(f"{ROW_SCHEMA}, day date").parquet(place).drop("day")


def _process_batch(key: tuple[Any, ...], reported: pd.DataFrame) -> pd.DataFrame:
    _, rows = OwnershipHistory().learn(_changes(reported["change"]), _NOTHING_SETTLED_MS)
    return _frame(key, rows, 1)


def _process_stream(
    key: tuple[Any, ...], batches: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    known, revision = OwnershipHistory(), 0
    if state.exists:
        stored, revision = state.get
        known = _decode(stored)
    reported = [change for batch in batches for change in _changes(batch["change"])]
    known, rows = known.learn(reported, state.getCurrentWatermarkMs())
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


def _encode(known: OwnershipHistory) -> str:
    return json.dumps({"changes": [asdict(each) for each in known.changes], "since_ms": known.since_ms})


def _decode(text: str) -> OwnershipHistory:
    stored = json.loads(text)
    return OwnershipHistory(tuple(map(_change, stored["changes"])), stored["since_ms"])


def _frame(key: tuple[Any, ...], rows: list[Row], revision: int) -> pd.DataFrame:
    """Make a frame of rows; columns of whole numbers may have nulls and stay whole numbers."""
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
