"""Parses records into events, and into dead letters: records that are not events, with the reason.

The parser uses only Spark's own expressions, so no Python code handles the text of a record. A record with
unknown fields is an event. A record that lacks a field, or has a later version, is not an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import reduce
from operator import and_
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fleet.pipeline.event_decoder import DECODED
from fleet.pipeline.spark_schema import ddl_of, required_fields

REASON: Final = "reason"
_CORRUPT: Final = "_corrupt"
_HEAD: Final = "_head"
_HEAD_DDL: Final = "kind string, version bigint"
_BODIES: Final = "_bodies"
EVENT_VERSION: Final = 1


def parse(records: DataFrame, kinds: Mapping[str, type[Any]]) -> DataFrame:
    """Add a column for the events of each kind, and a column `reason`.

    At most one of the columns of events is not null. If all are null, `reason` states why.

    Args:
        records: records with a column `value`.
        kinds: value of a record's field `kind` → class of the event.
    """
    text = F.col("value").cast("string")
    read = _with_single_evaluation(records, _HEAD, _from_json(text, _HEAD_DDL))
    bodies = (
        F.when(F.col(f"{_HEAD}.kind") == name, _from_json(text, ddl_of(event))).alias(name)
        for name, event in kinds.items()
    )
    read = _with_single_evaluation(read, _BODIES, F.struct(*bodies))
    kind, version = F.col(f"{_HEAD}.kind"), F.col(f"{_HEAD}.version")
    reason = (
        F.when(text.isNull() | F.col(f"{_HEAD}.{_CORRUPT}").isNotNull(), F.lit("not a JSON object"))
        .when(kind.isNull(), F.lit("no kind"))
        .when(version.isNull(), F.lit("no version"))
        .when(version > EVENT_VERSION, F.concat(F.lit("version "), version.cast("string")))
    )
    for name, event in kinds.items():
        reason = reason.when(kind == name, _missing_field_reason(F.col(f"{_BODIES}.{name}"), event))
    read = _with_single_evaluation(
        read, REASON, reason.when(~kind.isin(*kinds), F.concat(F.lit("unknown kind "), kind))
    )
    for name in kinds:
        body = F.col(f"{_BODIES}.{name}").dropFields(_CORRUPT)
        read = read.withColumn(name, F.when(F.col(REASON).isNull(), body))
    return read.drop(_HEAD, _BODIES)


def parse_kind(records: DataFrame, kind: str, event: type[Any]) -> DataFrame:
    """Return the events of one kind, a column for each field: the same events as `parse`, without reasons.

    Args:
        records: records with a column `value`, and optionally `DECODED` with some fields of decoded events.
        event: class of the event, or a class with some of its fields; other fields are not read.
    """
    body = _from_json(F.col("value").cast("string"), ddl_of(event))
    if DECODED in records.columns:
        body = F.when(F.col(DECODED).isNotNull(), _as_parsed(event, records)).otherwise(body)
    # `inline` parses each record only once, see `_with_single_evaluation`.
    read = records.select(F.inline(F.array(body)))
    known = F.col(_CORRUPT).isNull() & (F.col("kind") == kind) & (F.col("version") <= EVENT_VERSION)
    return read.where(reduce(and_, (F.col(name).isNotNull() for name in required_fields(event)), known)).drop(
        _CORRUPT
    )


def _as_parsed(event: type[Any], records: DataFrame) -> Column:
    """Return decoded events in the form of `_from_json`; fields that are not decoded are null."""
    known: Any = records.schema[DECODED].dataType
    nothing = _from_json(F.lit(None).cast("string"), ddl_of(event))
    names = (each.name for each in fields(event))
    columns = ((F.col(DECODED) if name in known.names else nothing)[name].alias(name) for name in names)
    return F.struct(*columns, nothing[_CORRUPT].alias(_CORRUPT))


def _with_single_evaluation(rows: DataFrame, name: str, column: Column) -> DataFrame:
    """Add a column that Spark computes once for each row.

    The optimizer copies the expression of a plain column to each of its uses: it would parse a record about
    twenty times.
    """
    return rows.select("*", F.explode(F.array(column)).alias(name))


def _from_json(text: Column, ddl: str) -> Column:
    """Parse the columns; `_CORRUPT` is not null if the text is not JSON or a field has another type."""
    return F.from_json(text, f"{ddl}, {_CORRUPT} string", {"columnNameOfCorruptRecord": _CORRUPT})


def _missing_field_reason(body: Column, event: type[Any]) -> Column:
    """Return the reason for the first required field that is missing; null if none is missing."""
    found = F.when(body[_CORRUPT].isNotNull(), F.lit("a field of another type"))
    for name in required_fields(event):
        found = found.when(body[name].isNull(), F.lit(f"no {name}"))
    return found


def events(parsed: DataFrame, kind: str) -> DataFrame:
    """Return the events of one kind from the result of `parse`, a column for each field."""
    return parsed.where(F.col(kind).isNotNull()).select(f"{kind}.*")


def dead_letters(parsed: DataFrame) -> DataFrame:
    """Return records for a topic from all records that are not events.

    Each value is JSON with the reason, and with the place and the content of the record.
    """
    place = F.concat_ws("/", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))
    letter = F.struct(
        F.lit("dead_letter").alias("kind"),
        F.lit(EVENT_VERSION).alias("version"),
        place.alias("id"),
        F.col(REASON).alias("reason"),
        F.col("topic"),
        F.col("partition"),
        F.col("offset"),
        F.base64("value").alias("value_base64"),
    )
    bad = parsed.where(F.col(REASON).isNotNull())
    return bad.select(place.cast("binary").alias("key"), F.to_json(letter).cast("binary").alias("value"))
