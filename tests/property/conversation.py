"""A client, a model broker and a session in between, and the checks after each step.

The client's side is a stream of frames that may arrive in any pieces. The broker handles one request at a
time, as Kafka does. Everything that reaches the client or the broker is compared with the naive twin.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Final

from fleet.core.errors import WireError
from fleet.proxy.wire.heartbeats import HEARTBEATS, build_not_coordinator
from tests.property import kio_samples
from tests.property.model_broker import (
    API_VERSIONS,
    PRODUCE,
    UNSUPPORTED_VERSION,
    Answer,
    Carrying,
    ModelBroker,
    Opaque,
    Refused,
    Versions,
    encode_versions,
    frame_response,
    read_acks,
    read_header,
)
from tests.property.wire_fleet import Play, advertised, blanks

ALL_BYTES: Final = 1 << 30
"""More bytes than a conversation ever has."""
NEWEST_API_VERSIONS: Final = 5
"""The newest version whose form the fleet knows."""
OFFERED_RANGES: Final[Mapping[int, tuple[int, int]]] = MappingProxyType(
    {0: (0, 13), 3: (0, 13), 12: (0, 4), 17: (0, 1), 18: (0, NEWEST_API_VERSIONS), 60: (0, 2)}
)
"""The versions that the fleet offers of the model broker's APIs; SaslHandshake and Produce start at v0."""


def cut_ranges(ranges: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int, int], ...]:
    """The ranges that a client may use of the ranges that a broker lists."""
    return tuple(
        (key, max(low, OFFERED_RANGES[key][0]), min(high, OFFERED_RANGES[key][1]))
        for key, low, high in ranges
        if key in OFFERED_RANGES
    )


def has_unknown_form(answer: Answer) -> bool:
    """Whether an answer may have a form that the fleet does not know, and so must not pass.

    The fleet does not know the request's version of ApiVersions, and the error does not say which form it is.
    """
    content = answer.content
    return (
        isinstance(content, Versions)
        and not 0 <= answer.version <= NEWEST_API_VERSIONS
        and content.error != UNSUPPORTED_VERSION
    )


def for_client(answer: Answer) -> bytes:
    """The bytes that the client must get for an answer."""
    content = answer.content
    if isinstance(content, Opaque):
        return content.data
    if isinstance(content, Versions):
        listed = Versions(content.form, content.error, cut_ranges(content.ranges))
        return (
            b""
            if has_unknown_form(answer)
            else frame_response(answer.correlation_id, encode_versions(listed))
        )
    return frame_response(answer.correlation_id, rewrite(content))


@cache
def rewrite(content: Carrying) -> bytes:
    """The bytes after the correlation id."""

    def address(broker_id: int, _host: str, _port: int) -> tuple[str, int]:
        return advertised(broker_id)

    return kio_samples.for_client(content.key, content.entity, 0, address, blanks)[8:]


def frame_at(stream: bytes | bytearray, pos: int) -> bytes | None:
    """The frame at a position, without its size; None if the frame is incomplete."""
    if len(stream) - pos < 4:
        return None
    (size,) = struct.unpack_from(">i", stream, pos)
    frame = bytes(stream[pos + 4 : pos + 4 + max(size, 0)])
    return frame if len(frame) == size else None


def build_error_reply(correlation_id: int) -> bytes:
    """The fleet's own answer to an unknown version of ApiVersions."""
    return struct.pack(
        ">iihihhh", 16, correlation_id, UNSUPPORTED_VERSION, 1, API_VERSIONS, 0, NEWEST_API_VERSIONS
    )


def is_answered(frame: bytes) -> bool | None:
    """Whether a request has a response. None: Kafka cannot read the request, and closes the connection."""
    try:
        header = read_header(frame)
        return header.key != PRODUCE or read_acks(header) != 0
    except Refused:
        return None


@dataclass
class Conversation:
    """One connection through a fleet. ``fault`` is the reason why the session has ended it, if any."""

    broker: ModelBroker
    play: Play = field(default_factory=Play.new)
    fault: WireError | None = None
    _undelivered: bytearray = field(default_factory=bytearray)
    """Bytes from the client to the session that have not arrived."""
    _stream: bytearray = field(default_factory=bytearray)
    """All frames of the client except those that the fleet has answered itself."""
    _handled: int = 0
    """The position in the stream up to which the broker has handled frames."""
    _from_broker: bytearray = field(default_factory=bytearray)
    """Bytes of the broker that the session has not received."""
    _pending: deque[Answer] = field(default_factory=deque)
    """Answers whose bytes have not all reached the session."""
    _pending_bytes: int = 0
    """The number of delivered bytes of the first of these answers."""
    _answered: int = 0
    """The number of delivered answers."""
    _expected: bytearray = field(default_factory=bytearray)
    """The bytes that the client must have received of them, and of the fleet's own answers."""
    _given: set[tuple[int, int, int]] = field(default_factory=set)
    """API key, bytes of the request, bytes of the answer."""
    _named: set[tuple[int, str, int]] = field(default_factory=set)
    """The brokers that the broker itself has named."""
    _is_redirecting: bool = False

    @property
    def has_ended(self) -> bool:
        return self.fault is not None or (self.broker.closed and not self._from_broker)

    @property
    def is_idle(self) -> bool:
        """Whether no bytes are on their way in either direction."""
        return not (self._undelivered or self._from_broker) and self._handled == len(self.play.to_broker)

    # Steps

    def ask(self, *frames: bytes) -> None:
        """Send frames as the client; they have not arrived yet."""
        for frame in frames:
            self._stream += frame
            self._undelivered += frame

    def deliver(self, size_bytes: int = ALL_BYTES) -> None:
        """Deliver a number of the client's bytes to the session."""
        if self.has_ended:
            return
        data = bytes(self._undelivered[:size_bytes])
        del self._undelivered[:size_bytes]
        before, forwarded = len(self.play.to_client), len(self.play.to_broker)
        try:
            self.play.client(data)
        except WireError as error:
            self.fault = error
        assert self.fault is None or self.fault.peer == "client"
        self._take_local_replies(bytes(self.play.to_client[before:]), forwarded)
        self.check()

    def handle(self, count: int = ALL_BYTES) -> None:
        """Let the broker handle a number of the requests that have arrived completely."""
        for _ in range(count):
            frame = frame_at(self.play.to_broker, self._handled)
            if frame is None or self.broker.closed or self.fault is not None:
                return
            self._handled += 4 + len(frame)
            answer = self.broker.handle(frame)
            if answer is not None:
                self._from_broker += answer.frame
                self._pending.append(answer)
                self._note(answer)

    def respond(self, size_bytes: int = ALL_BYTES) -> None:
        """Deliver a number of the broker's bytes to the session."""
        if self.has_ended:
            return
        data = bytes(self._from_broker[:size_bytes])
        del self._from_broker[:size_bytes]
        left = len(data)
        arriving = []
        while self._pending and left:
            arriving.append(self._pending[0])
            taken = min(left, len(self._pending[0].frame) - self._pending_bytes)
            self._pending_bytes += taken
            left -= taken
            if self._pending_bytes == len(self._pending[0].frame):
                answer = self._pending.popleft()
                self._pending_bytes = 0
                self._answered += 1
                self._expected += for_client(answer)
        try:
            self.play.broker(data)
        except WireError as error:
            self.fault = error
        assert self.fault is None or any(map(has_unknown_form, arriving)), (
            "the session blames an honest broker"
        )
        self.check()

    def drain(self) -> None:
        self.play.session.drain()

    def redirect(self) -> None:
        """Redirect as in a move: only a group's member that has sent a heartbeat is sent elsewhere."""
        if self.play.session.is_group_member:
            self.play.session.redirect()
            self._is_redirecting = True

    def finish(self) -> None:
        """Deliver everything."""
        for _ in range(3):  # a late delivery may cause further requests
            self.deliver()
            self.handle()
            self.respond()

    # What must be true

    def check(self) -> None:
        """Compare the output with the twin's, after any step."""
        play = self.play
        partial = for_client(self._pending[0]) if self._pending else b""
        received = bytes(play.to_client)
        assert (bytes(self._expected) + partial).startswith(received), (
            "not the answers to the client's requests"
        )
        assert self._stream.startswith(play.to_broker), (
            "the broker received other bytes than the client's frames"
        )
        assert {(each.broker_id, each.host, each.port) for each in play.seen} <= self._named
        assert {(key, request, answer) for key, request, answer, _ in play.timed} <= self._given
        if self.fault is not None:
            return
        assert received.startswith(bytes(self._expected)), "the client received other bytes than expected"
        in_flight = self._in_flight()
        assert in_flight is None or play.session.in_flight == in_flight

    def _in_flight(self) -> int | None:
        """The requests that have begun to reach the broker, minus those whose answers have completely
        arrived."""
        request_count, pos = 0, 0
        while pos < len(self.play.to_broker):
            frame = frame_at(self._stream, pos)
            answered = is_answered(frame) if frame is not None else None
            if frame is None or answered is None:
                return None
            request_count += answered
            pos += 4 + len(frame)
        return request_count - self._answered

    def _take_local_replies(self, replies: bytes, forwarded: int) -> None:
        """Check the fleet's own answers: each belongs to the next frame, and the broker does not get that
        frame."""
        pos = 0
        while pos < len(replies):
            frame, reply = frame_at(self._stream, forwarded), frame_at(replies, pos)
            assert frame is not None
            assert reply is not None
            assert replies[pos : pos + 4 + len(reply)] == self._local_reply(frame)
            assert not self._pending
            assert self._answered == self._requests_before(forwarded), (
                "the fleet's answer overtakes an answer"
            )
            del self._stream[forwarded : forwarded + 4 + len(frame)]
            pos += 4 + len(reply)
        self._expected += replies

    def _local_reply(self, frame: bytes) -> bytes | None:
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        if key == API_VERSIONS and not 0 <= version <= NEWEST_API_VERSIONS:
            return build_error_reply(correlation_id)
        if key in HEARTBEATS and self._is_redirecting:
            self._is_redirecting = False
            return build_not_coordinator(key, version, correlation_id & 0xFFFFFFFF)
        return None

    def _requests_before(self, end: int) -> int:
        request_count, pos = 0, 0
        while pos < end:
            frame = frame_at(self._stream, pos)
            assert frame is not None
            request_count += bool(is_answered(frame))
            pos += 4 + len(frame)
        return request_count

    def _note(self, answer: Answer) -> None:
        if answer.key is not None:
            self._given.add((answer.key, answer.request_bytes, len(answer.frame)))
        if isinstance(answer.content, Carrying):
            self._named |= set(kio_samples.addresses(answer.content.entity))
