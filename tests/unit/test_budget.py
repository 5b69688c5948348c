"""What a worker's clients have it hold together."""

from __future__ import annotations

import asyncio
import random

import pytest

from fleet.proxy import budget
from fleet.proxy.budget import Backlogs, MemoryBudget
from tests.unit.test_worker import eventually


def test_holders_within_the_limit_stay() -> None:
    evicted: list[tuple[str, int]] = []
    held = MemoryBudget[str](100, lambda holder, size: evicted.append((holder, size)))
    held.note("a", 60)
    held.note("b", 40)
    held.note("a", 30)
    held.note("c", 30)
    assert held.total_bytes == 100
    assert not evicted


def test_greatest_holder_goes_for_a_smaller_one() -> None:
    evicted: list[tuple[str, int]] = []
    held = MemoryBudget[str](100, lambda holder, size: evicted.append((holder, size)))
    held.note("great", 90)
    held.note("small", 20)
    assert evicted == [("great", 90)]
    assert held.total_bytes == 20


def test_newcomer_that_is_the_greatest_goes_itself() -> None:
    evicted: list[tuple[str, int]] = []
    held = MemoryBudget[str](100, lambda holder, size: evicted.append((holder, size)))
    held.note("a", 40)
    held.note("b", 61)
    assert evicted == [("b", 61)]
    held.note("b", 0)
    assert held.total_bytes == 40


def test_oldest_of_equals_goes() -> None:
    evicted: list[tuple[str, int]] = []
    held = MemoryBudget[str](100, lambda holder, size: evicted.append((holder, size)))
    for holder in ("old", "new", "newest"):
        held.note(holder, 40)
    assert evicted == [("old", 40)]


def test_total_is_the_sum_and_within_the_limit_whatever_happens() -> None:
    chance = random.Random(1)
    evicted: list[tuple[int, int]] = []
    held = MemoryBudget[int](1_000, lambda holder, size: evicted.append((holder, size)))
    for _ in range(5_000):
        held.note(chance.randrange(20), chance.choice((0, 1, 50, 400, 1_500)))
        assert held.total_bytes == sum(held._held.values()) <= 1_000
    for holder in range(20):
        held.note(holder, 0)
    assert held.total_bytes == 0
    assert not held._held


class Slow:
    def __init__(self, waiting_bytes: int) -> None:
        self.waiting_bytes = waiting_bytes


async def test_greatest_of_those_behind_for_long_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "BACKLOG_GRACE_S", 0.2)
    closed: list[Slow] = []
    backlogs = Backlogs[Slow](100, lambda reader, _: closed.append(reader))
    small, great, middle = Slow(30), Slow(80), Slow(40)
    for each in (small, great, middle):
        backlogs.begin(each)
    assert backlogs.share_bytes == 33
    await eventually(lambda: closed, "one is closed")
    assert closed == [great]
    assert small in backlogs
    assert great not in backlogs
    for each in (small, middle):
        backlogs.end(each)
    assert backlogs.share_bytes == 100


async def test_nobody_is_closed_who_has_just_fallen_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "BACKLOG_GRACE_S", 0.1)
    closed: list[Slow] = []
    backlogs = Backlogs[Slow](100, lambda reader, _: closed.append(reader))
    loop = asyncio.get_running_loop()
    storm = [Slow(90) for _ in range(50)]
    for each in storm:
        backlogs.begin(each)
        backlogs._since_s[each] = loop.time() + 3600.0  # it has begun so late that it never is for long
    late = Slow(1)
    backlogs.begin(late)
    await eventually(lambda: closed, "the one that is behind for long is closed")
    assert closed == [late]
