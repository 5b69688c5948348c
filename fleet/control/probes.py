"""Probes of advertised listeners and real brokers: whether an address answers, and answers in Kafka.

A probe sends an ApiVersions request. To a member, the request has a version that does not exist. Every worker
answers it without a broker (error 35 in a v0 body, as a broker would), so the answer proves that the
advertised address leads to a live worker, whatever the brokers do. To a broker, the request has version 0,
which brokers answer before any authentication.

Members also hold such a connection to each other's workers and repeat the request on it. The end of the
connection is the first sign of a death. Silence on the connection shows that no traffic gets through.
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
_VERSIONS_WITH_FEATURES: Final = (4, 3)
"""Versions of ApiVersions whose answers have the features of the cluster. Brokers have v3 since 2.4."""
_SOFTWARE: Final = bytes((len(_CLIENT_ID) + 1,)) + _CLIENT_ID + b"\x021\x00"
"""Software name, version 1, no tagged fields. Source: ApiVersionsRequest.json v3"""


def _request(version: int) -> bytes:
    # The header's tagged fields exist in request header v2, which starts with ApiVersions v3.
    header = struct.pack(">hhih", _API_VERSIONS, version, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID
    body = _SOFTWARE if version in _VERSIONS_WITH_FEATURES else b""
    return _frame(header if version == 0 else header + b"\x00" + body)


def _frame(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


_EMPTY_LIST_OFFSETS_REQUEST: Final = _frame(
    struct.pack(">hhih", 2, 1, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID + struct.pack(">ii", -1, 0)
)
"""ListOffsets v1 of no topics: the smallest request that brokers answer to every client.

Source: ListOffsetsRequest.json"""
_EMPTY_LIST_OFFSETS_RESPONSE: Final = struct.pack(">iii", 8, _CORRELATION_ID, 0)


@dataclass(frozen=True, slots=True)
class Target:
    """An address to probe, and the TLS context for it, if any."""

    endpoint: Endpoint
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """A target whose name is resolved."""

    target: Target
    addresses: Addresses


async def resolve(targets: Iterable[Target], resolver: Resolver, timeout_s: float) -> list[ResolvedTarget]:
    """Resolve the names of some targets.

    Raises: LocalFailure: a name cannot be resolved, or not in time
    """

    async def resolve_target(target: Target) -> ResolvedTarget:
        return ResolvedTarget(target, await resolver.find(target.endpoint, timeout_s))

    return await asyncio.gather(*(resolve_target(target) for target in targets))


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int | None, bytes]:
    """Read the answer to ApiVersions.

    Returns: its error code, or None if the bytes are not an answer to this request; and its body.
    """
    size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
    if correlation_id != _CORRELATION_ID or not 6 <= size <= _ANSWER_LIMIT_BYTES:
        return None, b""
    body = await reader.readexactly(size - 4)
    return int.from_bytes(body[:2], "big", signed=True), body


@asynccontextmanager
async def _ask(
    resolved: ResolvedTarget, version: int
) -> AsyncIterator[tuple[int | None, bytes, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection and ask for ApiVersions on it.

    Yields: the error code and the body of the answer, as `_read_answer` returns them; the reader and the
        writer of the connection.
    Raises: LocalFailure: this member cannot ask
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
        yield *(await _read_answer(reader)), reader, writer
    finally:
        # Aborted, not closed: the other end may never answer a FIN.
        writer.transport.abort()


async def probe_member(targets: Iterable[ResolvedTarget], timeout_s: float) -> ProbeOutcome:
    """Probe a member on the bootstrap port of every listener that it advertises.

    Returns: ANSWERED if all listeners answered, otherwise the worst outcome
    Raises: LocalFailure: this member could not ask one of them, so the state of the member is unknown
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
            async with _ask(target, _IMPOSSIBLE_VERSION) as (answer, *_):
                return ProbeOutcome.ANSWERED if answer == _UNSUPPORTED_VERSION else ProbeOutcome.REFUSED
    except TimeoutError:
        return ProbeOutcome.TIMED_OUT
    except (OSError, EOFError, MemoryError) as error:
        if is_peer_failure(error):
            return ProbeOutcome.REFUSED
        raise LocalFailure(str(error)) from error


class HoldEnd(StrEnum):
    """Why a held connection to a worker ended."""

    UNREACHABLE = "unreachable"
    """No worker answered, so there was no connection to hold."""
    CLOSED = "closed"
    """The worker, or a device in between, closed the connection."""
    GIVEN_UP = "given up"
    """The connection was silent for too long, or this member can no longer use it."""


@dataclass(frozen=True, slots=True)
class HoldTiming:
    """Times of a held connection, in seconds.

    Args:
        first_s: the limit for the connection and its first answer.
        interval_s: the time between two questions.
        silence_s: the longest silence before the connection is given up.
    """

    first_s: float
    interval_s: float
    silence_s: float


async def hold_connection(
    target: ResolvedTarget, timing: HoldTiming, on_asked: Callable[[], None], on_answered: Callable[[], None]
) -> HoldEnd:
    """Keep a connection to a member's worker, repeat the question on it, and return when it has ended.

    When a member is killed, its worker closes connections some milliseconds before its control process, which
    is larger, closes the members' link. So this connection ends as early as the connections of clients.

    Args:
        on_asked: called before every question except the first.
        on_answered: called at every answer except the first.
    """
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(timing.first_s):
                first = _ask(target, _IMPOSSIBLE_VERSION)
                answer, _, reader, writer = await stack.enter_async_context(first)
        except (OSError, EOFError, MemoryError):
            return HoldEnd.UNREACHABLE
        if answer != _UNSUPPORTED_VERSION:
            return HoldEnd.UNREACHABLE
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(_keep_asking(writer, timing.interval_s, on_asked))
            end = await _receive_answers(reader, timing.silence_s, on_answered)
            asking.cancel()
        return end


async def _keep_asking(writer: asyncio.StreamWriter, interval_s: float, on_asked: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(interval_s)
        on_asked()
        writer.write(_request(_IMPOSSIBLE_VERSION))


async def _receive_answers(
    reader: asyncio.StreamReader, silence_s: float, on_answered: Callable[[], None]
) -> HoldEnd:
    try:
        while True:
            async with asyncio.timeout(silence_s):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                if not 0 <= size <= _ANSWER_LIMIT_BYTES:
                    return HoldEnd.CLOSED
                await reader.readexactly(size)
            on_answered()
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
    serves_anonymous_clients: bool = False,
    on_versions: Callable[[bytes], None] | None = None,
) -> str | None:
    """Ask a real broker for its ApiVersions, which it answers before any authentication.

    Args:
        on_versions: called with the body of the answer in v3 or above, if the broker has such a version.
        resolver: the resolver of a caller that probes repeatedly.
        serves_anonymous_clients: whether the broker serves clients without credentials. Then the probe also
            asks for the offsets of no partition. At a broker that requires credentials, such a request would
            count as a failed login.
    Returns: why the broker does not answer in time, in words for an operator; None if it answers
    """
    has_answered = False
    try:
        context = None if tls is None else tls.get()
        ends_s = asyncio.get_running_loop().time() + timeout_s
        (target,) = await resolve((Target(endpoint, context),), resolver or Resolver(), timeout_s)
        async with asyncio.timeout_at(ends_s):
            version = 0 if on_versions is None else _VERSIONS_WITH_FEATURES[0]
            async with _ask(target, version) as (answer, body, reader, writer):
                if answer == _UNSUPPORTED_VERSION and on_versions is not None:
                    writer.write(_request(_VERSIONS_WITH_FEATURES[1]))
                    answer, body = await _read_answer(reader)
                if answer == 0 and on_versions is not None:
                    on_versions(body)
                accepted = (0,) if on_versions is None else (0, _UNSUPPORTED_VERSION)
                if answer not in accepted:
                    return "it does not answer like a Kafka broker"
                if not serves_anonymous_clients:
                    return None
                has_answered = True
                writer.write(_EMPTY_LIST_OFFSETS_REQUEST)
                await reader.readexactly(len(_EMPTY_LIST_OFFSETS_RESPONSE))
                return None
    except TimeoutError:
        return "it answers ApiVersions, but not ListOffsets" if has_answered else "timed out"
    except asyncio.IncompleteReadError:
        if has_answered:
            return None  # the broker is up, and no longer serves anonymous clients
        return "it closes the connection on ApiVersions" + ("; does it require TLS?" if tls is None else "")
    except DIAL_ERRORS as error:
        return explain_dial(error)
