"""Failures of outgoing connections: caused by this member, or by the peer."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import threading
from typing import Any

import pytest

from fleet.core.model import Endpoint
from fleet.runtime import outbound
from fleet.runtime.outbound import (
    STALE_LIMIT_S,
    Address,
    Addresses,
    LocalFailure,
    Resolver,
    _interleave,
    connect,
    is_peer_failure,
)

LIMIT_S = 30.0
PEERS_DOING = {errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ESHUTDOWN}


def tcp(*addresses: tuple[str, int]) -> Addresses:
    return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", each) for each in addresses]


@pytest.mark.parametrize("number", sorted(errno.errorcode), ids=lambda number: errno.errorcode[number])
def test_only_refusal_and_reset_are_peer_failures(number: int) -> None:
    assert is_peer_failure(OSError(number, os.strerror(number))) == (number in PEERS_DOING)


def test_wrong_or_partial_answer_is_a_peer_failure() -> None:
    assert is_peer_failure(ssl.SSLError("wrong version number"))
    assert is_peer_failure(asyncio.IncompleteReadError(b"", 4))


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
def test_missing_name_or_memory_is_no_peer_failure(error: Exception) -> None:
    assert not is_peer_failure(error)


def test_families_alternate_after_the_first_address() -> None:
    def of(family: socket.AddressFamily, number: int) -> Address:
        return family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("", number)

    six, four = socket.AF_INET6, socket.AF_INET
    given = [of(six, 1), of(six, 2), of(six, 3), of(four, 4), of(four, 5)]
    assert [each[4][1] for each in _interleave(given)] == [1, 4, 2, 5, 3]


async def test_name_without_an_address_is_a_local_failure() -> None:
    with pytest.raises(LocalFailure, match="no address"):
        await connect([])


# ---- names


async def test_ip_address_resolves_to_itself() -> None:
    addresses = await Resolver().find(Endpoint("127.0.0.1", 9092), LIMIT_S)
    assert [address for *_, address in addresses] == [("127.0.0.1", 9092)]


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".example", "real\ufffdbroker"])
async def test_unknown_name_is_a_local_resolver_failure(host: str) -> None:
    """A peer whose name was removed may be healthy: other members may still know the name."""
    with pytest.raises(LocalFailure, match=f"no address for {host}"):
        await Resolver().find(Endpoint(host, 1), LIMIT_S)


@pytest.mark.parametrize("port", [70_000, 2**31 - 1, -1])
async def test_invalid_port_raises_instead_of_wrapping(port: int) -> None:
    """glibc replaces all higher ports by 65535."""
    with pytest.raises(LocalFailure, match=f"port {port}"):
        await Resolver().find(Endpoint("127.0.0.1", port), LIMIT_S)


class SlowNames:
    """Replaces the system's resolver, which no test can slow down; blocks as the real one does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.known = threading.Event()
        monkeypatch.setattr(socket, "getaddrinfo", self.getaddrinfo)

    def getaddrinfo(self, host: str, port: int, flags: int = 0, **_: Any) -> Addresses:
        if flags:
            raise GONE
        self.asked.append(host)
        if host.startswith("slow"):
            assert self.known.wait(LIMIT_S)
        return tcp((host, port))


async def test_slow_resolver_is_a_local_failure_with_one_look_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, resolver, endpoint = SlowNames(monkeypatch), Resolver(), Endpoint("slow.example", 9100)
    for _ in range(3):
        with pytest.raises(LocalFailure, match=r"no address for slow\.example within 0\.01 s"):
            await resolver.find(endpoint, 0.01)
    waiting = asyncio.create_task(resolver.find(endpoint, LIMIT_S))
    await asyncio.sleep(0)
    names.known.set()
    assert await waiting == tcp(("slow.example", 9100))
    assert names.asked == ["slow.example"]
    await resolver.find(endpoint, LIMIT_S)
    assert len(names.asked) == 2, "a late answer is not cached"


class Names:
    """Replaces the system's resolver: returns given answers, or fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.error: Exception | None = None
        self.port = 1
        monkeypatch.setattr(socket, "getaddrinfo", self.getaddrinfo)

    def getaddrinfo(self, host: str, port: int, flags: int = 0, **_: Any) -> Addresses:
        if flags:
            raise GONE
        self.asked += 1
        if self.error is not None:
            raise self.error
        return tcp((host, self.port))


BROKER = Endpoint("kafka-1.example", 9092)
AWAY = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
GONE = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the resolver sees."""
    now_s = [0.0]
    monkeypatch.setattr(Resolver, "_now_s", lambda _: now_s[0])
    return now_s


async def looked_up(names: Names, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while names.asked < count:  # noqa: ASYNC110 (a thread asks)
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)


async def test_addresses_are_cached_and_refreshed_early(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    names, resolver = Names(monkeypatch), Resolver(5.0)
    first = await resolver.find(BROKER, LIMIT_S)
    clock[0] = 2.0
    assert await resolver.find(BROKER, LIMIT_S) == first
    assert names.asked == 1
    clock[0], names.port = 3.0, 2
    assert await resolver.find(BROKER, LIMIT_S) == first, "the caller does not wait"
    await looked_up(names, 2)
    assert await resolver.find(BROKER, LIMIT_S) == tcp((BROKER.host, 2))
    assert names.asked == 2


@pytest.mark.parametrize(
    ("error", "age_s", "usable"),
    [
        (AWAY, STALE_LIMIT_S - 1.0, True),
        (AWAY, STALE_LIMIT_S + 1.0, False),
        (GONE, 6.0, False),
        (MemoryError(), 6.0, True),
    ],
)
async def test_stale_answer_serves_unless_the_name_was_removed(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], error: Exception, age_s: float, usable: bool
) -> None:
    names, resolver = Names(monkeypatch), Resolver(5.0)
    first = await resolver.find(BROKER, LIMIT_S)
    clock[0], names.error = age_s, error
    if usable:
        assert await resolver.find(BROKER, LIMIT_S) == first
    else:
        with pytest.raises(LocalFailure, match=BROKER.host):
            await resolver.find(BROKER, LIMIT_S)
        clock[0] = age_s + 0.1
        with pytest.raises(LocalFailure, match=BROKER.host):
            await resolver.find(BROKER, LIMIT_S)


async def test_hanging_name_serves_its_old_answer(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    names, resolver, endpoint = SlowNames(monkeypatch), Resolver(5.0), Endpoint("slow.example", 9092)
    names.known.set()
    first = await resolver.find(endpoint, LIMIT_S)
    names.known.clear()
    clock[0] = 60.0
    async with asyncio.timeout(LIMIT_S):
        assert await resolver.find(endpoint, 2 * LIMIT_S) == first
    names.known.set()


async def test_unreachable_address_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    names, resolver = Names(monkeypatch), Resolver(5.0)
    await resolver.find(BROKER, LIMIT_S)
    resolver.forget(BROKER)
    names.port = 2
    assert await resolver.find(BROKER, LIMIT_S) == tcp((BROKER.host, 2))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%lo"])
async def test_ip_address_needs_no_look_up(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], host: str
) -> None:
    wanted, resolver, endpoint = socket.getaddrinfo(host, 1, type=1), Resolver(5.0), Endpoint(host, 1)
    monkeypatch.setattr(threading, "Thread", None)
    assert await resolver.find(endpoint, LIMIT_S) == wanted
    clock[0] = 1e6
    assert await resolver.find(endpoint, LIMIT_S) == wanted
    with pytest.raises(TypeError, match="NoneType"):
        await resolver.find(Endpoint("localhost", 1), LIMIT_S)


async def test_name_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "MAX_CACHED_NAMES", 3)
    Names(monkeypatch)
    resolver = Resolver(5.0)
    for number in range(5):
        await resolver.find(Endpoint(f"kafka-{number}.example", 9092), LIMIT_S)
    kept = [resolver.cached(Endpoint(f"kafka-{number}.example", 9092)) for number in range(5)]
    assert sum(addresses is not None for addresses in kept) == 3


async def test_slow_names_do_not_block_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: two names of brokers took ten seconds each, and members could no longer be resolved."""
    names, resolver = SlowNames(monkeypatch), Resolver()
    slow = [
        asyncio.create_task(resolver.find(Endpoint(f"slow{n}.example", 9092), LIMIT_S)) for n in range(20)
    ]
    assert await resolver.find(Endpoint("p2.example", 9100), LIMIT_S) == tcp(("p2.example", 9100))
    assert not any(each.done() for each in slow)
    names.known.set()
    await asyncio.gather(*slow)


def test_abandoned_look_up_logs_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, ended = threading.Event(), threading.Event()

    def fail(*_: object, **__: object) -> None:
        assert go_on.wait(LIMIT_S)
        ended.set()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async def give_up() -> None:
        with pytest.raises(LocalFailure):
            await Resolver().find(Endpoint("p2.example", 9100), 0.01)
        go_on.set()
        await asyncio.to_thread(ended.wait, LIMIT_S)

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    asyncio.run(give_up())
    assert caplog.records == []
