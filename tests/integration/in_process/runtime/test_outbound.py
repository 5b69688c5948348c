"""A name with several addresses: the first that answers is taken, and no other attempt is left."""

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
def nobody() -> Iterator[tuple[str, int]]:
    """An address that refuses connections, and that no other process can take meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()


@pytest_asyncio.fixture
async def somebody() -> AsyncIterator[tuple[str, int]]:
    """An address with a listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()


async def test_the_first_address_that_takes_a_connection_is_taken(
    nobody: tuple[str, int], somebody: tuple[str, int]
) -> None:
    with await connect(tcp(nobody, somebody, UNREACHABLE)) as sock:
        assert sock.getpeername() == somebody


async def test_an_address_without_a_way_keeps_nobody_from_the_others(somebody: tuple[str, int]) -> None:
    with await connect(tcp(UNREACHABLE, somebody)) as sock:
        assert sock.getpeername() == somebody


@pytest.fixture
def mute() -> Iterator[tuple[str, int]]:
    """An address that drops packets: its queue of connections is full, so that the kernel answers no SYN."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, ExitStack() as stack:
        for _ in range(4):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(listening.getsockname())
        yield listening.getsockname()


async def test_an_address_that_is_silent_keeps_nobody_from_the_others(
    mute: tuple[str, int], somebody: tuple[str, int]
) -> None:
    """Found: `::1 kafka-1` dropped packets, and `127.0.0.1 kafka-1` was never tried."""
    async with asyncio.timeout(LIMIT_S):
        with await connect(tcp(mute, mute, somebody)) as sock:
            assert sock.getpeername() == somebody


async def test_nothing_is_left_of_attempts_that_were_slower(
    mute: tuple[str, int], somebody: tuple[str, int]
) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with await connect(tcp(mute, somebody)):
        pass
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert set(os.listdir("/proc/self/fd")) == before
    assert len(asyncio.all_tasks()) == 1


async def test_nothing_is_left_of_attempts_that_were_given_up(mute: tuple[str, int]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * ATTEMPT_DELAY_S):
            await connect(tcp(mute, mute))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert set(os.listdir("/proc/self/fd")) == before


async def test_a_refusal_is_a_refusal(nobody: tuple[str, int]) -> None:
    with pytest.raises(ConnectionRefusedError):
        await connect(tcp(nobody))


async def test_address_without_route_keeps_the_earlier_refusal(
    nobody: tuple[str, int],
) -> None:
    """As an address of a family that this machine lacks: a resolver sorts it to the end."""
    with pytest.raises(ConnectionRefusedError):
        await connect(tcp(nobody, UNREACHABLE))


@pytest.mark.parametrize("behind", [False, True])
async def test_a_missing_route_is_a_failure_of_ones_own(nobody: tuple[str, int], behind: bool) -> None:
    with pytest.raises(LocalFailure, match=r"no connection: .*unreachable"):
        await connect(tcp(UNREACHABLE, nobody) if behind else tcp(UNREACHABLE))


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
