"""Time until outages were no longer advertised, by Spark and by the checker of the chaos runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import astuple

import pytest
from pyspark.sql import SparkSession

from fleet.drills.workload.checker import Outage, View, takeover_s
from fleet.pipeline.availability import outage_windows
from fleet.pipeline.observations import OutageEvent, ViewEvent
from fleet.pipeline.spark_schema import ddl_of

pytestmark = pytest.mark.size("test")

CASES = 200
BROKERS = frozenset({1, 2})


def test_outage_windows_equal_checker(spark: SparkSession) -> None:
    chance = random.Random(2)
    outages: list[OutageEvent] = []
    views: list[ViewEvent] = []
    expected: dict[str, int | None] = {}
    for number in range(CASES):
        case = f"case-{number}"
        outage, seen = make_case(case, chance)
        took = takeover_s(outage, BROKERS, seen)
        expected[case] = None if took is None else int(took)
        times = (int(outage.at_s), int(outage.until_s))
        outages.append(OutageEvent(case, outage.victims, outage.survivors, *times))
        views += [
            ViewEvent(proxy_id, place, broker_id, view.owners.get(broker_id), int(view.at_s))
            for proxy_id, of_member in seen.items()
            for place, view in enumerate(of_member)
            for broker_id in BROKERS
        ]
    assert CASES / 10 < sum(each is None for each in expected.values()) < CASES * 9 / 10
    assert any(each == 0 for each in expected.values())
    assert sum(bool(each) for each in expected.values()) > CASES / 10
    assert found(spark, outages, [*views, *views]) == expected, "every view is repeated"


def found(
    spark: SparkSession, outages: Sequence[OutageEvent], views: Sequence[ViewEvent]
) -> dict[str, int | None]:
    rows = outage_windows(
        spark.createDataFrame([astuple(each) for each in outages], ddl_of(OutageEvent)),
        spark.createDataFrame([astuple(each) for each in views], ddl_of(ViewEvent)),
    ).collect()
    return {row.id: row.took_us for row in rows}


def make_case(case: str, chance: random.Random) -> tuple[Outage, dict[str, list[View]]]:
    """Return an outage of one of three members, and the Metadata of the members; times in microseconds."""
    members = [f"{case}-p{number}" for number in (1, 2, 3)]
    victim, *survivors = chance.sample(members, 3)
    seen: dict[str, list[View]] = {}
    for proxy_id in members:
        now, of_member = chance.randrange(100), []
        for _ in range(chance.randrange(5)):
            alive = chance.random() < 0.7
            owners: dict[int, str | None] = {
                broker_id: chance.choice(survivors if alive else [victim, None]) for broker_id in BROKERS
            }
            if chance.random() < 0.1:
                owners.pop(1)
            of_member.append(View(now, owners))
            now += chance.randrange(1, 300)
        if of_member or chance.random() < 0.5:
            seen[proxy_id] = of_member
    begin = chance.randrange(300)
    return Outage("kill", (victim,), tuple(survivors), begin, begin + chance.randrange(50, 600), 1.0), seen
