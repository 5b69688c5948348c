"""The live page of a member: who may view the page, pin, and read its stream, and for how long."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from fleet.admin import client
from fleet.admin.documents import LIVE
from fleet.admin.live import MAX_WATCHERS
from fleet.admin.server import ROLE_HEADER, serve
from fleet.config import TokenSettings
from fleet.config.secrets import Secret
from fleet.tls.tokens import Gate
from tests.integration.in_process.admin.test_server import (
    HEADER,
    READ,
    WRITE,
    Member,
    bearer,
    guarded,
    listening,
    member,
)
from tests.integration.in_process.tls.test_admin import write_token
from tests.unit.admin.sample_snapshot import Source, view
from tests.unit.admin.test_live import LIMIT_S

__all__ = ["guarded", "member"]


@pytest.mark.parametrize(("token", "role"), [(READ, "read"), (WRITE, "write")])
async def test_stream_names_the_rights_of_its_reader(guarded: Member, token: str, role: str) -> None:
    async with guarded.session.get(f"{guarded.url}/live", headers=bearer(token)) as response:
        assert (response.status, response.headers[ROLE_HEADER]) == (200, role)
        assert response.content_type == "text/event-stream"
        line = await response.content.readline()
    assert LIVE.decode(line.removeprefix(b"data: ")).ownership.fleet == view().fleet


@pytest.fixture
def single_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the places for a member that is served later."""
    monkeypatch.setattr("fleet.admin.live.MAX_WATCHERS", 1)


async def test_closed_page_is_no_failure(
    single_place: None, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    """Found: each closed tab left a traceback in the log."""
    async with asyncio.timeout(LIMIT_S):
        response = await member.session.get(f"{member.url}/live")
        await response.content.readline()
        assert (await member.ask("GET", "/live", {}))[0] == 503
        response.close()
        while True:
            async with member.session.get(f"{member.url}/live") as again:
                if again.status == 200:
                    break
            await asyncio.sleep(0.05)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_a_stream_has_no_head(member: Member) -> None:
    """Found: the stream never ended."""
    async with asyncio.timeout(LIMIT_S):
        assert (await member.ask("HEAD", "/live", {}))[0] == 405


async def test_stream_without_a_token_is_refused(guarded: Member) -> None:
    assert (await guarded.ask("GET", "/live", {}))[0] == 401


async def test_a_client_follows_a_member(member: Member) -> None:
    async with asyncio.timeout(LIMIT_S), aclosing(client.follow(member.session, member.url)) as documents:
        document = await anext(documents)
        later = await anext(documents)
    assert document.ownership.proxy_id == "p1"
    assert later.ownership.identities == document.ownership.identities


async def test_number_of_watchers_is_limited(member: Member) -> None:
    async with asyncio.timeout(LIMIT_S):
        open_ = [await member.session.get(f"{member.url}/live") for _ in range(MAX_WATCHERS)]
        for each in open_:
            await each.content.readline()
        assert (await member.ask("GET", "/live", {}))[0] == 503
        for each in open_:
            each.close()


async def test_page_loads_and_contacts_only_its_member(member: Member) -> None:
    async with member.session.get(f"{member.url}/", headers={"Accept": "text/html"}) as response:
        page, policy = await response.text(), response.headers["Content-Security-Policy"]
    assert response.content_type == "text/html"
    assert re.findall(r"""(?:src|href)=|https?://|@import|url\(""", page) == []
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy


async def test_root_page_for_terminals_names_ownership(member: Member) -> None:
    async with member.session.get(f"{member.url}/") as response:
        assert "/ownership" in await response.text()


async def test_pins_are_committed(member: Member) -> None:
    assert (await member.ask("POST", "/pin/1/p2", HEADER))[0] == 200
    assert (await member.ask("POST", "/unpin/1", HEADER))[0] == 200
    assert member.source.pinned == [(1, "p2"), (1, None)]


@pytest.mark.parametrize("path", ["/pin/9/p2", "/pin/1/p9", "/pin/x/p1", "/unpin/9", "/unpin/99999999999"])
async def test_unknown_broker_or_member_is_not_pinned(member: Member, path: str) -> None:
    assert (await member.ask("POST", path, HEADER))[0] == 404


async def test_web_pages_cannot_pin(member: Member) -> None:
    assert (await member.ask("POST", "/pin/1/p2", {}))[0] == 403
    assert member.source.pinned == []


async def test_watchers_are_counted_before_anything_is_awaited(member: Member) -> None:
    """Found: each of many requests in one turn of the loop got a place."""

    async def status() -> int:
        response = await session.get(f"{member.url}/live")
        return response.status

    async with asyncio.timeout(LIMIT_S):
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            found = Counter(await asyncio.gather(*(status() for _ in range(2 * MAX_WATCHERS))))
    assert found == {200: MAX_WATCHERS, 503: MAX_WATCHERS}


@dataclass
class TokenFiles:
    """A member whose tokens are in files."""

    url: str
    read: Path
    write: Path


@pytest_asyncio.fixture
async def token_files(tmp_path: Path) -> AsyncIterator[TokenFiles]:
    files = tmp_path / "read", tmp_path / "write"
    for file, token in zip(files, (READ, WRITE), strict=True):
        write_token(file, token)
    sock = listening()
    settings = TokenSettings(*(Secret(file, None, (), 0) for file in files))
    server = await serve(Source(), sock, gate=Gate(settings, "fleet.yaml", {}))
    yield TokenFiles(f"http://127.0.0.1:{sock.getsockname()[1]}", *files)
    await server.cleanup()


def replace_token(file: Path, token: str) -> None:
    write_token(file.with_name("fresh"), token)
    file.with_name("fresh").replace(file)


@pytest.mark.parametrize("former", [READ, WRITE])
async def test_revoked_token_ends_its_streams(token_files: TokenFiles, former: str) -> None:
    file = token_files.read if former == READ else token_files.write
    other = WRITE if former == READ else READ
    async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
        revoked = await session.get(f"{token_files.url}/live", headers=bearer(former))
        stays = await session.get(f"{token_files.url}/live", headers=bearer(other))
        await revoked.content.readline()
        await stays.content.readline()
        replace_token(file, "fresh-0123456789abcdef")
        await revoked.content.read()  # the stream ends
        for _ in range(4):
            assert await stays.content.readline()
        async with session.get(f"{token_files.url}/live", headers=bearer(former)) as again:
            assert again.status == 401
        stays.close()


async def test_token_with_another_role_ends_its_streams(token_files: TokenFiles) -> None:
    async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
        response = await session.get(f"{token_files.url}/live", headers=bearer(WRITE))
        assert response.headers[ROLE_HEADER] == "write"
        await response.content.readline()
        replace_token(token_files.write, "fresh-0123456789abcdef")
        replace_token(token_files.read, WRITE)
        await response.content.read()
        async with session.get(f"{token_files.url}/live", headers=bearer(WRITE)) as again:
            assert again.headers[ROLE_HEADER] == "read"
