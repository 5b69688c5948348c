"""Probes of members and brokers, and the outcome for each kind of answer, or for no answer."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kio.schema.list_offsets.v1.request import ListOffsetsRequest
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.serial import entity_reader

from fleet.config import UpstreamSettings, UpstreamTlsSettings
from fleet.control.probes import (
    HoldEnd,
    HoldTiming,
    Target,
    hold_connection,
    probe_broker,
    probe_member,
    resolve,
)
from fleet.core.liveness import ProbeOutcome
from fleet.core.model import Endpoint
from fleet.proxy.wire.api_versions import build_error_reply
from fleet.runtime.outbound import LocalFailure, Resolver
from fleet.tls.brokers import broker_tls
from tests.certificates import Authority

PATIENT_S = 30.0
HASTY_S = 0.1
CLOSES = "it closes the connection on ApiVersions"

Script = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Reads one request per connection, and passes it to the script of the test."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.asked: list[bytes] = []
        self.ended = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            size = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(size, "big"))
            self.asked.append(frame)
            await self._script(frame, reader, writer)
            await reader.read()  # until the client has closed
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended += 1
            writer.transport.abort()


@contextlib.asynccontextmanager
async def serving(
    script: Script, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Server, Endpoint]]:
    server = Server(script)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    yield server, Endpoint("127.0.0.1", listening.sockets[0].getsockname()[1])
    listening.close()
    async with asyncio.timeout(PATIENT_S):
        while server.ended < len(server.asked):  # noqa: ASYNC110 (the other end reports nothing)
            await asyncio.sleep(0.005)


def answer(error_code: int, body: bytes = bytes(4), correlation_id: int | None = None) -> Script:
    """A complete response: header v0, error code, and the rest of the body."""

    async def write(frame: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered = struct.unpack_from(">hhi", frame)[2] if correlation_id is None else correlation_id
        writer.write(struct.pack(">iih", 6 + len(body), answered, error_code) + body)

    return write


def raw(make: Callable[[int], bytes]) -> Script:
    """Send bytes that contain the correlation id, and close."""

    async def write(frame: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(make(struct.unpack_from(">hhi", frame)[2]))
        writer.write_eof()

    return write


async def silence(_: bytes, __: asyncio.StreamReader, ___: asyncio.StreamWriter) -> None:
    """Accepts and reads, but never answers. A frozen worker does less; a black hole does not accept."""


@pytest.fixture
def nobody() -> Iterator[Endpoint]:
    """An address that refuses connections, and that no other process can bind meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield Endpoint("127.0.0.1", bound.getsockname()[1])


BAD_ANSWERS = {
    "another request's": answer(35, correlation_id=1),
    "too small to be one": raw(lambda correlation_id: struct.pack(">iih", 5, correlation_id, 35)),
    "too large": raw(
        lambda correlation_id: struct.pack(">iih", 64 * 1024 + 1, correlation_id, 35) + bytes(64 * 1024)
    ),
    "cut off in its header": raw(lambda correlation_id: struct.pack(">ii", 10, correlation_id)),
    "cut off in its body": raw(lambda correlation_id: struct.pack(">iih", 10, correlation_id, 35) + bytes(3)),
    "none": raw(lambda _: b""),
    "another protocol's": raw(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n"),
}


# ---- members


async def ask_member(targets: Iterable[Target], timeout_s: float) -> ProbeOutcome:
    return await probe_member(await resolve(targets, Resolver(), PATIENT_S), timeout_s)


async def test_member_probe_needs_no_broker() -> None:
    async with serving(raw(build_error_reply)) as (server, endpoint):
        assert await ask_member([Target(endpoint)], PATIENT_S) is ProbeOutcome.ANSWERED
    (frame,) = server.asked
    header, size = entity_reader(RequestHeaderV2)(frame, 0)
    assert (header.request_api_key, header.request_api_version) == (18, 32767)
    assert header.client_id == "fleet-probe"
    assert size == len(frame)


@pytest.mark.parametrize("error_code", [0, 34, 36])
async def test_a_member_that_gives_another_error_is_no_worker(error_code: int) -> None:
    """The advertised address may lead to a broker, or to a service that only looks like Kafka."""
    async with serving(answer(error_code)) as (_, endpoint):
        assert await ask_member([Target(endpoint)], PATIENT_S) is ProbeOutcome.REFUSED


@pytest.mark.parametrize("script", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_member_with_an_invalid_answer_has_refused(script: Script) -> None:
    async with serving(script) as (_, endpoint):
        assert await ask_member([Target(endpoint)], PATIENT_S) is ProbeOutcome.REFUSED


async def test_member_without_a_listener_has_refused(nobody: Endpoint) -> None:
    assert await ask_member([Target(nobody)], PATIENT_S) is ProbeOutcome.REFUSED


async def test_a_member_that_never_answers_has_timed_out() -> None:
    async with serving(silence) as (server, endpoint):
        assert await ask_member([Target(endpoint)], HASTY_S) is ProbeOutcome.TIMED_OUT
    assert server.ended == 1


async def test_partial_answer_in_time_is_no_answer() -> None:
    async def half(frame: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(struct.pack(">iih", 10, struct.unpack_from(">hhi", frame)[2], 35))

    async with serving(half) as (_, endpoint):
        assert await ask_member([Target(endpoint)], HASTY_S) is ProbeOutcome.TIMED_OUT


async def test_every_listener_must_answer_and_the_worst_counts(nobody: Endpoint) -> None:
    async with serving(raw(build_error_reply)) as (server, alive), serving(silence) as (_, frozen):
        assert await ask_member([Target(alive), Target(alive)], PATIENT_S) is ProbeOutcome.ANSWERED
        assert len(server.asked) == 2
        assert await ask_member([Target(alive), Target(frozen)], HASTY_S) is ProbeOutcome.TIMED_OUT
        assert (
            await ask_member([Target(frozen), Target(nobody), Target(alive)], HASTY_S) is ProbeOutcome.REFUSED
        )


async def test_listeners_are_asked_at_the_same_time() -> None:
    """Each listener answers only after both have been asked."""
    both_asked = asyncio.Barrier(2)

    async def wait_for_the_other(frame: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await both_asked.wait()
        writer.write(build_error_reply(struct.unpack_from(">hhi", frame)[2]))

    async with serving(wait_for_the_other) as (_, one), serving(wait_for_the_other) as (_, other):
        assert await ask_member([Target(one), Target(other)], PATIENT_S) is ProbeOutcome.ANSWERED


@pytest.fixture
def no_descriptors() -> Iterator[Callable[[], None]]:
    """A function that uses up the descriptors of this process until the test ends."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def exhaust() -> None:
        with socket.socket() as lowest:
            # All descriptors below the lowest free one are in use.
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno(), before[1]))

    yield exhaust
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_missing_descriptors_are_no_refusal_of_the_member(
    no_descriptors: Callable[[], None],
) -> None:
    async with serving(raw(build_error_reply)) as (_, endpoint):
        assert await ask_member([Target(endpoint)], PATIENT_S) is ProbeOutcome.ANSWERED
        targets = await resolve([Target(endpoint)], Resolver(), PATIENT_S)
        no_descriptors()
        with pytest.raises(LocalFailure, match="Too many open files"):
            await probe_member(targets, PATIENT_S)


async def test_local_failure_at_one_listener_is_no_refusal(nobody: Endpoint) -> None:
    (refuses,) = await resolve([Target(nobody)], Resolver(), PATIENT_S)
    unroutable = replace(
        refuses, addresses=[(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("255.255.255.255", 1))]
    )
    assert await probe_member([refuses], PATIENT_S) is ProbeOutcome.REFUSED
    with pytest.raises(LocalFailure):
        await probe_member([refuses, unroutable], PATIENT_S)


async def test_probe_of_a_member_without_listeners_succeeds() -> None:
    assert await ask_member([], HASTY_S) is ProbeOutcome.ANSWERED


# ---- brokers


async def test_broker_probe_needs_no_authentication() -> None:
    async with serving(answer(0)) as (server, endpoint):
        assert await probe_broker(endpoint, PATIENT_S) is None
    (frame,) = server.asked
    header, size = entity_reader(RequestHeaderV1)(frame, 0)
    assert (header.request_api_key, header.request_api_version) == (18, 0)
    assert header.client_id == "fleet-probe"
    assert size == len(frame)


async def test_broker_probe_uses_tls_where_configured(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("broker").both)
    tls = broker_tls(
        UpstreamSettings(
            UpstreamTlsSettings(authority.certificate, None, None, check_hostname=True, lines={})
        )
    )
    async with serving(answer(0), context) as (server, endpoint):
        assert await probe_broker(endpoint, PATIENT_S, tls) is None
        assert len(server.asked) == 1
        assert await probe_broker(endpoint, PATIENT_S) == CLOSES + "; does it require TLS?"
    async with serving(answer(0)) as (server, endpoint):
        assert await probe_broker(endpoint, HASTY_S, tls) == "timed out"
        assert server.asked == []


async def test_broker_for_anonymous_clients_is_asked_for_offsets() -> None:
    frames: list[bytes] = []

    async def both(frame: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(0)(frame, reader, writer)
        frames.append(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
        writer.write(struct.pack(">iii", 8, struct.unpack_from(">hhi", frames[0])[2], 0))

    async with serving(both) as (_, endpoint):
        assert await probe_broker(endpoint, PATIENT_S, serves_anonymous_clients=True) is None
    (frame,) = frames
    _, size = entity_reader(RequestHeaderV1)(frame, 0)
    request, _ = entity_reader(ListOffsetsRequest)(frame, size)
    assert (request.replica_id, request.topics) == (-1, ())


async def test_broker_with_api_versions_alone_is_unreachable() -> None:
    async with serving(answer(0)) as (_, endpoint):
        trouble = await probe_broker(endpoint, HASTY_S, serves_anonymous_clients=True)
        assert trouble == "it answers ApiVersions, but not ListOffsets"


async def test_broker_that_stops_serving_anonymous_clients_is_up() -> None:
    async def hang_up(frame: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(0)(frame, reader, writer)
        await reader.readexactly(4)
        writer.write_eof()

    async with serving(hang_up) as (_, endpoint):
        assert await probe_broker(endpoint, PATIENT_S, serves_anonymous_clients=True) is None


@pytest.mark.parametrize("error_code", [35, 1])
async def test_a_broker_that_gives_an_error_is_not_reachable(error_code: int) -> None:
    async with serving(answer(error_code)) as (_, endpoint):
        assert await probe_broker(endpoint, PATIENT_S)


@pytest.mark.parametrize("script", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_broker_with_an_invalid_answer_is_unreachable(script: Script) -> None:
    async with serving(script) as (_, endpoint):
        assert await probe_broker(endpoint, PATIENT_S)


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint("real\ufffdbroker", 9092),
        Endpoint("a" * 70 + ".example", 9092),
        Endpoint("127.0.0.1", 70_000),
    ],
)
async def test_invalid_address_is_unreachable(endpoint: Endpoint) -> None:
    """Found by hostile brokers: the first of these ended control with a UnicodeError at each start."""
    assert await probe_broker(endpoint, PATIENT_S)


async def test_a_broker_that_refuses_or_is_silent_is_not_reachable(nobody: Endpoint) -> None:
    assert "Connect call failed" in (await probe_broker(nobody, PATIENT_S) or "")
    async with serving(silence) as (_, frozen):
        assert await probe_broker(frozen, HASTY_S) == "timed out"


# ---- persistent connections


async def held(
    target: Target, pace: HoldTiming, asked: Callable[[], None], answered: Callable[[], None]
) -> HoldEnd:
    (resolved,) = await resolve([target], Resolver(), PATIENT_S)
    return await hold_connection(resolved, pace, asked, answered)


HASTY = HoldTiming(first_s=HASTY_S, interval_s=0.01, silence_s=PATIENT_S)
PATIENT = HoldTiming(first_s=PATIENT_S, interval_s=0.01, silence_s=PATIENT_S)


@dataclass
class HeldCounts:
    """Numbers of questions and answers on a held connection."""

    asked: int = 0
    answered: int = 0

    def ask(self) -> None:
        self.asked += 1

    def answer(self) -> None:
        self.answered += 1

    async def until_answered(self, times: int) -> None:
        async with asyncio.timeout(PATIENT_S):
            while self.answered < times:  # noqa: ASYNC110 (the other end reports nothing)
                await asyncio.sleep(0.005)


def answering(stop: asyncio.Event, then: Callable[[asyncio.StreamWriter], None]) -> Script:
    """Answers every question until an event is set, and then runs an action."""

    async def script(frame: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not stop.is_set():
            writer.write(build_error_reply(struct.unpack_from(">hhi", frame)[2]))
            frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        then(writer)

    return script


async def test_a_held_connection_ends_with_the_worker() -> None:
    gone, counts = asyncio.Event(), HeldCounts()
    async with serving(answering(gone, lambda writer: writer.write_eof())) as (server, endpoint):
        holding = asyncio.create_task(held(Target(endpoint), HASTY, counts.ask, counts.answer))
        await counts.until_answered(20)
        assert counts.asked >= counts.answered
        assert not holding.done(), "the limit is for the first answer alone"
        gone.set()
        async with asyncio.timeout(PATIENT_S):
            assert await holding is HoldEnd.CLOSED
    assert len(server.asked) == 1, "one connection carries all questions"


async def test_silent_held_connection_is_given_up() -> None:
    silent, counts = asyncio.Event(), HeldCounts()
    pace = HoldTiming(first_s=PATIENT_S, interval_s=0.01, silence_s=HASTY_S)
    async with serving(answering(silent, lambda _: None)) as (_, endpoint):
        holding = asyncio.create_task(held(Target(endpoint), pace, counts.ask, counts.answer))
        await counts.until_answered(1)
        silent.set()
        async with asyncio.timeout(PATIENT_S):
            assert await holding is HoldEnd.GIVEN_UP
    assert counts.asked > counts.answered


async def test_missing_worker_gives_no_held_connection(nobody: Endpoint) -> None:
    counts = HeldCounts()
    assert await held(Target(nobody), PATIENT, counts.ask, counts.answer) is HoldEnd.UNREACHABLE
    for script, pace in ((silence, HASTY), (answer(0), PATIENT), (raw(lambda _: b""), PATIENT)):
        async with serving(script) as (_, endpoint):
            assert await held(Target(endpoint), pace, counts.ask, counts.answer) is HoldEnd.UNREACHABLE
    assert counts == HeldCounts()
