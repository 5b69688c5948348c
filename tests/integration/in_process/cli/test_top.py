"""fleet/cli/top.py: updates from one member after the other, and what is shown without any."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from fleet.admin.documents import LIVE, LiveDocument
from fleet.admin.live import FetchCounts, no_other_members
from fleet.admin.server import serve
from fleet.admin.snapshot import FleetView
from fleet.admin.traffic import Counts
from fleet.cli import top
from fleet.core.errors import AdminError
from fleet.core.takeover import Moment
from fleet.tls.access import OPEN, Access
from tests.integration.in_process.admin.test_server import listening
from tests.tools.test_schemas import live_sample
from tests.unit.admin.sample_snapshot import Source, view
from tests.unit.admin.test_live import counts

LIMIT_S = 30.0


@dataclass
class Ticking(Source):
    """A member with a running clock of its own."""

    began_s: float = field(default_factory=time.monotonic)
    me: str = "p1"
    ahead_s: float = 0.0

    def view(self) -> FleetView:
        now_s = time.monotonic() - self.began_s + self.ahead_s
        return replace(view(), me=self.me, now=Moment(1_000_000, now_s))


@asynccontextmanager
async def member_at(source: Source, others: FetchCounts = no_other_members) -> AsyncIterator[str]:
    """Run a member inside the block. Returns: its address."""
    sock = listening()
    runner = await serve(source, sock, others=others)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        await runner.cleanup()


async def test_once_waits_for_the_rates_of_all_members() -> None:
    """A wait of two seconds gave only one count of a member that answered late."""
    request_count = 0

    async def late() -> Counts:
        nonlocal request_count
        request_count += 1
        p2 = AdminError("late") if request_count <= 2 else counts(float(request_count), proxy_id="p2")
        return {"p2": p2}

    async with asyncio.timeout(LIMIT_S), member_at(Ticking(), late) as url:
        document = await top.first_with_rates((url,), OPEN)
    # The first update has no counts, or counts without a rate, or no counts of p2.
    assert document.rates_known
    assert {each.rated for each in document.rate_sources} >= {True}


async def test_once_fails_without_rates_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command waited as long as updates came."""
    monkeypatch.setattr(top, "ONCE_TIMEOUT_S", 5.0)
    async with asyncio.timeout(LIMIT_S), member_at(Source()) as url:
        with pytest.raises(AdminError, match=r"p1 has no traffic rates of (any member|p1) within 5"):
            await top.first_with_rates((url,), OPEN)


async def test_once_fails_without_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "ONCE_TIMEOUT_S", 0.5)
    sock = listening()
    with sock, pytest.raises(AdminError, match="no member has sent an update within"):
        async with asyncio.timeout(LIMIT_S):
            await top.first_with_rates((f"http://127.0.0.1:{sock.getsockname()[1]}",), OPEN)


async def test_once_counts_again_after_a_change_of_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks of two machines were subtracted from each other: the rates seemed to be known at once."""
    seen: list[LiveDocument] = []
    updates = top.updates

    async def remembering(urls: tuple[str, ...], access: Access) -> AsyncIterator[LiveDocument]:
        async for document in updates(urls, access):
            seen.append(document)
            if document.ownership.proxy_id == "p1":
                await first.aclose()
            yield document

    monkeypatch.setattr(top, "updates", remembering)
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as first:
        one = await first.enter_async_context(member_at(Ticking()))
        async with member_at(Ticking(me="p3", ahead_s=1000.0)) as other:
            document = await top.first_with_rates((one, other), OPEN)
    assert seen[0].ownership.proxy_id == "p1"
    assert document.ownership.proxy_id == "p3"
    assert document.rates_known


async def test_silence_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last update stayed on the screen as if it were current."""
    monkeypatch.setattr(top, "RETRY_AFTER_S", 0.1)
    shown: list[tuple[LiveDocument, float]] = []
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as member:
        url = await member.enter_async_context(member_at(Ticking()))

        def show(document: LiveDocument, silent_s: float) -> None:
            shown.append((document, silent_s))

        watching = asyncio.create_task(top.show_updates((url,), OPEN, show))
        await until(lambda: len(shown) > 0)
        assert shown[0][1] == 0.0
        await member.aclose()
        updated_s = [document for document, silent_s in shown if not silent_s][-1]
        await until(lambda: shown[-1][1] > 0.5)
        assert shown[-1][0] is updated_s
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_start_without_any_member_fails() -> None:
    sock = listening()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    sock.close()
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(AdminError, match="no member answered"):
            await top.show_updates((url,), OPEN, lambda document, silent_s: None)


def test_pipe_gets_only_documents(capsys: pytest.CaptureFixture[str]) -> None:
    document = live_sample()
    for silent_s in (0.0, 1.0, 4.0):
        top.print_line(document, silent_s)
    out = capsys.readouterr()
    assert out.out == LIVE.encode(document).decode() + "\n"
    assert out.err == "no update for 4.0 s\n"


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (conditions are of all kinds)
        await asyncio.sleep(0.01)
