"""Stalls of clients, compared with a naive search."""

from __future__ import annotations

import random
from dataclasses import astuple
from typing import Final

import pytest
from pyspark.sql import SparkSession

from fleet.pipeline.observations import LedgerEntry
from fleet.pipeline.spark_schema import ddl_of
from fleet.pipeline.stalls import stalls

pytestmark = pytest.mark.size("test")

BEGIN_US = 1_790_000_000_000_000
SIDES: Final = ("acknowledged", "received", "log")
MIN_MS = 300


def test_stalls_equal_naive_search(spark: SparkSession) -> None:
    chance = random.Random(4)
    entries = []
    for client in ("orders", "prices"):
        for what in SIDES:
            for partition in range(2):
                at_us = BEGIN_US
                for number in range(1_200):
                    # Up to a second, and sometimes more than a minute.
                    at_us += (
                        chance.choice([1_000, 20_000, 500_000, 1_000_000]) + (number % 400 == 7) * 150_000_000
                    )
                    entries.append(LedgerEntry(client, what, partition, 1, number, number, number, at_us))
                    entries += entries[-1:] * (number % 50 == 0)
    chance.shuffle(entries)
    table = spark.createDataFrame([astuple(each) for each in entries], ddl_of(LedgerEntry))
    found = sorted(tuple(row) for row in stalls(table, MIN_MS).collect())
    expected = naive(entries)
    assert len(expected) > 1_000
    assert max(each[4] for each in expected) > 150_000
    assert found == expected


def naive(entries: list[LedgerEntry]) -> list[tuple[str, str, int, int, int]]:
    times: dict[tuple[str, str, int], list[int]] = {}
    for each in entries:
        if each.what != "log":
            times.setdefault((each.client, each.what, each.partition), []).append(each.at_us)
    return sorted(
        (*line, before // 1000, (after - before) // 1000)
        for line, seen in times.items()
        for before, after in zip(sorted(seen), sorted(seen)[1:], strict=False)
        if (after - before) // 1000 >= MIN_MS
    )
