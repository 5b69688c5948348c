"""Takeovers, outages and error budgets, by Spark and by naive twins."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

from fleet.core.event_schema import ConnectionEvent
from fleet.core.traffic import ConnectionEnd
from fleet.pipeline.slo import DAY_MS, attainment, outages, takeovers, unavailable
from fleet.pipeline.spark_schema import ddl_of

pytestmark = pytest.mark.size("test")

BEGIN_MS = 1_790_000_000_000
UNTIL_MS = BEGIN_MS + 11 * DAY_MS
OBJECTIVE = 0.999
MEMBERS = ("p1", "p2", "p3")


@dataclass(frozen=True)
class Interval:
    """The columns of the timeline that these tests need."""

    fleet: str
    broker_id: int
    what: str
    generation: int
    owners: tuple[str, ...]
    reason: str
    from_ms: int
    to_ms: int | None
    committed_at_ms: int | None
    detected_at_ms: int | None
    advertised_at_ms: int | None
    alive_at_ms: int | None = None


def history(chance: random.Random) -> list[Interval]:
    """Return intervals of three identities over eleven days; at times an identity has no owner.

    Some takeovers lack the time of advertisement, and some lack the time at which the owner was last alive.
    In some takeovers a member saw the owner alive after another member suspected it.
    """
    found: list[Interval] = []
    for broker_id in (1, 2, 3):
        now_ms, generation = BEGIN_MS + chance.randrange(DAY_MS), broker_id
        while now_ms < UNTIL_MS - 60_000:
            ends_ms = now_ms + chance.randrange(1000, 2 * DAY_MS)
            taken = chance.random() < 0.6
            ownerless = not taken and chance.random() < 0.3
            detected_ms = now_ms - chance.randrange(900) if taken else None
            advertised_ms = now_ms + chance.randrange(20_000) if chance.random() < 0.8 else None
            alive_ms = None
            if detected_ms is not None and chance.random() < 0.8:
                alive_ms = detected_ms - chance.randrange(-100, 900)
            found.append(
                Interval(
                    "f",
                    broker_id,
                    "interval",
                    generation,
                    () if ownerless else (chance.choice(MEMBERS),),
                    "takeover" if taken else chance.choice(("drain", "rebalance")),
                    now_ms,
                    ends_ms if ends_ms < UNTIL_MS else None,
                    now_ms + 40,
                    detected_ms,
                    advertised_ms if taken else None,
                    alive_ms,
                )
            )
            now_ms, generation = ends_ms, generation + 3
    return found


def connections(chance: random.Random, intervals: Sequence[Interval]) -> list[ConnectionEvent]:
    found = []
    for number in range(600):
        near = chance.choice(intervals)
        event = ConnectionEvent(
            id=f"c{number}",
            fleet="f",
            told_by=chance.choice(MEMBERS),
            connection=f"c{number}",
            what=chance.choice(("opened", "opened", "closed", "cut")),
            why=None,
            listener="inside",
            broker_id=near.broker_id,
            owned=chance.random() < 0.9,
            client="192.0.2.1:5",
            client_id="c",
            open_ms=0,
            at_ms=near.from_ms + chance.randrange(-2000, 60_000),
        )
        found += [event] * chance.choice((1, 1, 2))
    return found


def frame(spark: SparkSession, kind: type[Any], rows: Sequence[Any]) -> DataFrame:
    columns = kind.__dataclass_fields__
    return spark.createDataFrame(
        [tuple(getattr(row, name) for name in columns) for row in rows], ddl_of(kind)
    )


def first_request_ms(interval: Interval, events: Sequence[ConnectionEvent]) -> int | None:
    assert interval.detected_at_ms is not None
    times = [
        each.at_ms
        for each in events
        if (each.what, each.owned, each.broker_id) == ("opened", True, interval.broker_id)
        and each.told_by in interval.owners
        and interval.detected_at_ms <= each.at_ms
        and (interval.to_ms is None or each.at_ms < interval.to_ms)
    ]
    return min(times, default=None)


def alive_ms(interval: Interval) -> int | None:
    assert interval.detected_at_ms is not None
    return None if interval.alive_at_ms is None else min(interval.alive_at_ms, interval.detected_at_ms)


def test_takeovers_equal_naive_twin(spark: SparkSession) -> None:
    chance = random.Random(4)
    intervals = history(chance)
    events = connections(chance, intervals)
    noise = [replace(each, what="gap") for each in intervals[:3] if each.reason != "takeover"]
    rows = takeovers(
        frame(spark, Interval, [*intervals, *noise]), frame(spark, ConnectionEvent, events)
    ).collect()
    found = {
        (row.broker_id, row.generation): (
            row.alive_ms,
            row.began_ms,
            row.advertised_ms,
            row.first_request_ms,
        )
        for row in rows
    }
    assert len(found) == len(rows)
    expected = {
        (each.broker_id, each.generation): (
            alive_ms(each),
            each.detected_at_ms,
            each.committed_at_ms if each.advertised_at_ms is None else each.advertised_at_ms,
            first_request_ms(each, events),
        )
        for each in intervals
        if each.reason == "takeover"
    }
    assert found == expected
    assert any(first is None for *_, first in expected.values())
    assert any(first is not None for *_, first in expected.values())
    assert any(alive is None for alive, *_ in expected.values())
    assert any(alive == began for alive, began, *_ in expected.values()), (
        "one member saw the owner alive after another suspected it"
    )
    assert any(alive is not None and alive < cast(int, began) for alive, began, *_ in expected.values())


def make_attempts(chance: random.Random) -> list[ConnectionEvent]:
    """Return connections to three identities, some rejected; the events are unordered and repeated."""
    found = []
    for number in range(400):
        broker_id, opened_ms = chance.choice((-1, 1, 2, 3)), BEGIN_MS + chance.randrange(60_000)
        down = opened_ms // 5_000 % (broker_id + 3) == 1
        opened = ConnectionEvent(
            id=f"c{number}",
            fleet="f",
            told_by=chance.choice(MEMBERS),
            connection=f"c{number}",
            what="opened",
            why=None,
            listener="inside",
            broker_id=broker_id,
            owned=chance.random() < 0.9,
            client="192.0.2.1:5",
            client_id="c",
            open_ms=0,
            at_ms=opened_ms,
        )
        why: ConnectionEnd = "unreachable" if down else chance.choice(("broker", "unanswered", "refused"))
        ended = replace(
            opened, id=f"c{number}/end", what="cut", why=why, at_ms=opened_ms + chance.randrange(9)
        )
        for event in (opened, ended) if chance.random() < 0.95 else (ended,):
            found += [event] * chance.choice((1, 1, 2))
    chance.shuffle(found)
    return found


def test_outages_equal_naive_twin(spark: SparkSession) -> None:
    events = make_attempts(random.Random(6))
    rows = outages(frame(spark, ConnectionEvent, events)).collect()
    found = {(row.broker_id, row.began_ms): (row.ended_ms, row.cuts) for row in rows}
    assert len(found) == len(rows)

    distinct = {each.id: each for each in events if each.owned and each.broker_id >= 0}.values()
    cut = [each for each in distinct if each.why == "unreachable"]
    away = {each.connection for each in cut}
    expected: dict[tuple[int, int], tuple[int | None, int]] = {}
    for broker_id in (1, 2, 3):
        served_ms = [
            each.at_ms
            for each in distinct
            if (each.broker_id, each.what) == (broker_id, "opened") and each.connection not in away
        ]
        by_end: dict[int | None, list[int]] = defaultdict(list)
        for each in cut:
            if each.broker_id == broker_id:
                later_ms = [at_ms for at_ms in served_ms if at_ms > each.at_ms]
                by_end[min(later_ms, default=None)].append(each.at_ms)
        expected |= {(broker_id, min(times)): (end_ms, len(times)) for end_ms, times in by_end.items()}
    assert found == expected
    assert len(expected) > 6
    assert sum(cuts for _, cuts in expected.values()) > len(expected), "some outages have several cuts"


def day_of(at_ms: int) -> date:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def by_second(spans: Sequence[tuple[int, int, int]], weeks: bool) -> dict[tuple[int, date], int]:
    """Split each span at every midnight, as the naive twin."""
    found: dict[tuple[int, date], int] = defaultdict(int)
    for broker_id, from_ms, to_ms in spans:
        while from_ms < to_ms:
            midnight_ms = (from_ms // DAY_MS + 1) * DAY_MS
            day = day_of(from_ms)
            period = day - timedelta(days=day.weekday()) if weeks else day
            found[broker_id, period] += min(to_ms, midnight_ms) - from_ms
            from_ms = midnight_ms
    return found


@dataclass(frozen=True)
class Down:
    """A row of `outages`."""

    fleet: str
    broker_id: int
    began_ms: int
    ended_ms: int | None
    cuts: int


def make_outages(chance: random.Random, taken: Sequence[Any]) -> list[Down]:
    """Return outages; some begin in a takeover or last until the next, and the last outage has not ended."""
    found = [Down("f", 1, UNTIL_MS - 5_000, None, 2)]
    for row in taken:
        began_ms = row.began_ms + chance.randrange(-3_000, 20_000)
        found.append(Down("f", row.broker_id, began_ms, began_ms + chance.randrange(1, 30_000), 1))
    return found


def without_overlaps(spans: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for broker_id, from_ms, to_ms in sorted(spans):
        if found and found[-1][0] == broker_id and from_ms <= found[-1][2]:
            found[-1] = broker_id, found[-1][1], max(found[-1][2], to_ms)
        else:
            found.append((broker_id, from_ms, to_ms))
    return found


@pytest.mark.parametrize("weeks", [False, True])
def test_attainment_equals_naive_twin(spark: SparkSession, weeks: bool) -> None:
    intervals = history(random.Random(9))
    table = frame(spark, Interval, intervals)
    taken = takeovers(table, frame(spark, ConnectionEvent, []))
    times = taken.collect()
    out = make_outages(random.Random(3), times)
    missing = unavailable(taken, frame(spark, Down, out), UNTIL_MS)
    rows = attainment(table, missing, UNTIL_MS, OBJECTIVE, "week" if weeks else "day").collect()
    owned = [each for each in intervals if each.owners]
    assert len(owned) < len(intervals), "a broker had left the cluster for a while"
    known = by_second([(each.broker_id, each.from_ms, each.to_ms or UNTIL_MS) for each in owned], weeks)
    spans = [
        (row.broker_id, row.began_ms if row.alive_ms is None else row.alive_ms, row.advertised_ms)
        for row in times
    ]
    spans += [(each.broker_id, each.began_ms, each.ended_ms or UNTIL_MS) for each in out]
    merged = without_overlaps(spans)
    assert len(merged) < len(spans), "some overlap"
    unavailable_ms = by_second(merged, weeks)
    assert {(row.broker_id, row.period): (row.known_ms, row.unavailable_ms) for row in rows} == {
        key: (known_ms, min(known_ms, unavailable_ms.get(key, 0))) for key, known_ms in known.items()
    }
    assert sum(row.unavailable_ms for row in rows) > 0
    for row in rows:
        assert row.available == pytest.approx(1 - row.unavailable_ms / row.known_ms)
        assert row.left_ms == row.budget_ms - row.unavailable_ms
        assert row.budget_ms == pytest.approx(row.known_ms * (1 - OBJECTIVE), abs=1)
