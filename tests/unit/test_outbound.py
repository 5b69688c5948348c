"""Whose failure it is that a connection cannot be made: this member's own, or that of whoever is dialled."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from fleet.model import Endpoint
from fleet.outbound import Addresses, LocalFailure, Resolver, connect, is_peers_doing

LIMIT_S = 30.0
PEERS_DOING = {errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ESHUTDOWN}
# TCP connects to no broadcast address, whatever routes there are: ENETUNREACH. Source: Linux, tcp_v4_connect
UNREACHABLE = ("255.255.255.255", 1)


def tcp(*addresses: tuple[str, int]) -> Addresses:
    return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", each) for each in addresses]


@pytest.fixture
def nobody() -> Iterator[tuple[str, int]]:
    """An address that refuses, and that nobody else can take meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()


@pytest_asyncio.fixture
async def somebody() -> AsyncIterator[tuple[str, int]]:
    """An address that is listened at."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()


@pytest.mark.parametrize("number", sorted(errno.errorcode), ids=lambda number: errno.errorcode[number])
def test_a_refusal_and_a_reset_are_the_peers_doing_and_nothing_else_is(number: int) -> None:
    assert is_peers_doing(OSError(number, os.strerror(number))) == (number in PEERS_DOING)


def test_an_answer_that_is_wrong_or_cut_off_is_the_peers_doing() -> None:
    assert is_peers_doing(ssl.SSLError("wrong version number"))
    assert is_peers_doing(asyncio.IncompleteReadError(b"", 4))


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        MemoryError(),
        UnicodeError("label too long"),
        TimeoutError(),
    ],
    ids=repr,
)
def test_a_name_and_memory_that_are_missing_are_not(error: Exception) -> None:
    assert not is_peers_doing(error)


async def test_the_first_address_that_takes_a_connection_is_taken(
    nobody: tuple[str, int], somebody: tuple[str, int]
) -> None:
    with await connect(tcp(nobody, somebody, UNREACHABLE)) as sock:
        assert sock.getpeername() == somebody


async def test_a_refusal_is_a_refusal(nobody: tuple[str, int]) -> None:
    with pytest.raises(ConnectionRefusedError):
        await connect(tcp(nobody))


async def test_an_address_without_a_route_takes_nothing_from_a_refusal_before_it(
    nobody: tuple[str, int],
) -> None:
    """As that of a family that this machine does not have: a resolver puts it last."""
    with pytest.raises(ConnectionRefusedError):
        await connect(tcp(nobody, UNREACHABLE))


@pytest.mark.parametrize("behind", [False, True])
async def test_a_missing_route_is_a_failure_of_ones_own(nobody: tuple[str, int], behind: bool) -> None:
    with pytest.raises(LocalFailure, match=r"no connection to 255\.255\.255\.255"):
        await connect(tcp(UNREACHABLE, nobody) if behind else tcp(UNREACHABLE))


async def test_a_name_without_an_address_is_a_failure_of_ones_own() -> None:
    with pytest.raises(LocalFailure, match="no address"):
        await connect([])


async def test_exhausted_descriptors_are_a_failure_of_ones_own(somebody: tuple[str, int]) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as lowest:
        free = lowest.fileno()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
        with pytest.raises(LocalFailure, match="Too many open files"):
            await connect(tcp(somebody))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# ---- names


async def test_an_address_is_its_own_name() -> None:
    addresses = await Resolver().find(Endpoint("127.0.0.1", 9092), LIMIT_S)
    assert [address for *_, address in addresses] == [("127.0.0.1", 9092)]


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".example", "real\ufffdbroker"])
async def test_a_name_that_nobody_knows_is_a_failure_of_ones_own(host: str) -> None:
    """A peer whose name is gone may be well: others may still know it."""
    with pytest.raises(LocalFailure, match=f"no address for {host}"):
        await Resolver().find(Endpoint(host, 1), LIMIT_S)


class Resolving:
    """Takes the place of the system's resolver, which no test can make slow."""

    def __init__(self) -> None:
        self.asked = 0
        self.known = asyncio.Event()

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> Addresses:
        self.asked += 1
        await self.known.wait()
        return tcp((host, port))


async def test_a_slow_resolver_is_a_failure_of_ones_own_and_asked_once_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, resolver, endpoint = Resolving(), Resolver(), Endpoint("p2.example", 9100)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", slow.getaddrinfo)
    for _ in range(3):
        with pytest.raises(LocalFailure, match=r"no address for p2\.example within 0\.01 s"):
            await resolver.find(endpoint, 0.01)
    waiting = asyncio.create_task(resolver.find(endpoint, LIMIT_S))
    await asyncio.sleep(0)
    slow.known.set()
    assert await waiting == tcp(("p2.example", 9100))
    assert slow.asked == 1
    await resolver.find(endpoint, LIMIT_S)
    assert slow.asked == 2, "what it said is not kept"


def test_a_look_up_that_nobody_waits_for_any_more_is_no_complaint(caplog: pytest.LogCaptureFixture) -> None:
    async def give_up(failing: Callable[..., Any]) -> None:
        asyncio.get_running_loop().getaddrinfo = failing  # type: ignore[method-assign]
        with pytest.raises(LocalFailure):
            await Resolver().find(Endpoint("p2.example", 9100), 0.01)
        await asyncio.sleep(0.02)

    async def fail(*_: object, **__: object) -> None:
        await asyncio.sleep(0.015)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    asyncio.run(give_up(fail))
    assert caplog.records == []
