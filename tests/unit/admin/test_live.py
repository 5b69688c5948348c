"""What is told of the fleet as it changes: rates, who gets them, the page and its rules."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime

import pytest
from rich.console import Console

from fleet.admin.documents import (
    LIVE,
    IdentityRate,
    IdentityTraffic,
    LiveDocument,
    TrafficDocument,
)
from fleet.admin.live import MAX_WATCHERS, LiveFeed
from fleet.admin.ownership import ownership_document
from fleet.admin.snapshot import FleetView, WorkerView
from fleet.admin.traffic import Counts, rate_sources, rates, traffic_document
from fleet.cli.render.top import rate, screen
from fleet.core.errors import AdminError
from fleet.core.model import Directory
from fleet.runtime.ipc import WorkerCounters
from tests.tools.test_schemas import live_sample
from tests.unit.admin.sample_snapshot import Source, view

LIMIT_S = 30.0


def counts(
    now_s: float,
    *identities: tuple[int, int, int, int],
    incarnation: int = 1,
    workers: tuple[int, ...] = (4711,),
    proxy_id: str = "p1",
) -> TrafficDocument:
    passed = tuple(IdentityTraffic(*each) for each in identities)
    return TrafficDocument(proxy_id, incarnation, now_s, workers, passed)


def test_traffic_of_a_member_is_counted_by_identity() -> None:
    document = traffic_document(view())
    by_id = {each.broker_id: each for each in document.identities}
    assert -1 not in by_id  # bootstrap ports are nobody's
    assert by_id[1].connections == 3
    assert by_id[1].to_broker_bytes >= 100


def test_rates_are_of_all_members_together() -> None:
    before: Counts = {"p1": counts(10.0, (1, 1, 100, 1000)), "p2": counts(50.0, (1, 1, 0, 0))}
    now: Counts = {
        "p1": counts(12.0, (1, 2, 300, 5000), (2, 1, 10, 20)),
        "p2": counts(51.0, (1, 4, 7, 0)),
        "p3": AdminError("gone"),
    }
    assert rates(before, now) == (IdentityRate(1, 6, 107.0, 2000.0), IdentityRate(2, 1, 5.0, 10.0))
    assert [(each.proxy_id, each.error, each.rated) for each in rate_sources(before, now)] == [
        ("p1", None, True),
        ("p2", None, True),
        ("p3", "gone", False),
    ]


@pytest.mark.parametrize(
    "before",
    [
        {},
        {"p1": AdminError("gone")},
        {"p1": counts(10.0, (1, 1, 5, 5), incarnation=0)},
        {"p1": counts(11.0, (1, 1, 5, 5))},
        # A control process that was replaced: a second's rate was all that a worker had ever passed.
        {"p1": counts(10.0, workers=())},
        {"p1": counts(10.0, (1, 1, 5, 5), workers=(4712,))},
    ],
)
def test_rate_needs_two_counts_of_one_incarnation(before: Counts) -> None:
    now: Counts = {"p1": counts(11.0, (1, 2, 9, 9), workers=(4711, 4712))}
    assert rates(before, now) == (IdentityRate(1, 2, 0.0, 0.0),)
    assert not LiveDocument(ownership_document(view()), (), rate_sources(before, now)).rates_known


def test_worker_without_counters_is_not_counted() -> None:
    new = WorkerView(1, 4712, WorkerCounters())
    assert traffic_document(view(workers=(*view().workers, new))).workers == (4711,)


def test_ended_worker_does_not_reduce_rates() -> None:
    before: Counts = {"p1": counts(10.0, (1, 1, 5, 5), workers=(4711, 4712))}
    assert rates(before, {"p1": counts(11.0, (1, 1, 9, 9))}) == (IdentityRate(1, 1, 4.0, 4.0),)


def test_a_count_that_is_lower_than_before_is_no_negative_rate() -> None:
    now: Counts = {"p1": counts(2.0, (1, 1, 50, 50))}
    assert rates({"p1": counts(1.0, (1, 1, 90, 10))}, now) == (IdentityRate(1, 1, 0.0, 40.0),)


@pytest.mark.parametrize(
    ("bytes_per_s", "said"),
    [(0, "0 B/s"), (999, "999 B/s"), (1500, "2 kB/s"), (3e6, "3 MB/s"), (2.5e9, "2.5 GB/s")],
)
def test_rates_have_units(bytes_per_s: float, said: str) -> None:
    assert rate(bytes_per_s) == said


async def newest(live: LiveFeed) -> AsyncGenerator[LiveDocument, None]:
    watcher = live.enter("127.0.0.1")
    assert watcher is not None
    async with asyncio.timeout(LIMIT_S), aclosing(live.follow(watcher)) as documents:
        async for document in documents:
            yield LIVE.decode(document)


async def test_change_reaches_every_watcher_at_once() -> None:
    source = Source()
    live = LiveFeed(source)
    async with aclosing(newest(live)) as one, aclosing(newest(live)) as other:
        first = await anext(one)
        await anext(other)
        source.shown = view(directory=Directory(generation=99))
        for each in (one, other):
            document = await anext(each)
            while document.ownership.generation == first.ownership.generation:
                document = await anext(each)
            assert document.ownership.generation == 99
    assert live.broadcast is None  # no reader, no document
    assert source.counts  # by the workers


async def test_other_members_are_asked_while_there_is_a_watcher() -> None:
    asked = 0

    async def others() -> Counts:
        nonlocal asked
        asked += 1
        return {"p2": counts(float(asked), (1, 1, 100 * asked, 0)), "p3": AdminError("gone")}

    live = LiveFeed(Source(), others)
    assert asked == 0
    async with aclosing(newest(live)) as documents:
        async for document in documents:
            if any(each.to_broker_bytes_per_s for each in document.rates):
                break
    assert asked >= 2
    assert {each.proxy_id: each.error for each in document.rate_sources} == {
        "p1": None,
        "p2": None,
        "p3": "gone",
    }


async def test_failed_broadcast_ends_every_stream(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> Counts:
        raise ZeroDivisionError

    live = LiveFeed(Source(), broken)
    async with aclosing(newest(live)) as documents:
        _ = [each async for each in documents]
    assert "cannot build the document" in caplog.text
    assert live.broadcast is None


async def test_slow_reader_sees_the_end_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the end of the stream looked like a document, and a later document replaced it."""
    monkeypatch.setattr("fleet.admin.live.MAX_DOCUMENT_INTERVAL_S", 0.0)
    breaks, source = asyncio.Event(), Source()

    async def broken() -> Counts:
        await breaks.wait()
        raise ZeroDivisionError

    looked = 0

    def shown() -> FleetView:
        nonlocal looked
        looked += 1
        return view()

    monkeypatch.setattr(source, "view", shown)
    async with aclosing(newest(LiveFeed(source, broken))) as documents:
        await anext(documents)
        breaks.set()
        until = looked + 5
        while looked < until:  # noqa: ASYNC110 (what is looked at says when)
            await asyncio.sleep(0.01)
        assert len([each async for each in documents]) <= 1


async def test_watcher_arriving_at_the_end_gets_a_document() -> None:
    """Found: the watcher got the last document, numbers started again, and it missed some documents."""
    stopping, release = asyncio.Event(), asyncio.Event()

    async def others() -> Counts:
        try:
            await asyncio.Event().wait()
        finally:
            stopping.set()
            await release.wait()
        return {}

    source = Source()
    live = LiveFeed(source, others)
    first = newest(live)
    await anext(first)
    leaving = asyncio.create_task(first.aclose())
    async with asyncio.timeout(LIMIT_S):
        await stopping.wait()
    source.shown = view(directory=Directory(generation=98))
    async with aclosing(newest(live)) as second:
        seen = [(await anext(second)).ownership.generation]
        release.set()
        await leaving
        source.shown = view(directory=Directory(generation=99))
        while seen[-1] != 99:
            seen.append((await anext(second)).ownership.generation)
    assert list(dict.fromkeys(seen)) == [98, 99]


async def test_traffic_is_counted_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def remembering(shown: FleetView) -> TrafficDocument:
        threads.append(threading.current_thread())
        return traffic_document(shown)

    monkeypatch.setattr("fleet.admin.live.traffic_document", remembering)
    async with aclosing(newest(LiveFeed(Source()))) as documents:
        async for document in documents:
            if document.rate_sources:
                break
    assert threading.main_thread() not in threads


def terminal(live: LiveDocument, **options: float) -> str:
    console = Console(width=200, record=True, force_terminal=False)
    console.print(screen(live, **options))  # type: ignore[arg-type]
    return console.export_text()


def test_terminal_shows_the_content_of_the_page() -> None:
    sample = live_sample()
    text = terminal(sample)
    assert re.search(r"^1 .*owner", text, re.MULTILINE)
    assert "no traffic counters from: p2" in text
    assert "not stale" in text
    assert "no member serves" not in text
    at = datetime.fromtimestamp(sample.ownership.takeovers[0].detected_ms / 1000)
    assert re.search(rf"^{at:%H:%M:%S} +p2 +reset", text, re.MULTILINE)


def test_terminal_shows_warnings() -> None:
    sample = live_sample()
    fleet = sample.ownership
    troubled = replace(
        fleet,
        quorum=replace(fleet.quorum, present=False, lost_s=4.0),
        staleness_s=4.0,
        members=tuple(replace(each, drained=True) for each in fleet.members),
        identities=tuple(replace(each, advertised=()) for each in fleet.identities),
    )
    text = terminal(replace(sample, ownership=troubled))
    for said in ("no quorum for 4.0 s", "stale for 4.0 s", "no member serves broker 1, 2, 3", "up, drained"):
        assert said in text
    assert "no update" not in text
    assert "no update for 7.0 s" in terminal(sample, silent_s=7.0)


def test_a_terminal_shows_no_rate_before_one_is_known() -> None:
    sample = live_sample()
    assert "no rates yet from: p1" in terminal(sample)
    assert "B/s" not in terminal(sample)
    known = tuple(replace(each, rated=each.error is None) for each in sample.rate_sources)
    text = terminal(replace(sample, rate_sources=known))
    assert "no rates yet" not in text
    assert "0 B/s" in text


def test_rows_that_do_not_fit_are_counted() -> None:
    sample = live_sample()
    many = tuple(replace(sample.ownership.identities[0], broker_id=number) for number in range(100))
    text = terminal(replace(sample, ownership=replace(sample.ownership, identities=many)), height=30)
    assert "and 91 more" in text
    assert len(text.splitlines()) <= 30


def test_places_are_taken_at_once_and_given_back() -> None:
    live = LiveFeed(Source())
    watchers = [live.enter("10.0.0.1") for _ in range(2 * MAX_WATCHERS)]
    taken = [each for each in watchers if each is not None]
    assert len(taken) == MAX_WATCHERS
    live.leave(taken[0])
    assert live.enter("10.0.0.1") is not None


async def test_watchers_of_one_host_leave_places_for_others() -> None:
    live = LiveFeed(Source())
    first, *others = [live.enter("10.0.0.1") for _ in range(MAX_WATCHERS)]
    assert first is not None
    async with asyncio.timeout(LIMIT_S), aclosing(live.follow(first)) as documents:
        await anext(documents)
        assert live.enter("10.0.0.2") is not None
        assert [each async for each in documents] == [], "its place is gone"
    assert not any(each is None or each.is_displaced for each in others)
