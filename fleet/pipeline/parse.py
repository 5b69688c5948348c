"""From records to events, and to dead letters: records that are no event, with the reason.

All in Spark's own expressions: no Python sees a record that comes here as text. An event with fields that are
not known is an event; one that lacks a field, or is of a later version, is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import reduce
from operator import and_
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fleet.pipeline.event_decoder import TOLD
from fleet.pipeline.spark_schema import ddl_of, wanted_of

REASON: Final = "reason"
_CORRUPT: Final = "_corrupt"
_HEAD: Final = "_head"
_HEAD_DDL: Final = "kind string, version bigint"
_BODIES: Final = "_bodies"
VERSION: Final = 1


def parse(records: DataFrame, kinds: Mapping[str, type[Any]]) -> DataFrame:
    """Add a column for the event of each kind, of which one at most is not null, and `reason` where all are.

    Args:
        records: with a column `value`.
        kinds: what a record's field `kind` may say → the event's class.
    """
    text = F.col("value").cast("string")
    read = _once(records, _HEAD, _from_json(text, _HEAD_DDL))
    bodies = (
        F.when(F.col(f"{_HEAD}.kind") == name, _from_json(text, ddl_of(event))).alias(name)
        for name, event in kinds.items()
    )
    read = _once(read, _BODIES, F.struct(*bodies))
    kind, version = F.col(f"{_HEAD}.kind"), F.col(f"{_HEAD}.version")
    reason = (
        F.when(text.isNull() | F.col(f"{_HEAD}.{_CORRUPT}").isNotNull(), F.lit("not a JSON object"))
        .when(kind.isNull(), F.lit("no kind"))
        .when(version.isNull(), F.lit("no version"))
        .when(version > VERSION, F.concat(F.lit("version "), version.cast("string")))
    )
    for name, event in kinds.items():
        reason = reason.when(kind == name, _lacks(F.col(f"{_BODIES}.{name}"), event))
    read = _once(read, REASON, reason.when(~kind.isin(*kinds), F.concat(F.lit("unknown kind "), kind)))
    for name in kinds:
        body = F.col(f"{_BODIES}.{name}").dropFields(_CORRUPT)
        read = read.withColumn(name, F.when(F.col(REASON).isNull(), body))
    return read.drop(_HEAD, _BODIES)


def only(records: DataFrame, kind: str, event: type[Any]) -> DataFrame:
    """The events of one kind, a column for each field: those that `parse` finds, without others' reasons.

    Args:
        records: with a column `value`, and perhaps `TOLD`: events that are decoded, with some of the fields.
        event: the class of the event, or one with some of its fields, of which the others are not read.
    """
    body = _from_json(F.col("value").cast("string"), ddl_of(event))
    if TOLD in records.columns:
        body = F.when(F.col(TOLD).isNotNull(), _as(event, records)).otherwise(body)
    read = records.select(F.inline(F.array(body)))  # each record parsed once, as in `_once`
    known = F.col(_CORRUPT).isNull() & (F.col("kind") == kind) & (F.col("version") <= VERSION)
    return read.where(reduce(and_, (F.col(name).isNotNull() for name in wanted_of(event)), known)).drop(
        _CORRUPT
    )


def _as(event: type[Any], records: DataFrame) -> Column:
    """What is told, as `_from_json` gives it; fields that are not told are null."""
    known: Any = records.schema[TOLD].dataType
    nothing = _from_json(F.lit(None).cast("string"), ddl_of(event))
    names = (each.name for each in fields(event))
    told = ((F.col(TOLD) if name in known.names else nothing)[name].alias(name) for name in names)
    return F.struct(*told, nothing[_CORRUPT].alias(_CORRUPT))


def _once(rows: DataFrame, name: str, column: Column) -> DataFrame:
    """Add a column that is computed once for each row: as a plain column, the optimizer would write its
    expression out wherever it is referred to, and a record would be parsed some twenty times."""
    return rows.select("*", F.explode(F.array(column)).alias(name))


def _from_json(text: Column, ddl: str) -> Column:
    """The columns, and `_CORRUPT` where the text is not JSON or a column is of another type."""
    return F.from_json(text, f"{ddl}, {_CORRUPT} string", {"columnNameOfCorruptRecord": _CORRUPT})


def _lacks(body: Column, event: type[Any]) -> Column:
    """The first field that an event must have and has not; null where it has all."""
    found = F.when(body[_CORRUPT].isNotNull(), F.lit("a field of another type"))
    for name in wanted_of(event):
        found = found.when(body[name].isNull(), F.lit(f"no {name}"))
    return found


def events(parsed: DataFrame, kind: str) -> DataFrame:
    """The events of one kind, a column for each field."""
    return parsed.where(F.col(kind).isNotNull()).select(f"{kind}.*")


def dead_letters(parsed: DataFrame) -> DataFrame:
    """What was no event, as records for a topic: the reason, and where and what it was, in JSON."""
    place = F.concat_ws("/", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))
    letter = F.struct(
        F.lit("dead_letter").alias("kind"),
        F.lit(VERSION).alias("version"),
        place.alias("id"),
        F.col(REASON).alias("reason"),
        F.col("topic"),
        F.col("partition"),
        F.col("offset"),
        F.base64("value").alias("value_base64"),
    )
    bad = parsed.where(F.col(REASON).isNotNull())
    return bad.select(place.cast("binary").alias("key"), F.to_json(letter).cast("binary").alias("value"))
