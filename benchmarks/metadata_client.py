"""Metadata over a bare connection, and clients that run as processes of their own."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.errors import BenchError
from fleet.core.model import Endpoint
from fleet.proxy.wire.metadata import Table, brokers_of, metadata_request
from fleet.runtime.child import die_with_parent

ROOT: Final = Path(__file__).resolve().parent.parent
_LIMIT_S: Final = 120.0
_PAUSE_S: Final = 0.05
Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
StartWork: TypeAlias = Callable[[], str]
"""Starts a client's work, and returns the line that it prints at the end. Raises: BenchError: it failed."""


async def ask(connection: Connection, *, all_topics: bool = False) -> Table:
    """Request Metadata, for which a proxy dials a broker.

    Raises: OSError, IncompleteReadError: there is no response; WireError: the response is not Metadata.
    """
    reader, writer = connection
    writer.write(metadata_request(1, all_topics=all_topics))
    return brokers_of(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")), 1)


def client_context(security: Mapping[str, str]) -> ssl.SSLContext | None:
    """librdkafka's settings as a context for a client without librdkafka; None for plaintext."""
    if not security:
        return None
    return ssl.create_default_context(cafile=security["ssl.ca.location"])


async def check(
    endpoint: Endpoint, *, all_topics: bool = False, context: ssl.SSLContext | None = None
) -> None:
    """Raises: OSError, WireError, BenchError: there is no Metadata, or it has no brokers."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
    try:
        if not await ask((reader, writer), all_topics=all_topics):
            raise BenchError(f"{endpoint} sends Metadata without brokers")
    finally:
        writer.close()


def await_answer(
    endpoint: Endpoint, context: ssl.SSLContext | None = None, limit_s: float = _LIMIT_S
) -> None:
    """Wait until an endpoint answers. Raises: BenchError: it does not."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            asyncio.run(check(endpoint, context=context))
            return
        except (OSError, asyncio.IncompleteReadError) as error:
            if time.monotonic() > deadline_s:
                raise BenchError(f"{endpoint} does not answer: {error}") from error
            time.sleep(_PAUSE_S)


@contextmanager
def client(module: str, *arguments: str, what: str, target: str) -> Iterator[StartWork]:
    """A module of this package as a process that has printed that it is ready.

    Yields: the function that starts the client's work; some clients can work several times
    Raises: BenchError: the client did not become ready
    """
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=partial(die_with_parent, os.getpid()),
    ) as process:

        def start_work() -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            line = ""
            if process.poll() is None:  # a client that waited for its turn may have failed in the meantime
                print("go", file=process.stdin, flush=True)
                line = process.stdout.readline()
            if not line:
                raise BenchError(f"{what} failed with {target}")
            return line

        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise BenchError(f"{what} could not begin with {target}")
            yield start_work
        finally:
            process.kill()  # it has printed all results, or still waits for its start
