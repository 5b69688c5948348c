"""Parsing one kind of events, compared with parsing all kinds with reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fleet.core.event_schema import LivenessEvent, OwnershipEvent
from fleet.pipeline.event_decoder import EventDecoder
from fleet.pipeline.load import SummedTraffic, Traffic
from fleet.pipeline.observations import LedgerEntry
from fleet.pipeline.parse import events, parse, parse_kind
from fleet.pipeline.spark_schema import ddl_of

pytestmark = pytest.mark.size("test")

GOOD: dict[str, dict[str, Any]] = {
    "traffic": {
        "id": "one", "fleet": "demo", "broker_id": 3, "at_ms": 5, "bytes_to_broker": 7, "bytes_to_client": 9,
        "requests": 3, "apis": {"0": {"requests": 2, "sampled": 1}, "18": {"requests": 1}},
    },
    "ledger": {
        "client": "orders", "what": "log", "partition": 1, "producer_id": 2, "sequence": 3, "offset": None,
        "number": 4, "at_us": 5,
    },
}  # fmt: skip
PLAIN: dict[str, type[Any]] = {"traffic": SummedTraffic, "ledger": LedgerEntry}
EVENTS: dict[str, type[Any]] = {"traffic": Traffic, "ledger": LedgerEntry}
DEEP = 5_000
OTHER_VALUES: tuple[Any, ...] = (None, "", 7, -1, 2.5, True, [], {}, "7", [{}], {"0": 1}, 2**70)


def variants(good: dict[str, Any]) -> Iterator[bytes | None]:
    """Yield an event, variants with a field missing or replaced, and values that are not JSON objects."""
    yield json.dumps(good).encode()
    yield json.dumps({**good, "later": {"more": [1]}}).encode()
    yield json.dumps(good, indent=1).encode()
    for name in good:
        yield json.dumps({key: value for key, value in good.items() if key != name}).encode()
        for value in OTHER_VALUES:
            yield json.dumps({**good, name: value}).encode()
    text = json.dumps(good).encode()
    yield from (
        text[:-1],
        text + b"}",
        text + text,
        b"[" + text + b"]",
        b"",
        b" ",
        b"null",
        b"7",
        b"\xff\xfe",
        None,
        text[:-1] + b', "deep": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    )


def samples(but: str = "") -> list[bytes | None]:
    """Return variants of all kinds of events, without the field `but`."""
    whole = [{**GOOD[each], "kind": each, "version": 1} for each in EVENTS]
    good = [{name: value for name, value in each.items() if name != but} for each in whole]
    return [value for each in good for value in variants(each)]


@pytest.mark.parametrize("kind", EVENTS)
def test_decoded_event_equals_parsed_event(spark: SparkSession, kind: str) -> None:
    decode = EventDecoder(PLAIN[kind])
    # A field that the decoder ignores is null after decoding, but may be malformed for the parser.
    values = samples(but="apis")

    def found(decoded: Sequence[dict[str, Any]], rest: Sequence[bytes | None]) -> list[str]:
        rows = [*((None, event) for event in decoded), *((value, None) for value in rest)]
        records = spark.createDataFrame(rows, f"value binary, decoded struct<{ddl_of(PLAIN[kind])}>")
        return sorted(map(str, parse_kind(records, kind, EVENTS[kind]).collect()))

    parsed = found([], values)
    # One by one, because a number of more than 64 bits prevents the decoding of its whole batch.
    apart = [decode([value]) for value in values]
    decoded = [event for events, _ in apart for event in events.to_pylist()]
    rest = [value for _, values in apart for value in values]
    assert 3 < len(decoded) < len(parsed), "some values are decoded, and some are not"
    assert len(decoded) + len(rest) == len(values)
    assert found(decoded, rest) == parsed

    great = str(2**70).encode()
    small = [value for value in values if value is None or great not in value or value not in rest]
    together, still = decode(small)
    assert (together.to_pylist(), still) == (
        decoded,
        [each for each in rest if each is None or great not in each],
    )


def test_number_above_64_bits_is_not_decoded() -> None:
    good = {**GOOD["ledger"], "kind": "ledger", "version": 1, "offset": 1}
    values = [json.dumps({**good, "number": number}).encode() for number in (1, 2**70)]
    decoded, rest = EventDecoder(LedgerEntry)(values)
    assert (len(decoded), rest) == (0, values)


def test_decoder_rejects_class_with_nested_field() -> None:
    with pytest.raises(TypeError, match=r"Traffic\.apis must be int, str, bool or float"):
        EventDecoder(Traffic)


@pytest.mark.parametrize("kind", EVENTS)
def test_parse_kind_equals_parse_of_all_kinds(spark: SparkSession, kind: str) -> None:
    values = samples()
    records = spark.createDataFrame(
        [("topic", 0, offset, value) for offset, value in enumerate(values)],
        "topic string, partition int, offset bigint, value binary",
    )
    among = parse(records, {**EVENTS, "ownership": OwnershipEvent, "liveness": LivenessEvent})
    found = sorted(map(str, parse_kind(records, kind, EVENTS[kind]).collect()))
    assert found == sorted(map(str, events(among, kind).collect()))
    assert len(found) > 3
