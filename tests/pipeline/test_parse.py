"""Reading the events of one kind, beside reading all kinds with the reasons of what is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fleet.events.schema import LivenessEvent, OwnershipEvent
from fleet.pipeline.load import Passed
from fleet.pipeline.outside import LedgerEntry
from fleet.pipeline.parse import events, only, parse

GOOD: dict[str, dict[str, Any]] = {
    "traffic": {
        "id": "one", "fleet": "demo", "broker_id": 3, "at_ms": 5, "bytes_to_broker": 7, "bytes_to_client": 9,
        "apis": {"0": {"requests": 2, "sampled": 1}, "18": {"requests": 1}},
    },
    "ledger": {
        "client": "orders", "what": "log", "partition": 1, "producer_id": 2, "sequence": 3, "offset": None,
        "number": 4, "at_us": 5,
    },
}  # fmt: skip
EVENTS = {"traffic": Passed, "ledger": LedgerEntry}
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
    )


@pytest.mark.parametrize("kind", EVENTS)
def test_one_kind_alone_is_what_it_is_among_others(spark: SparkSession, kind: str) -> None:
    whole = [{**GOOD[each], "kind": each, "version": 1} for each in EVENTS]
    values = [value for each in whole for value in variants(each)]
    records = spark.createDataFrame(
        [("topic", 0, offset, value) for offset, value in enumerate(values)],
        "topic string, partition int, offset bigint, value binary",
    )
    among = parse(records, {**EVENTS, "ownership": OwnershipEvent, "liveness": LivenessEvent})
    found = sorted(map(str, only(records, kind, EVENTS[kind]).collect()))
    assert found == sorted(map(str, events(among, kind).collect()))
    assert len(found) > 3
