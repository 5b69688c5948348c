"""Is somebody there, and does it speak Kafka? One question asked of advertised listeners and real brokers.

The question is an ApiVersions request. To a member it has a version that does not exist: every worker
answers that by itself (error 35 in a v0 body, as a broker would), so the answer says that the advertised
address leads to a live worker, whatever the brokers do. To a broker it has version 0, which is answered
before any authentication.

Members also hold one such connection to each other's workers, and ask over it all the time: its end is the
first sign of a death, and its silence that nothing gets through.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fleet.core.liveness import ProbeOutcome
from fleet.core.model import Endpoint
from fleet.runtime.outbound import Addresses, LocalFailure, Resolver, connect, is_peer_failure
from fleet.tls.brokers import DIAL_ERRORS, BrokerTls, explain_dial

_API_VERSIONS: Final = 18
_IMPOSSIBLE_VERSION: Final = 32767
_UNSUPPORTED_VERSION: Final = 35
_CORRELATION_ID: Final = 0x46_4C_45_54
_CLIENT_ID: Final = b"fleet-probe"
_ANSWER_LIMIT_BYTES: Final = 64 * 1024


def _request(version: int) -> bytes:
    # The header's tagged fields exist in request header v2, which starts with ApiVersions v3.
    header = struct.pack(">hhih", _API_VERSIONS, version, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID
    return _framed(header if version == 0 else header + b"\x00")


def _framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


_LIST_NO_OFFSETS: Final = _framed(
    struct.pack(">hhih", 2, 1, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID + struct.pack(">ii", -1, 0)
)
"""ListOffsets v1 of no topics: the least that brokers answer to everybody. Source: ListOffsetsRequest.json"""
_NO_OFFSETS: Final = struct.pack(">iii", 8, _CORRELATION_ID, 0)


@dataclass(frozen=True, slots=True)
class Target:
    """Where to ask, and with which TLS, if any."""

    endpoint: Endpoint
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """A target whose name has been looked up."""

    target: Target
    addresses: Addresses


async def resolve(targets: Iterable[Target], resolver: Resolver, timeout_s: float) -> list[ResolvedTarget]:
    """Look up the names of some targets.

    Raises: LocalFailure: one of them cannot be looked up, or not in time
    """

    async def one(target: Target) -> ResolvedTarget:
        return ResolvedTarget(target, await resolver.find(target.endpoint, timeout_s))

    return await asyncio.gather(*(one(target) for target in targets))


@asynccontextmanager
async def _asked(
    resolved: ResolvedTarget, version: int
) -> AsyncIterator[tuple[int | None, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which the question was asked.

    Yields: the error code of the answer, None where what came is not an answer to this question; and the
        connection, to read on.
    Raises: LocalFailure: it could not be asked
    """
    tls = resolved.target.tls
    sock = await connect(resolved.addresses)
    try:
        name = None if tls is None else resolved.target.endpoint.tls_name
        reader, writer = await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=name)
    except BaseException:
        sock.close()
        raise
    try:
        writer.write(_request(version))
        size, correlation_id, error_code = struct.unpack(">iih", await reader.readexactly(10))
        if correlation_id == _CORRELATION_ID and 6 <= size <= _ANSWER_LIMIT_BYTES:
            await reader.readexactly(size - 6)
            yield int(error_code), reader, writer
        else:
            yield None, reader, writer
    finally:
        # Aborted, not closed: whoever is at the other end may never answer a FIN.
        writer.transport.abort()


async def probe_member(targets: Iterable[ResolvedTarget], timeout_s: float) -> ProbeOutcome:
    """Ask a member on the bootstrap port of every listener that it advertises.

    Returns: ANSWERED where all of them answered, else the worst that was seen
    Raises: LocalFailure: one of them could not be asked, so that nothing is known of the member
    """
    probes = (_probe_listener(target, timeout_s) for target in targets)
    outcomes = await asyncio.gather(*probes, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    for bad in (ProbeOutcome.REFUSED, ProbeOutcome.TIMED_OUT):
        if bad in outcomes:
            return bad
    return ProbeOutcome.ANSWERED


async def _probe_listener(target: ResolvedTarget, timeout_s: float) -> ProbeOutcome:
    try:
        async with asyncio.timeout(timeout_s):
            async with _asked(target, _IMPOSSIBLE_VERSION) as (answer, *_):
                return ProbeOutcome.ANSWERED if answer == _UNSUPPORTED_VERSION else ProbeOutcome.REFUSED
    except TimeoutError:
        return ProbeOutcome.TIMED_OUT
    except (OSError, EOFError, MemoryError) as error:
        if is_peer_failure(error):
            return ProbeOutcome.REFUSED
        raise LocalFailure(str(error)) from error


class HoldEnd(StrEnum):
    """How it came that a connection to a worker is not held any more."""

    UNREACHABLE = "nobody"
    """There was no worker to hold a connection to."""
    CLOSED = "let go"
    """The worker, or whoever is in between, ended it."""
    GIVEN_UP = "given up"
    """Nothing has come over it for too long, or this member cannot use it any more."""


@dataclass(frozen=True, slots=True)
class HoldPace:
    """How long to wait for a first answer, between two questions, and for any answer (seconds)."""

    first_s: float
    interval_s: float
    silence_s: float


async def hold(
    target: ResolvedTarget, pace: HoldPace, asked: Callable[[], None], answered: Callable[[], None]
) -> HoldEnd:
    """Keep a connection to a member's worker, ask over it all the time, and return when it has ended.

    A worker that is killed lets go of its connections some milliseconds before its control process, which is
    greater, lets go of the members' link: as early as its clients learn of it.

    Args:
        asked, answered: called before every question but the first, and with every answer to one.
    """
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(pace.first_s):
                first = _asked(target, _IMPOSSIBLE_VERSION)
                answer, reader, writer = await stack.enter_async_context(first)
        except (OSError, EOFError, MemoryError):
            return HoldEnd.UNREACHABLE
        if answer != _UNSUPPORTED_VERSION:
            return HoldEnd.UNREACHABLE
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(_keep_asking(writer, pace.interval_s, asked))
            end = await _hear(reader, pace.silence_s, answered)
            asking.cancel()
        return end


async def _keep_asking(writer: asyncio.StreamWriter, interval_s: float, asked: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(interval_s)
        asked()
        writer.write(_request(_IMPOSSIBLE_VERSION))


async def _hear(reader: asyncio.StreamReader, silence_s: float, answered: Callable[[], None]) -> HoldEnd:
    try:
        while True:
            async with asyncio.timeout(silence_s):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                if not 0 <= size <= _ANSWER_LIMIT_BYTES:
                    return HoldEnd.CLOSED
                await reader.readexactly(size)
            answered()
    except TimeoutError:
        return HoldEnd.GIVEN_UP
    except (OSError, EOFError, MemoryError) as error:
        return HoldEnd.CLOSED if is_peer_failure(error) else HoldEnd.GIVEN_UP


async def probe_broker(
    endpoint: Endpoint,
    timeout_s: float,
    tls: BrokerTls | None = None,
    resolver: Resolver | None = None,
    *,
    serves_strangers: bool = False,
) -> str | None:
    """Ask a real broker for its ApiVersions, which it answers before it knows who asks.

    Args:
        resolver: of who asks more than once.
        serves_strangers: whether it answers more to clients without credentials: then it is asked for the
            offsets of no partition, too. Where it wants credentials, that would count as a failed login.
    Returns: what keeps it from answering in time, in words for an operator; None where nothing does
    """
    has_answered = False
    try:
        context = None if tls is None else tls.get()
        ends_s = asyncio.get_running_loop().time() + timeout_s
        (target,) = await resolve((Target(endpoint, context),), resolver or Resolver(), timeout_s)
        async with asyncio.timeout_at(ends_s):
            async with _asked(target, 0) as (answer, reader, writer):
                if answer != 0:
                    return "it does not answer as a broker does"
                if not serves_strangers:
                    return None
                has_answered = True
                writer.write(_LIST_NO_OFFSETS)
                await reader.readexactly(len(_NO_OFFSETS))
                return None
    except TimeoutError:
        return "it answers ApiVersions, and then nothing" if has_answered else "timed out"
    except asyncio.IncompleteReadError:
        if has_answered:
            return None  # it is there, and answers strangers no more
        return "it hangs up when it is asked for ApiVersions" + ("; does it want TLS?" if tls is None else "")
    except DIAL_ERRORS as error:
        return explain_dial(error)
