"""One client connection between a client and a broker, sans I/O.

The shell hands over what it has read, and learns what may go on: mostly the very same bytes, else parts of
them, without a copy. Requests pass through but for their header; what is remembered of each is one number
(see ``wire.requests``). Responses are matched to requests in order, and those that carry addresses go through
a patching function from the generated tables. Kafka answers each request of a connection exactly once and in
order, or closes; only Produce with acks=0 has no response. So the order alone pairs them: a correlation id,
which the client chooses, may only contradict (ADR 32).

Requests are never buffered here: what cannot be judged yet is left to the shell, which presents it again with
more behind it. Responses are buffered in two cases (see ``rewriter``): one that must be seen whole before its
first byte can leave, for its size changes and its last address is at its end (a long one is then patched in
slices); and the head of a Metadata response whose brokers have not all arrived. Of a Fetch or ShareFetch
response the end alone is (``stream``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from librt.strings import read_i16_be, read_i32_be

from fleet.core.errors import (
    MalformedFrame,
    OversizeFrame,
    TruncatedFrame,
    UnknownResponse,
    UnsupportedVersion,
)
from fleet.proxy.addresses import AddressSource
from fleet.proxy.rewriter import Rewriter
from fleet.proxy.streaming_patch import Write
from fleet.proxy.wire.api_versions import (
    API_VERSIONS,
    PRODUCE,
    SASL_HANDSHAKE,
    build_error_reply,
    read_software_name,
)
from fleet.proxy.wire.coordinators import keeps_coordinators
from fleet.proxy.wire.counters import WireCounters
from fleet.proxy.wire.fetch import NO_TAGS_BYTES
from fleet.proxy.wire.heartbeats import HEARTBEATS, build_not_coordinator
from fleet.proxy.wire.primitives import OUT_OF_BYTES
from fleet.proxy.wire.produce import FIRST_FLEXIBLE_PRODUCE, REQUEST_HEADER_BYTES, Recognizer, produce_acks
from fleet.proxy.wire.requests import (
    CORRELATION_MASK,
    LAYOUT_SHIFT,
    RECOGNIZERS,
    RESPONSE_LAYOUT_TABLE,
    RESPONSE_LAYOUTS,
    UNKNOWN_API_VERSIONS,
    UNLISTED,
    VERSIONS,
    read_request_header,
)

if TYPE_CHECKING:
    from mypy_extensions import i64

HEADER_LIMIT_BYTES: Final = 36 * 1024
"""How much of a request may have to be read at once: 32 KiB of client id and transactional id, and more.

What ``receive_from_client`` leaves unconsumed is always shorter.
"""

PROBE_LIMIT_BYTES: Final = 4 * 1024
"""Of an impossible ApiVersions request that is answered here. A longer one goes to the broker."""
MAX_REPLIES_PER_READ: Final = 1024
"""Made here of what one read brought. Members probe each other ten times a second."""
MAX_REPORTED_CLIENT_ID_BYTES: Final = 256
"""Of a client id, where it is reported. Found: control was told 32 KB of each, 2,000 of them at a time."""
MANY_IN_FLIGHT: Final = 256
"""Requests in flight from which on they count with those of all clients; each takes 40 bytes here."""

# Why the ordinary way through receive_from_client is left. Bits; none of them is set on a connection at work.
_FIRST: Final = 1
_DRAINING: Final = 2
_REDIRECTING: Final = 4
_WATCHING_FETCHES: Final = 8
_WITHHOLDING_PRODUCE: Final = 16
_FETCHED: Final = 32
_REDIRECTED: Final = 64
_LEAVING: Final = _DRAINING | _WATCHING_FETCHES | _WITHHOLDING_PRODUCE

_SAMPLED: Final = 1 << 61
"""Set in that queue: the request whose answer is timed."""

_NOT_A_RESPONSE_LAYOUT: Final = CORRELATION_MASK | _SAMPLED
"""What is left of an entry, less the correlation id that came, where that is another one, or it is timed."""

# Verdicts on a frame; other values are the position where it ends.
_WAIT: Final = -1
_ORDINARY: Final = -2
_NO_RESPONSE: Final = -3

_NO_REQUEST: Final = -1
"""In place of the oldest request in flight: there is none."""
_TABLE_LENGTH: Final = len(RESPONSE_LAYOUT_TABLE)
_FETCHES: Final = frozenset({1, 78})
"""Fetch and ShareFetch."""
_EMPTY_QUEUE: Final[deque[int]] = deque()
"""Of all connections that never had two requests in flight: a queue is 600 bytes. Nothing is put there."""


class Limits(Protocol):
    """The part of ``fleet.config.Limits`` that a session needs."""

    @property
    def max_request_bytes(self) -> int: ...

    @property
    def max_patched_response_bytes(self) -> int: ...


class Session:
    """Tracks the frames of one client connection in both directions.

    Args:
        addresses: asked for the newest address book at each response that carries addresses.
        limits: of frames.
        counters: shared by all sessions of the worker.
        client_host: the client's address as text; with the client id it makes the client's key.
        clock, observe_rewrite: if both are given, called around each rewriting, with its duration in seconds.
        observe_answer: given the clock, too, called where the answer to a request that is sampled begins:
            with the API key, the sizes of the request and of the answer in bytes, and the seconds between.

    ``coordinates`` is whether a group's member has sent heartbeats here.

    ``local_replies`` are frames to write to the client, for requests that were answered here without a
    broker; the shell empties the list before the next call. As long as it has any, ``discard_bytes`` is how
    much at the start of what was consumed must not be forwarded. ``refuses`` is whether, in a drain, a
    request has come that will not be forwarded, nor anything after it. ``crowded`` is whether
    ``MANY_IN_FLIGHT`` requests were in flight; the shell resets it when there are few enough. ``holding`` is
    whether a response has been held, or waits for `work`; the shell resets it once that is over. While it is
    ``working``, on such a response or on one with many tagged fields, the shell calls `work`, once in a turn
    of the event loop, and presents nothing more that the broker has sent.
    """

    __slots__ = (
        "_broker_left",
        "_client_left",
        "_clock",
        "_counters",
        "_expected_padding",
        "_max_request_bytes",
        "_mode",
        "_observe_answer",
        "_oldest",
        "_queue",
        "_requests",
        "_rewriter",
        "_sample",
        "coordinates",
        "crowded",
        "discard_bytes",
        "holding",
        "local_replies",
        "refuses",
    )

    def __init__(
        self,
        addresses: AddressSource,
        limits: Limits,
        counters: WireCounters,
        client_host: str = "",
        clock: Callable[[], float] | None = None,
        observe_rewrite: Callable[[float], None] | None = None,
        observe_answer: Callable[[int, int, int, float], None] | None = None,
    ) -> None:
        # What each read looks at first, so that it is side by side: nothing of it is in a cache any more.
        self._client_left: i64 = 0
        self._mode: i64 = _FIRST
        self._max_request_bytes: i64 = limits.max_request_bytes
        self._oldest: i64 = _NO_REQUEST
        """What is remembered of the oldest request in flight; of those behind it, ``_queue`` has it."""
        self._queue = _EMPTY_QUEUE
        self._requests = counters.requests
        self.local_replies: list[bytes] = []
        self._broker_left: i64 = 0
        self._expected_padding: i64 = 0
        """As how many bytes what is left of the broker's frame has to end."""
        self.holding = False
        self._rewriter = Rewriter(
            addresses,
            limits.max_patched_response_bytes,
            counters,
            client_host.encode(),
            clock if observe_rewrite is not None else None,
            observe_rewrite,
        )
        self._counters = counters
        self._clock = clock
        self._observe_answer = observe_answer
        self._sample: tuple[int, int, float] | None = None
        self.discard_bytes = 0
        self.refuses = False
        self.crowded = False
        self.coordinates = False

    @property
    def in_flight(self) -> int:
        """Requests whose response has not wholly passed."""
        return self._awaiting_response + self.in_response

    @property
    def _awaiting_response(self) -> int:
        """Requests whose response has not begun."""
        return len(self._queue) + (self._oldest != _NO_REQUEST)

    @property
    def client_id(self) -> str:
        """As the first request has it, up to ``MAX_REPORTED_CLIENT_ID_BYTES``."""
        client_id = self._rewriter.client_key.partition(b"\0")[2]
        return client_id[:MAX_REPORTED_CLIENT_ID_BYTES].decode(errors="replace")

    @property
    def client_key(self) -> bytes:
        """The client's host and id: what tells it from most others, once it has sent its first request."""
        return self._rewriter.client_key

    @property
    def drops_moved(self) -> bool:
        """Whether the client drops a connection as soon as Metadata has another address of its broker.

        Known by the name in its first request: librdkafka.
        """
        return self._rewriter.remembers_coordinators

    @property
    def fetches(self) -> bool:
        """Whether it has asked for records since `watch_fetches`."""
        return bool(self._mode & _FETCHED)

    @property
    def redirected(self) -> bool:
        """Whether a group's member was told to look for its coordinator again."""
        return bool(self._mode & _REDIRECTED)

    @property
    def at_boundary(self) -> bool:
        """Whether the client side stands between two requests."""
        return not self._client_left

    @property
    def in_response(self) -> bool:
        """Whether a response of the broker has come in part."""
        return self._broker_left > 0 or self._rewriter.busy

    @property
    def working(self) -> bool:
        """Whether a response needs `work` before more of it is presented."""
        return self._rewriter.working

    @property
    def held_bytes(self) -> int:
        """How much memory is held for a response, or will be once it has come."""
        return self._rewriter.held_bytes

    def work(self, write: Write) -> None:
        """Take a step with the response that is held, or that pauses.

        Raises: WireError: it cannot be made safe; close the connection.
        """
        self._rewriter.work(write)

    def drop_response(self) -> None:
        """Forget what is held: it goes nowhere any more."""
        self._rewriter.drop()

    def drop_requests(self) -> None:
        """Forget what is in flight: no answer comes any more."""
        self._oldest = _NO_REQUEST
        self._queue = _EMPTY_QUEUE

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, and no request has come in part."""
        return not self._client_left and not self.in_flight

    @property
    def passing_to_broker(self) -> int:
        """How many of the bytes to come from the client pass, whatever they are."""
        return self._client_left

    @property
    def passing_to_client(self) -> int:
        """How many of the bytes to come from the broker pass, whatever they are."""
        return self._broker_left - self._expected_padding

    def passed_to_broker(self, size_bytes: int) -> None:
        """So many of them have, and were not presented here."""
        self._client_left -= size_bytes

    def passed_to_client(self, size_bytes: int) -> None:
        """So many of them have, and were not presented here."""
        self._broker_left -= size_bytes

    def watch_fetches(self, *, on: bool) -> None:
        """Take note of the next request for records, or of none any more."""
        self._mode &= ~(_WATCHING_FETCHES | _FETCHED)
        if on:
            self._mode |= _WATCHING_FETCHES

    def withhold_produce(self) -> None:
        """Until `drain`, let everything through but Produce that is answered, and what is behind it."""
        self._mode |= _WITHHOLDING_PRODUCE

    def redirect(self) -> None:
        """Answer the next heartbeat that comes while nothing is in flight: the coordinator has moved."""
        self._mode |= _REDIRECTING

    def drain(self) -> None:
        """Let no further request through that would be answered.

        A request of which a part was forwarded is finished, and Produce with acks=0 still passes as long as
        nothing else stands before it: its sender counts it as delivered.
        """
        self._mode = (self._mode | _DRAINING) & ~_WITHHOLDING_PRODUCE

    @property
    def drained(self) -> bool:
        """Whether the connection can be closed without cutting anything off."""
        return bool(self._mode & _DRAINING) and self.is_idle

    def receive_from_client(self, data: bytes) -> int:
        """Take what has arrived from the client, behind what was left last time.

        Returns: up to where it is consumed: ``data[:consumed]`` goes to the broker as it is, less its first
                 ``discard_bytes`` when there are ``local_replies``. What is left is the beginning of a frame,
                 shorter than HEADER_LIMIT_BYTES, or, in a drain, all that will not be forwarded.
        Raises:  WireError: the client is at fault; the connection must be closed.
        """
        end: i64 = len(data)
        pos: i64 = self._client_left
        if pos:
            if pos >= end:
                self._client_left = pos - end
                return end
            self._client_left = 0
        size: int
        after: i64
        response_layout: i64
        mode: i64 = self._mode
        while True:
            if mode:
                after = self._handle_exceptional(data, pos, end)
                mode = self._mode
                if after == _WAIT:
                    return pos
                if after != _ORDINARY:
                    if after >= end:
                        self._client_left = after - end
                        return end
                    pos = after
                    continue
            if end - pos < REQUEST_HEADER_BYTES:
                return pos
            # Four reads are cheaper than one that makes a tuple of numbers: they stay in registers.
            size = read_i32_be(data, pos)
            api_key: int = read_i16_be(data, pos + 4)
            version: int = read_i16_be(data, pos + 6)
            correlation_id: int = read_i32_be(data, pos + 8)
            client_id_length: int = read_i16_be(data, pos + 12)
            after = pos + 4 + size
            if not 10 <= size <= self._max_request_bytes:
                raise _size_error(size, self._max_request_bytes)
            if client_id_length > size - 10 or client_id_length < -1:
                raise MalformedFrame("client", f"client id of {client_id_length} bytes in {size}")
            place: i64 = api_key * VERSIONS + version
            response_layout = (
                RESPONSE_LAYOUT_TABLE[place]
                if 0 <= version < VERSIONS and 0 <= place < _TABLE_LENGTH
                else UNLISTED
            )
            if response_layout == UNLISTED:
                response_layout = _unlisted_response_layout(api_key, version)
            elif response_layout < 0:
                at: i64 = pos + REQUEST_HEADER_BYTES + client_id_length
                if (
                    api_key == PRODUCE
                    and version >= FIRST_FLEXIBLE_PRODUCE
                    and client_id_length >= 0
                    and at + 4 <= after
                    and at + 4 <= end
                    and not data[at]
                    and data[at + 1] <= 1
                ):
                    response_layout = -1 - response_layout if data[at + 2] or data[at + 3] else _NO_RESPONSE
                else:
                    frame = memoryview(data)[pos : min(after, end)]
                    response_layout = self._read_beyond_header(
                        response_layout, frame, api_key, version, size, client_id_length
                    )
                    if response_layout == _WAIT:
                        return pos
                    mode = self._mode
            self._requests[api_key] += 1
            if response_layout >= 0:
                response_layout += correlation_id & CORRELATION_MASK
                if self._oldest == _NO_REQUEST:
                    self._oldest = response_layout
                else:
                    self._remember(response_layout)
            if after >= end:
                if after > end:
                    self._client_left = after - end
                return end
            pos = after

    def _remember(self, entry: int) -> None:
        """Behind the oldest."""
        if self._queue is _EMPTY_QUEUE:
            self._queue = deque()
        self._queue.append(entry)
        if len(self._queue) >= MANY_IN_FLIGHT:
            self.crowded = True

    def receive_sampled(self, data: bytes) -> int:
        """As ``receive_from_client``; and have the answer timed to the first request in what has arrived.

        Of a connection one request at a time is timed, and none that has begun to arrive before.
        """
        pos, place = self._client_left, self._awaiting_response
        consumed = self.receive_from_client(data)
        if self._clock is None or self._sample is not None:
            return consumed
        if self._awaiting_response > place and len(data) - pos >= REQUEST_HEADER_BYTES:
            size, api, correlation_id, client_id_length = read_request_header(data, pos)
            newest = self._queue[place - 1] if place else self._oldest
            # Where nobody answers the first request, the one behind it may have the same correlation id.
            frame = memoryview(data)[pos:]
            unanswered = bool(self.local_replies) or (
                api >> 16 == PRODUCE and produce_acks(frame, api & 0xFFFF, client_id_length) == 0
            )
            if newest & CORRELATION_MASK == correlation_id and not unanswered:
                if place:
                    self._queue[place - 1] = newest | _SAMPLED
                else:
                    self._oldest = newest | _SAMPLED
                self._sample = (api >> 16, 4 + size, self._clock())
        return consumed

    def _time_answer(self, size: int) -> None:
        """The answer that is timed has begun to come."""
        assert self._sample is not None
        assert self._clock is not None
        api_key, request_bytes, began_s = self._sample
        self._sample = None
        if self._observe_answer is not None:
            self._observe_answer(api_key, request_bytes, 4 + size, self._clock() - began_s)

    def receive_from_broker(self, data: bytes, write: Write) -> int:
        """Take what has arrived from the broker, behind what was left last time.

        Args:    write: takes what goes to the client.
        Returns: up to where it is consumed; what is left is to be presented again. It is shorter than 8 bytes
                 unless the session is ``working``.
        Raises:  WireError: the broker is at fault, or a response cannot be made safe; close the connection.
        """
        end: i64 = len(data)
        run: i64 = 0
        rewriter = self._rewriter
        if rewriter.busy:
            if rewriter.working:
                return 0
            run = rewriter.continue_response(memoryview(data), 0, end, write)
            if rewriter.busy:
                if rewriter.working:
                    self.holding = True
                return run
            self._broker_left = rewriter.left_bytes
        pos: i64 = run + self._broker_left
        if pos:
            if self._expected_padding and pos - self._expected_padding < end:
                self._expect_padding(data, pos, end)
            if pos >= end:
                self._broker_left = pos - end
                if end > run:
                    write(memoryview(data)[run:] if run else data)
                return end
            self._broker_left = 0
        after: i64
        while end - pos >= 8:
            size: int = read_i32_be(data, pos)
            correlation_id: int = read_i32_be(data, pos + 4)
            correlation_id &= CORRELATION_MASK
            if size < 4:
                raise MalformedFrame("broker", f"response of {size} bytes")
            after = pos + 4 + size
            response_layout: i64 = self._oldest
            if response_layout == _NO_REQUEST:
                detail = f"correlation id {correlation_id}: nothing is in flight"
                raise UnknownResponse("broker", detail)
            self._oldest = self._queue.popleft() if self._queue else _NO_REQUEST
            response_layout -= correlation_id
            if response_layout:
                if response_layout < 0 or response_layout & _NOT_A_RESPONSE_LAYOUT:
                    response_layout = self._check_response(response_layout, correlation_id, size)
                index: i64 = response_layout >> LAYOUT_SHIFT
                if index:
                    known = RECOGNIZERS[index]
                    if known is None:
                        passes = False
                    elif after <= end:
                        passes = known.passes(data, pos, after)
                    else:
                        passes = self._is_passthrough_prefix(known, data, pos, after, end)
                    if not passes:
                        run = rewriter.rewrite(index, data, run, pos, after, end, write)
                        if rewriter.busy:
                            if rewriter.working or rewriter.held_bytes:  # one before it may have been held
                                self.holding = True
                            return run
            if after >= end:
                if after > end:
                    self._broker_left = after - end
                if end > run:
                    write(memoryview(data)[run:] if run else data)
                return end
            pos = after
        if pos > run:
            write(memoryview(data)[run:pos])
        return pos

    def _is_passthrough_prefix(self, known: Recognizer, data: bytes, pos: i64, after: i64, end: i64) -> bool:
        """Whether a response passes as it is, of which a part has come; then its end is looked at later."""
        if end > after - NO_TAGS_BYTES or not known.passes_prefix(data, pos, after, end):
            return False
        self._expected_padding = NO_TAGS_BYTES
        return True

    def _expect_padding(self, data: bytes, after: int, end: int) -> None:
        """Look at the end of a response that has passed from its beginning on, as much of it as has come.

        Raises: TruncatedFrame: there is something, and no room for it.
        """
        if any(data[max(0, after - self._expected_padding) : min(after, end)]):
            raise TruncatedFrame("broker", "Fetch response: its end comes too early")
        if after <= end:
            self._expected_padding = 0

    def _check_response(self, response_layout: int, correlation_id: int, size: int) -> int:
        """The plan for a response, 0 where it passes as it is; and where its request is sampled, take note.

        Args:   plan: what is remembered of the oldest request, less the correlation id that came.
        Raises: UnknownResponse: that is not the request's.
        """
        if response_layout & CORRELATION_MASK or response_layout < 0:
            wanted = (response_layout + correlation_id) & CORRELATION_MASK
            raise UnknownResponse("broker", f"correlation id {correlation_id}, not {wanted}")
        if response_layout & _SAMPLED:
            self._time_answer(size)
            response_layout ^= _SAMPLED
        return response_layout

    def _handle_exceptional(self, data: bytes, pos: int, end: int) -> int:
        """Judge a frame before the ordinary way, where the connection is new, is to leave, or has come back.

        Returns: the position behind the frame where it is done with; else _WAIT or _ORDINARY.
        """
        mode = self._mode
        if mode & _LEAVING:
            if mode & _WATCHING_FETCHES and end - pos >= REQUEST_HEADER_BYTES:
                api_key: int = read_i16_be(data, pos + 4)
                if api_key in _FETCHES:
                    self._mode = (mode & ~_WATCHING_FETCHES) | _FETCHED
            if mode & (_DRAINING | _WITHHOLDING_PRODUCE):
                passes = self._passes_drain(data, pos, end)
                if not passes:
                    self.refuses = passes is False
                    return _WAIT
        if mode & _FIRST:
            return self._first(data, pos, end)
        if mode & _REDIRECTING and not pos and not self.in_flight:
            return self._redirect(data, end)
        return _ORDINARY

    def _first(self, data: bytes, pos: int, end: int) -> int:
        """Learn the client id from the first request, and answer an impossible ApiVersions here.

        That is how clients find out which version to use, and how members probe each other: it must not need
        a broker. Once a request has gone to the broker the answer must keep its turn, so the broker gives it.
        """
        if end - pos < REQUEST_HEADER_BYTES:
            return _WAIT
        size: int = read_i32_be(data, pos)
        after = pos + 4 + size
        if read_i16_be(data, pos + 4) == API_VERSIONS and 10 <= size <= PROBE_LIMIT_BYTES - 4:
            if after > end:
                return _WAIT
            if keeps_coordinators(read_software_name(memoryview(data)[pos:after])):
                self._rewriter.remember_coordinators()
            if int(read_i32_be(data, pos + 4)) not in RESPONSE_LAYOUTS:
                if len(self.local_replies) >= MAX_REPLIES_PER_READ:
                    raise OversizeFrame(
                        "client", f"{MAX_REPLIES_PER_READ} ApiVersions of unknown versions at once"
                    )
                self.local_replies.append(build_error_reply(read_i32_be(data, pos + 8)))
                self.discard_bytes = after
                self._counters.local_replies += 1
                return after
        if not 10 <= size <= self._max_request_bytes:
            return _ORDINARY  # it is refused there, and nobody waits for the rest of an HTTP request
        start = pos + REQUEST_HEADER_BYTES
        ends = start + max(int(read_i16_be(data, pos + 12)), 0)
        if ends > end and ends <= after:
            return _WAIT
        rewriter = self._rewriter
        rewriter.client_key = b"\0".join((rewriter.client_key, data[start:ends]))
        self._mode &= ~_FIRST
        return _ORDINARY

    def _redirect(self, data: bytes, end: int) -> int:
        """Answer a heartbeat in the coordinator's place, where the frame is one."""
        if end < REQUEST_HEADER_BYTES:
            return _WAIT
        size, api, correlation_id, _ = read_request_header(data)
        if (
            api >> 16 not in HEARTBEATS
            or api not in RESPONSE_LAYOUTS
            or not 10 <= size <= HEADER_LIMIT_BYTES - 4
        ):
            return _ORDINARY
        after = 4 + int(size)
        if after > end:
            return _WAIT
        self.local_replies.append(build_not_coordinator(api >> 16, api & 0xFFFF, correlation_id))
        self.discard_bytes = after
        self._counters.local_replies += 1
        self._mode = (self._mode & ~_REDIRECTING) | _REDIRECTED
        return after

    def _passes_drain(self, data: bytes, pos: int, end: int) -> bool | None:
        """Whether a frame still goes to the broker, where not all do. None: too early.

        In a drain Produce with acks=0 does, and while the client is to `withhold_produce` all else but Produce, too.
        """
        if end - pos < REQUEST_HEADER_BYTES:
            return None
        size, api, _, client_id_length = read_request_header(data, pos)
        if api >> 16 != PRODUCE or api not in RESPONSE_LAYOUTS:
            return bool(self._mode & _WITHHOLDING_PRODUCE)
        after = pos + 4 + max(size, 0)
        known = min(after, pos + HEADER_LIMIT_BYTES)
        try:
            return produce_acks(memoryview(data)[pos : min(known, end)], api & 0xFFFF, client_id_length) == 0
        except OUT_OF_BYTES:
            return None if known > end else False

    def _read_beyond_header(
        self,
        response_layout: int,
        frame: memoryview,
        key: int,
        version: int,
        size: int,
        client_id_length: int,
    ) -> int:
        """Read more than the header of Produce or ApiVersions, and take note of heartbeats.

        Args:    frame: as far as it has arrived.
        Returns: the plan to remember; _WAIT; or _NO_RESPONSE.
        """
        response_layout = -1 - response_layout
        if key in HEARTBEATS:
            self.coordinates = True
            return response_layout
        complete = len(frame) == 4 + size
        if len(frame) > HEADER_LIMIT_BYTES:
            frame = frame[:HEADER_LIMIT_BYTES]
        try:
            if key == PRODUCE:
                acks = produce_acks(frame, version, client_id_length)
                return _NO_RESPONSE if acks == 0 else response_layout
            if size + 4 > HEADER_LIMIT_BYTES:
                raise OversizeFrame("client", f"request {key} of {size} bytes")
            return response_layout if complete else _WAIT
        except OUT_OF_BYTES:
            if len(frame) == HEADER_LIMIT_BYTES:
                raise OversizeFrame("client", f"request {key}: acks is not in its first bytes") from None
            if complete:
                raise TruncatedFrame("client", f"request {key} of {size} bytes") from None
            return _WAIT


def _unlisted_response_layout(api_key: int, version: int) -> int:
    """The plan for a request that is not in the tables.

    Raises: UnsupportedVersion: it is not a version of ApiVersions, which the broker refuses in a known form.
    """
    if (api_key, version) == (SASL_HANDSHAKE, 0):
        detail = "SaslHandshake v0, after which tokens have no header: the client has to use v1"
        raise UnsupportedVersion("client", detail)
    if api_key != API_VERSIONS:
        raise UnsupportedVersion("client", f"API key {api_key}, version {version}")
    return UNKNOWN_API_VERSIONS


def _size_error(size: int, limit: int) -> MalformedFrame | OversizeFrame:
    if size > limit:
        return OversizeFrame("client", f"request of {size} bytes is above {limit}")
    return MalformedFrame("client", f"request of {size} bytes")
