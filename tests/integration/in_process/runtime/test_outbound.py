"""A name with several addresses: the first address that answers is used, and no attempt is left open."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest
import pytest_asyncio

from fleet.runtime.outbound import ATTEMPT_DELAY_S, LocalFailure, connect
from tests.unit.runtime.test_outbound import LIMIT_S, tcp

# TCP connects to no broadcast address, whatever routes there are: ENETUNREACH. Source: Linux, tcp_v4_connect
UNREACHABLE = ("255.255.255.255", 1)


@pytest.fixture
def silent_endpoint() -> Iterator[tuple[str, int]]:
    """An address that refuses connections, and that no other process can take meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()


@pytest_asyncio.fixture
async def listening_endpoint() -> AsyncIterator[tuple[str, int]]:
    """An address with a listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()


async def test_the_first_address_that_takes_a_connection_is_taken(
    silent_endpoint: tuple[str, int], listening_endpoint: tuple[str, int]
) -> None:
    with await connect(tcp(silent_endpoint, listening_endpoint, UNREACHABLE)) as sock:
        assert sock.getpeername() == listening_endpoint


async def test_address_without_a_route_does_not_delay_others(
    listening_endpoint: tuple[str, int],
) -> None:
    with await connect(tcp(UNREACHABLE, listening_endpoint)) as sock:
        assert sock.getpeername() == listening_endpoint


@pytest.fixture
def mute_log() -> Iterator[tuple[str, int]]:
    """An address that drops packets: its queue of connections is full, so that the kernel answers no SYN."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, ExitStack() as stack:
        for _ in range(4):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(listening.getsockname())
        yield listening.getsockname()


async def test_silent_address_does_not_delay_others(
    mute_log: tuple[str, int], listening_endpoint: tuple[str, int]
) -> None:
    """Found: `::1 kafka-1` dropped packets, and `127.0.0.1 kafka-1` was never tried."""
    async with asyncio.timeout(LIMIT_S):
        with await connect(tcp(mute_log, mute_log, listening_endpoint)) as sock:
            assert sock.getpeername() == listening_endpoint


async def test_slower_attempts_leave_no_connection(
    mute_log: tuple[str, int], listening_endpoint: tuple[str, int]
) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with await connect(tcp(mute_log, listening_endpoint)):
        pass
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert set(os.listdir("/proc/self/fd")) == before
    assert len(asyncio.all_tasks()) == 1


async def test_abandoned_attempts_leave_no_connection(mute_log: tuple[str, int]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * ATTEMPT_DELAY_S):
            await connect(tcp(mute_log, mute_log))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert set(os.listdir("/proc/self/fd")) == before


async def test_refused_connection_is_a_peer_failure(silent_endpoint: tuple[str, int]) -> None:
    with pytest.raises(ConnectionRefusedError):
        await connect(tcp(silent_endpoint))


async def test_address_without_route_keeps_the_earlier_refusal(
    silent_endpoint: tuple[str, int],
) -> None:
    """Like an address of a family that this machine lacks: a resolver sorts it to the end."""
    with pytest.raises(ConnectionRefusedError):
        await connect(tcp(silent_endpoint, UNREACHABLE))


@pytest.mark.parametrize("behind", [False, True])
async def test_missing_route_is_a_local_failure(silent_endpoint: tuple[str, int], behind: bool) -> None:
    with pytest.raises(LocalFailure, match=r"no connection: .*unreachable"):
        await connect(tcp(UNREACHABLE, silent_endpoint) if behind else tcp(UNREACHABLE))


async def test_exhausted_descriptors_are_a_local_failure(listening_endpoint: tuple[str, int]) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as lowest:
        free = lowest.fileno()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
        with pytest.raises(LocalFailure, match="Too many open files"):
            await connect(tcp(listening_endpoint))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
