"""Many connections that hardly say anything: what they take of a proxy's CPU time and memory."""

from __future__ import annotations

import asyncio
import random
import resource
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import cycle
from types import MappingProxyType
from typing import Final

import psutil
import uvloop

from benchmarks.cluster import Stage, Target, advertised, in_turns
from benchmarks.cpu import cpu_s
from benchmarks.errors import BenchError
from benchmarks.metadata_client import Connection, ask, trusting
from benchmarks.results import Sample, Say
from fleet.config.schema import parse_endpoint
from fleet.core.errors import WireError
from fleet.core.model import Endpoint

CONNECTIONS: Final = "connections"
RUNS: Final[Mapping[int, int]] = MappingProxyType({100: 8, 1_000: 8, 5_000: 4, 10_000: 1})
"""The sizes of crowds, and how many times each comes in a round: those of one target differ by a tenth."""
MEMORY: Final = frozenset({"memory_mb", "kib_per_connection"})
"""Measures of the first turn of a round alone, when each size is the greatest so far."""
AT_ONCE: Final = 64
"""How many clients connect, or ask, at the same time."""
_FILES: Final = 25_000
"""For the greatest size: a proxy has two for each connection."""
_OTHER_FILES: Final = 500
_LIMIT_S: Final = 60.0
_PAUSE_S: Final = 0.05


def allow_files() -> None:
    """Let this process, and those that it starts, have as many files open as they may, up to enough."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # few may raise the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, _FILES), max(hard, _FILES)))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fits(target: Target, size: int) -> bool:
    """Whether the clients, and a target's proxies, if it has any, may have as many files open as it takes."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = len(target.proxies())
    most = max(size, 2 * size / processes if processes else 0)
    return most + _OTHER_FILES <= allowed


def crowds(stage: Stage, number: int, say: Say, runs: Mapping[int, int] = RUNS) -> Iterator[Sample]:
    """A round of connecting ever more clients with each target; in each turn another one is the first.

    A size that takes more open files than a target's processes may have is left out there.

    Args:
        number: of the round.
        runs: by size, how many turns a round has.
    Raises: BenchError: connections are refused or not answered, or a proxy ended.
    """
    empty_bytes = {target.name: memory_bytes(target) for target in stage.targets}
    for size in runs:
        for turn, target in in_turns(stage.targets, runs[size], number):
            if not fits(target, size):
                continue
            say(f"{size:,} connections, {target.name}")
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found = runner.run(crowd(target, size, empty_bytes[target.name]))
            for measure, value in found.items():
                if turn > number * runs[size] and measure in MEMORY:
                    continue  # a proxy keeps what it has had: of an earlier turn, or a greater size
                yield Sample(CONNECTIONS, f"{measure}_{size}", target.name, turn, value)


async def crowd(target: Target, size: int, empty_bytes: int) -> dict[str, float]:
    """Connect so many clients, have each ask for Metadata once more, and leave.

    Args:    empty_bytes: the memory of the target's proxies before anybody came.
    Returns: its measures; of the target's proxies those of CPU and memory, if it has any.
    Raises:  BenchError: it does not work.
    """
    proxies = target.proxies()
    files, context = open_files(target), trusting(target.security)
    endpoints = cycle(parse_endpoint(each) for each in sorted(advertised(target)))
    found = {}
    try:
        async with asyncio.timeout(_LIMIT_S), _connections() as connections:
            began_s, before_s = time.perf_counter(), cpu_s(proxies)
            await at_once([partial(_come, next(endpoints), context, connections) for _ in range(size)])
            found["connects_per_s"] = size / (time.perf_counter() - began_s)
            if proxies:
                found["cpu_us_per_connect"] = 1e6 * (cpu_s(proxies) - before_s) / size
                memory = memory_bytes(target)
                found["memory_mb"] = memory / 1e6
                found["kib_per_connection"] = max(0, memory - empty_bytes) / 1024 / size
            if len(proxies) > 1:
                found["most_to_mean"] = most_to_mean(files, open_files(target))
            random.shuffle(connections)
            before_s = cpu_s(proxies)
            await at_once([partial(ask, each) for each in connections])
            if proxies:
                found["cpu_us_per_request"] = 1e6 * (cpu_s(proxies) - before_s) / size
        async with asyncio.timeout(_LIMIT_S):
            while sum(open_files(target)) > sum(files):  # noqa: ASYNC110 (other processes close them)
                await asyncio.sleep(_PAUSE_S)
    except (OSError, asyncio.IncompleteReadError, WireError) as error:
        raise BenchError(f"{size:,} connections to {target.name}: {error!r}") from error
    return found


async def at_once(works: Sequence[Callable[[], Awaitable[object]]]) -> None:
    """Do it all, so much of it at a time."""
    left = iter(works)

    async def some() -> None:
        for work in left:
            await work()

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


@asynccontextmanager
async def _connections() -> AsyncIterator[list[Connection]]:
    """Those that are put there are closed in the end."""
    connections: list[Connection] = []
    try:
        yield connections
    finally:
        for _, writer in connections:
            writer.close()
        for _, writer in connections:
            await writer.wait_closed()


async def _come(endpoint: Endpoint, context: ssl.SSLContext | None, connections: list[Connection]) -> None:
    connection = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
    connections.append(connection)
    await ask(connection)


def memory_bytes(target: Target) -> int:
    """What a target's proxies have of the memory, with their shares of what they share."""
    return sum(int(psutil.Process(pid).memory_full_info().pss) for pid in target.proxies())


def open_files(target: Target) -> list[int]:
    """How many files each of a target's proxies has open."""
    return [psutil.Process(pid).num_fds() for pid in target.proxies()]


def most_to_mean(before: Sequence[int], after: Sequence[int]) -> float:
    """By how many files one process has more now than the mean of all: how connections are spread.

    Args: before, after: how many each has had open; in the same order.
    """
    more = [now - then for then, now in zip(before, after, strict=True)]
    return max(more) / (sum(more) / len(more))
