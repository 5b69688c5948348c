"""Many connections that are almost idle: how much CPU time and memory of a proxy they take."""

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

from benchmarks.cluster import Stage, Target, advertised_addresses, rotate_targets
from benchmarks.cpu import cpu_s
from benchmarks.errors import BenchError
from benchmarks.metadata_client import Connection, ask, client_context
from benchmarks.results import Sample, Say
from fleet.config.schema import parse_endpoint
from fleet.core.errors import WireError
from fleet.core.model import Endpoint

CONNECTIONS: Final = "connections"
RUNS: Final[Mapping[int, int]] = MappingProxyType({100: 8, 1_000: 8, 5_000: 4, 10_000: 1})
"""Sizes of crowds, and the measurements of each in a round: two of the same target differ by a tenth."""
MEMORY_MEASURES: Final = frozenset({"memory_mb", "kib_per_connection"})
"""Measures of the first turn of a round only, when each size is the greatest so far."""
CONCURRENT_CLIENTS: Final = 64
"""How many clients connect, or send a request, at the same time."""
_FILE_LIMIT: Final = 25_000
"""Enough for the greatest size: a proxy has two files for each connection."""
_OTHER_FILES: Final = 500
_LIMIT_S: Final = 60.0
_PAUSE_S: Final = 0.05


def raise_file_limit() -> None:
    """Raise the limit of open files, of this process and its children, as far as needed and allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # few users may raise the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, _FILE_LIMIT), max(hard, _FILE_LIMIT)))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def can_open_files(target: Target, size: int) -> bool:
    """Whether the clients, and a target's proxies if it has any, may open as many files as a size needs."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = len(target.proxies())
    most = max(size, 2 * size / processes if processes else 0)
    return most + _OTHER_FILES <= allowed


def crowds(stage: Stage, number: int, say: Say, runs: Mapping[int, int] = RUNS) -> Iterator[Sample]:
    """A round of ever larger crowds of clients with each target; each turn begins with another target.

    A target is left out of a size that needs more open files than its processes may have.

    Args:
        number: the round's number.
        runs: by size, how many turns a round has.
    Raises: BenchError: connections are refused or not answered, or a proxy ended.
    """
    empty_bytes = {target.name: memory_bytes(target) for target in stage.targets}
    for size in runs:
        for turn, target in rotate_targets(stage.targets, runs[size], number):
            if not can_open_files(target, size):
                continue
            say(f"{size:,} connections, {target.name}")
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found = runner.run(measure_crowd(target, size, empty_bytes[target.name]))
            for measure, value in found.items():
                if turn > number * runs[size] and measure in MEMORY_MEASURES:
                    continue  # a proxy keeps the memory of an earlier turn, or of a greater size
                yield Sample(CONNECTIONS, f"{measure}_{size}", target.name, turn, value)


async def measure_crowd(target: Target, size: int, empty_bytes: int) -> dict[str, float]:
    """Connect `size` clients, have each request Metadata once more, and disconnect them.

    Args:    empty_bytes: the memory of the target's proxies before the first client connected.
    Returns: the measures; those of CPU time and memory if the target has proxies.
    Raises:  BenchError: a connection or a request fails.
    """
    proxies = target.proxies()
    files, context = open_files(target), client_context(target.security)
    endpoints = cycle(parse_endpoint(each) for each in sorted(advertised_addresses(target)))
    found = {}
    try:
        async with asyncio.timeout(_LIMIT_S), _connections() as connections:
            began_s, before_s = time.perf_counter(), cpu_s(proxies)
            await run_concurrently(
                [partial(_connect, next(endpoints), context, connections) for _ in range(size)]
            )
            found["connects_per_s"] = size / (time.perf_counter() - began_s)
            if proxies:
                found["cpu_us_per_connect"] = 1e6 * (cpu_s(proxies) - before_s) / size
                memory = memory_bytes(target)
                found["memory_mb"] = memory / 1e6
                found["kib_per_connection"] = max(0, memory - empty_bytes) / 1024 / size
            if len(proxies) > 1:
                found["max_to_mean"] = max_to_mean(files, open_files(target))
            random.shuffle(connections)
            before_s = cpu_s(proxies)
            await run_concurrently([partial(ask, each) for each in connections])
            if proxies:
                found["cpu_us_per_request"] = 1e6 * (cpu_s(proxies) - before_s) / size
        async with asyncio.timeout(_LIMIT_S):
            while sum(open_files(target)) > sum(files):  # noqa: ASYNC110 (other processes close them)
                await asyncio.sleep(_PAUSE_S)
    except (OSError, asyncio.IncompleteReadError, WireError) as error:
        raise BenchError(f"{size:,} connections to {target.name}: {error!r}") from error
    return found


async def run_concurrently(works: Sequence[Callable[[], Awaitable[object]]]) -> None:
    """Await all of them, `CONCURRENT_CLIENTS` at a time."""
    left = iter(works)

    async def run_some() -> None:
        for work in left:
            await work()

    await asyncio.gather(*(run_some() for _ in range(CONCURRENT_CLIENTS)))


@asynccontextmanager
async def _connections() -> AsyncIterator[list[Connection]]:
    """A list of connections; all are closed at the end."""
    connections: list[Connection] = []
    try:
        yield connections
    finally:
        for _, writer in connections:
            writer.close()
        for _, writer in connections:
            await writer.wait_closed()


async def _connect(endpoint: Endpoint, context: ssl.SSLContext | None, connections: list[Connection]) -> None:
    connection = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
    connections.append(connection)
    await ask(connection)


def memory_bytes(target: Target) -> int:
    """The memory of a target's proxies, with their parts of shared memory."""
    return sum(int(psutil.Process(pid).memory_full_info().pss) for pid in target.proxies())


def open_files(target: Target) -> list[int]:
    """How many files each of a target's proxies has open."""
    return [psutil.Process(pid).num_fds() for pid in target.proxies()]


def max_to_mean(before: Sequence[int], after: Sequence[int]) -> float:
    """The most files that one process has gained, over the mean of all: how evenly connections are spread.

    Args: before, after: open files of each process, in the same order.
    """
    more = [now - then for then, now in zip(before, after, strict=True)]
    return max(more) / (sum(more) / len(more))
