"""Metadata over a bare connection, and clients that are processes of their own."""

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
Go: TypeAlias = Callable[[], str]
"""Has a client begin, and returns the line that it prints in the end. Raises: BenchError: it has failed."""


async def ask(connection: Connection, *, all_topics: bool = False) -> Table:
    """Metadata, for which a proxy dials a broker.

    Raises: OSError, IncompleteReadError: it is not answered; WireError: what comes is no Metadata.
    """
    reader, writer = connection
    writer.write(metadata_request(1, all_topics=all_topics))
    return brokers_of(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")), 1)


def trusting(security: Mapping[str, str]) -> ssl.SSLContext | None:
    """These settings of librdkafka for a client that is none; None for plaintext."""
    if not security:
        return None
    return ssl.create_default_context(cafile=security["ssl.ca.location"])


async def check(
    endpoint: Endpoint, *, all_topics: bool = False, context: ssl.SSLContext | None = None
) -> None:
    """Raises: OSError, WireError, BenchError: no Metadata, or none with brokers in it."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
    try:
        if not await ask((reader, writer), all_topics=all_topics):
            raise BenchError(f"{endpoint} tells of no brokers")
    finally:
        writer.close()


def await_answer(
    endpoint: Endpoint, context: ssl.SSLContext | None = None, limit_s: float = _LIMIT_S
) -> None:
    """Wait until it answers. Raises: BenchError: it does not."""
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
def client(module: str, *arguments: str, what: str, target: str) -> Iterator[Go]:
    """A module of these as a process that has said that it is ready.

    Yields: what has it begin; a client may know how to do so again
    Raises: BenchError: it did not become ready
    """
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=partial(die_with_parent, os.getpid()),
    ) as process:

        def go() -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            said = ""
            if process.poll() is None:  # a client that waited for its turn may have failed meanwhile
                print("go", file=process.stdin, flush=True)
                said = process.stdout.readline()
            if not said:
                raise BenchError(f"{what} failed with {target}")
            return said

        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise BenchError(f"{what} could not begin with {target}")
            yield go
        finally:
            process.kill()  # it has said all that is of interest, or waits for nobody
