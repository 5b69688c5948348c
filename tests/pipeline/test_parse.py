"""Reading the events of one kind, beside reading all kinds with the reasons of what is none."""

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
ODD: tuple[Any, ...] = (None, "", 7, -1, 2.5, True, [], {}, "7", [{}], {"0": 1}, 2**70)


def variants(good: dict[str, Any]) -> Iterator[bytes | None]:
    """The event, and what is not quite it: each field gone, null, or something odd; and what is no object."""
    yield json.dumps(good).encode()
    yield json.dumps({**good, "later": {"more": [1]}}).encode()
    yield json.dumps(good, indent=1).encode()
    for name in good:
        yield json.dumps({key: value for key, value in good.items() if key != name}).encode()
        for odd in ODD:
            yield json.dumps({**good, name: odd}).encode()
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
    """Of all kinds, without one field."""
    whole = [{**GOOD[each], "kind": each, "version": 1} for each in EVENTS]
    good = [{name: value for name, value in each.items() if name != but} for each in whole]
    return [value for each in good for value in variants(each)]


@pytest.mark.parametrize("kind", EVENTS)
def test_what_is_decoded_is_what_would_have_been_parsed(spark: SparkSession, kind: str) -> None:
    decode = EventDecoder(PLAIN[kind])
    # A field that is not decoded is null in the one, and may make no event of the other.
    values = samples(but="apis")

    def found(told: Sequence[dict[str, Any]], left: Sequence[bytes | None]) -> list[str]:
        rows = [*((None, event) for event in told), *((value, None) for value in left)]
        records = spark.createDataFrame(rows, f"value binary, told struct<{ddl_of(PLAIN[kind])}>")
        return sorted(map(str, parse_kind(records, kind, EVENTS[kind]).collect()))

    parsed = found([], values)
    # One by one, because all that is read with a number of more than 64 bits is left to be parsed.
    apart = [decode([value]) for value in values]
    told = [event for events, _ in apart for event in events.to_pylist()]
    left = [value for _, values in apart for value in values]
    assert 3 < len(told) < len(parsed), "some are decoded, and some are left"
    assert len(told) + len(left) == len(values)
    assert found(told, left) == parsed

    great = str(2**70).encode()
    small = [value for value in values if value is None or great not in value or value not in left]
    together, still = decode(small)
    assert (together.to_pylist(), still) == (
        told,
        [each for each in left if each is None or great not in each],
    )


def test_numbers_of_more_than_64_bits_are_left_to_be_parsed() -> None:
    good = {**GOOD["ledger"], "kind": "ledger", "version": 1, "offset": 1}
    values = [json.dumps({**good, "number": number}).encode() for number in (1, 2**70)]
    told, left = EventDecoder(LedgerEntry)(values)
    assert (len(told), left) == (0, values)


def test_only_plain_events_can_be_decoded() -> None:
    with pytest.raises(TypeError, match=r"Traffic\.apis is not plain"):
        EventDecoder(Traffic)


@pytest.mark.parametrize("kind", EVENTS)
def test_one_kind_alone_is_what_it_is_among_others(spark: SparkSession, kind: str) -> None:
    values = samples()
    records = spark.createDataFrame(
        [("topic", 0, offset, value) for offset, value in enumerate(values)],
        "topic string, partition int, offset bigint, value binary",
    )
    among = parse(records, {**EVENTS, "ownership": OwnershipEvent, "liveness": LivenessEvent})
    found = sorted(map(str, parse_kind(records, kind, EVENTS[kind]).collect()))
    assert found == sorted(map(str, events(among, kind).collect()))
    assert len(found) > 3
