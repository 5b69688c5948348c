"""The frames of one connection between a client and a broker, without I/O.

The shell passes in the bytes that it has read, and learns which bytes may pass: mostly all of them, else
parts, without a copy. Of a request only the header is parsed, and one number is remembered (see
``wire.requests``). Responses are matched to requests in order. A response with addresses goes through a
patching function of the generated tables. Kafka answers each request of a connection exactly once and in
order, or closes; only Produce with acks=0 has no response. So order alone pairs responses with requests. A
correlation id, which the client chooses, can only contradict (ADR 32).

Requests are never buffered here: the shell keeps an incomplete header and presents it again with more bytes.
Responses are buffered in two cases (see ``rewriter``). A response with a changing size and an address near
its end must be complete before its first byte can pass; a long one is then patched in slices. And the head of
a Metadata response is buffered until all brokers have arrived. Of a Fetch or ShareFetch response only the
end is buffered (see ``streaming_patch``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from librt.strings import read_i16_be, read_i32_be

from fleet.core.errors import MalformedFrame, OversizeFrame, TruncatedFrame, UnknownResponse
from fleet.proxy.addresses import AddressSource
from fleet.proxy.frame_limits import HEADER_LIMIT_BYTES, PROBE_LIMIT_BYTES, Limits
from fleet.proxy.rewriter import Rewriter
from fleet.proxy.router import EXACT, NOTHING, Router
from fleet.proxy.streaming_patch import Write
from fleet.proxy.wire.api_versions import API_VERSIONS, PRODUCE, build_error_reply, read_software_name
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
    UNLISTED,
    VERSIONS_PER_API,
    read_request_header,
    size_error,
    unlisted_response_layout,
)
from fleet.proxy.wire.verdicts import INCOMPLETE, ORDINARY

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_REPLIES_PER_READ: Final = 1024
"""Local replies to the requests of one read. Members probe each other ten times a second."""
MAX_REPORTED_CLIENT_ID_BYTES: Final = 256
"""The reported part of a client id. Found: control received 32 KB for each of 2,000 client ids at a time."""
MANY_IN_FLIGHT: Final = 256
"""Requests in flight above which the worker limits them with those of all clients; each takes 40 bytes."""

# Reasons to leave the ordinary path of receive_from_client. Bits; none is set on a connection in normal use.
_FIRST_REQUEST: Final = 1
_DRAINING: Final = 2
_REDIRECTING: Final = 4
_WATCHING_FETCHES: Final = 8
_WITHHOLDING_PRODUCE: Final = 16
_FETCHED: Final = 32
_REDIRECTED: Final = 64
_ROUTING: Final = 128
_LEAVING: Final = _DRAINING | _WATCHING_FETCHES | _WITHHOLDING_PRODUCE

_SAMPLED: Final = 1 << 61
"""A bit in an entry for a request in flight: the answer of the request is timed."""

_NOT_A_RESPONSE_LAYOUT: Final = CORRELATION_MASK | _SAMPLED
"""Bits left in an entry minus the received correlation id, if the ids differ or the answer is timed."""

_NO_RESPONSE: Final = -3
"""The verdict on a request that gets no response, next to those of ``wire.verdicts``."""

_NO_REQUEST: Final = -1
"""The entry of the oldest request in flight, while none is in flight."""
_TABLE_LENGTH: Final = len(RESPONSE_LAYOUT_TABLE)
_FETCHES: Final = frozenset({1, 78})
"""Fetch and ShareFetch."""
_EMPTY_QUEUE: Final[deque[int]] = deque()
"""Empty; shared by all connections that never had two requests in flight: a queue takes 600 bytes."""


class Session:
    """Tracks the frames of one client connection in both directions.

    Args:
        addresses: has the newest address book, which each response with addresses uses.
        limits: of frames.
        counters: shared by all sessions of the worker.
        client_host: the client's address as text; together with the client id the client's key.
        clock, observe_rewrite: if both are given, the duration of each rewriting in seconds is observed.
        router: decides which broker each request is for, where one port serves all brokers.
        observe_answer: called (if there is a clock) when the answer to a sampled request begins, with the API
            key, the sizes of request and answer in bytes, and the seconds between request and answer.

    ``is_group_member`` is whether a member of a group has sent heartbeats on the connection.

    ``local_replies`` are frames for the client that answer requests without a broker. The shell empties the
    list before the next call. While the list has any, the first ``discard_bytes`` of the consumed bytes must
    not be forwarded. ``is_refusing`` is whether a request has arrived in a drain that will not be forwarded,
    nor anything after it. ``is_crowded`` is whether ``MANY_IN_FLIGHT`` requests were in flight; the shell
    resets it when few enough are. ``is_holding`` is whether a response was held, or waits for `work`; the
    shell resets it afterwards. While the session ``is_working``, on a held response or on many tagged fields,
    the shell calls `work` once in each turn of the event loop, and presents no more bytes of the broker.
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
        "_sample",
        "discard_bytes",
        "is_crowded",
        "is_group_member",
        "is_holding",
        "is_refusing",
        "local_replies",
        "rewriter",
        "router",
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
        router: Router | None = None,
    ) -> None:
        # First the attributes that each read uses, so that they share cache lines: all caches are cold then.
        self._client_left: i64 = 0
        self._mode: i64 = _FIRST_REQUEST if router is None else _FIRST_REQUEST | _ROUTING
        self._max_request_bytes: i64 = limits.max_request_bytes
        self._oldest: i64 = _NO_REQUEST
        """The entry of the oldest request in flight; ``_queue`` has the entries of the others."""
        self._queue = _EMPTY_QUEUE
        self._requests = counters.requests
        self.local_replies: list[bytes] = []
        self._broker_left: i64 = 0
        self._expected_padding: i64 = 0
        """Number of zero bytes with which the rest of the broker's frame must end."""
        self.is_holding = False
        self.rewriter = Rewriter(
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
        self.router = router
        self.discard_bytes = 0
        self.is_refusing = False
        self.is_crowded = False
        self.is_group_member = False

    @property
    def in_flight(self) -> int:
        """Number of requests whose response has not passed completely."""
        return self._awaiting_response + self.in_response

    @property
    def _awaiting_response(self) -> int:
        """Number of requests whose response has not begun."""
        return len(self._queue) + (self._oldest != _NO_REQUEST)

    @property
    def client_id(self) -> str:
        """The client id of the first request, up to ``MAX_REPORTED_CLIENT_ID_BYTES``."""
        client_id = self.rewriter.client_key.partition(b"\0")[2]
        return client_id[:MAX_REPORTED_CLIENT_ID_BYTES].decode(errors="replace")

    @property
    def client_key(self) -> bytes:
        """The client's host and id: distinguishes it from most others, once its first request has arrived."""
        return self.rewriter.client_key

    @property
    def drops_moved(self) -> bool:
        """Whether the client drops a connection when Metadata has a new address for its broker: librdkafka,
        recognized by the software name in its first request."""
        return self.rewriter.remembers_coordinators

    @property
    def has_fetched(self) -> bool:
        """Whether the client has requested records since `watch_fetches`."""
        return bool(self._mode & _FETCHED)

    @property
    def is_redirected(self) -> bool:
        """Whether a member of a group was sent to look for its coordinator again."""
        return bool(self._mode & _REDIRECTED)

    @property
    def at_boundary(self) -> bool:
        """Whether the client's bytes end between two requests."""
        return not self._client_left

    @property
    def in_response(self) -> bool:
        """Whether a response of the broker has arrived in part."""
        return self._broker_left > 0 or self.rewriter.is_busy

    @property
    def is_working(self) -> bool:
        """Whether a response needs `work` before more of it is presented."""
        return self.rewriter.is_working

    @property
    def held_bytes(self) -> int:
        """Memory that is held for a response, or will be once the response has arrived."""
        return self.rewriter.held_bytes

    def work(self, write: Write) -> None:
        """Take a step with the response that is held or paused.

        Raises: WireError: the response cannot be made safe; close the connection.
        """
        self.rewriter.work(write)

    def drop_response(self) -> None:
        """Drop the response that is held; it is not sent."""
        self.rewriter.drop()

    def drop_requests(self) -> None:
        """Forget the requests in flight; no answers follow."""
        self._oldest = _NO_REQUEST
        self._queue = _EMPTY_QUEUE

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, and no request has arrived in part, or waits for its route."""
        if self.router is not None and self.router.wait != NOTHING:
            return False
        return not self._client_left and not self.in_flight

    @property
    def passing_to_broker(self) -> int:
        """Number of next bytes from the client that pass, whatever they are."""
        return self._client_left

    @property
    def passing_to_client(self) -> int:
        """Number of next bytes from the broker that pass, whatever they are."""
        return self._broker_left - self._expected_padding

    def passed_to_broker(self, size_bytes: int) -> None:
        """Note that bytes of ``passing_to_broker`` have passed without being presented here."""
        self._client_left -= size_bytes

    def passed_to_client(self, size_bytes: int) -> None:
        """Note that bytes of ``passing_to_client`` have passed without being presented here."""
        self._broker_left -= size_bytes

    def watch_fetches(self, *, on: bool) -> None:
        """Watch for the next request for records, or stop watching."""
        self._mode &= ~(_WATCHING_FETCHES | _FETCHED)
        if on:
            self._mode |= _WATCHING_FETCHES

    def count_into(
        self, counters: WireCounters, observe_answer: Callable[[int, int, int, float], None]
    ) -> None:
        """Count from now on elsewhere, because the connection's broker is known now."""
        self._counters = self.rewriter.counters = counters
        self._requests = counters.requests
        self._observe_answer = observe_answer

    def withhold_produce(self) -> None:
        """Until `drain`, hold back the next Produce with a response, and all requests after it."""
        self._mode |= _WITHHOLDING_PRODUCE

    def redirect(self) -> None:
        """Answer the next heartbeat that comes while nothing is in flight: the coordinator has moved."""
        self._mode |= _REDIRECTING

    def drain(self) -> None:
        """Let no further request with a response pass.

        A request that was forwarded in part is completed. Produce with acks=0 still passes if no other
        request precedes it, because its sender counts it as delivered.
        """
        self._mode = (self._mode | _DRAINING) & ~_WITHHOLDING_PRODUCE

    @property
    def is_drained(self) -> bool:
        """Whether the connection can be closed without cutting anything off."""
        return bool(self._mode & _DRAINING) and self.is_idle

    def receive_from_client(self, data: bytes) -> int:
        """Take bytes from the client, with the bytes that were left last time in front.

        Returns: the number of consumed bytes: ``data[:consumed]`` goes to the broker unchanged, without its
                 first ``discard_bytes`` if there are ``local_replies``. The rest is the beginning of a frame,
                 shorter than HEADER_LIMIT_BYTES, or, in a drain, everything that will not be forwarded.
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
                if after == INCOMPLETE:
                    return pos
                if after != ORDINARY:
                    if after >= end:
                        self._client_left = after - end
                        return end
                    pos = after
                    continue
            if end - pos < REQUEST_HEADER_BYTES:
                return pos
            # Four reads are cheaper than one that creates a tuple: the numbers stay in registers.
            size = read_i32_be(data, pos)
            api_key: int = read_i16_be(data, pos + 4)
            version: int = read_i16_be(data, pos + 6)
            correlation_id: int = read_i32_be(data, pos + 8)
            client_id_length: int = read_i16_be(data, pos + 12)
            after = pos + 4 + size
            if not 10 <= size <= self._max_request_bytes:
                raise size_error(size, self._max_request_bytes)
            if client_id_length > size - 10 or client_id_length < -1:
                raise MalformedFrame("client", f"client id of {client_id_length} bytes, request of {size}")
            place: i64 = api_key * VERSIONS_PER_API + version
            response_layout = (
                RESPONSE_LAYOUT_TABLE[place]
                if 0 <= version < VERSIONS_PER_API and 0 <= place < _TABLE_LENGTH
                else UNLISTED
            )
            if response_layout == UNLISTED:
                response_layout = unlisted_response_layout(api_key, version)
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
                    if response_layout == INCOMPLETE:
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
        """Add the entry of a request that is not the oldest in flight."""
        if self._queue is _EMPTY_QUEUE:
            self._queue = deque()
        self._queue.append(entry)
        if len(self._queue) >= MANY_IN_FLIGHT:
            self.is_crowded = True

    def receive_sampled(self, data: bytes) -> int:
        """Like ``receive_from_client``, and time the answer to the first request in ``data``.

        Only one request of a connection is timed at a time, and none that began to arrive earlier.
        """
        pos, place = self._client_left, self._awaiting_response
        consumed = self.receive_from_client(data)
        if self._clock is None or self._sample is not None:
            return consumed
        if self._awaiting_response > place and len(data) - pos >= REQUEST_HEADER_BYTES:
            size, api, correlation_id, client_id_length = read_request_header(data, pos)
            newest = self._queue[place - 1] if place else self._oldest
            # If the first request has no answer, the next one may have the same correlation id.
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
        """Observe the timed answer, which has begun to arrive."""
        assert self._sample is not None
        assert self._clock is not None
        api_key, request_bytes, began_s = self._sample
        self._sample = None
        if self._observe_answer is not None:
            self._observe_answer(api_key, request_bytes, 4 + size, self._clock() - began_s)

    def receive_from_broker(self, data: bytes, write: Write) -> int:
        """Take bytes from the broker, with the bytes that were left last time in front.

        Args:    write: called with the bytes for the client.
        Returns: the number of consumed bytes. The rest must be presented again; it is shorter than 8 bytes
                 unless the session ``is_working``.
        Raises:  WireError: the broker is at fault, or a response cannot be made safe; close the connection.
        """
        end: i64 = len(data)
        run: i64 = 0
        rewriter = self.rewriter
        if rewriter.is_busy:
            if rewriter.is_working:
                return 0
            run = rewriter.continue_response(memoryview(data), 0, end, write)
            if rewriter.is_busy:
                if rewriter.is_working:
                    self.is_holding = True
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
                raise MalformedFrame("broker", f"impossible response size of {size} bytes")
            after = pos + 4 + size
            response_layout: i64 = self._oldest
            if response_layout == _NO_REQUEST:
                detail = f"response with correlation id {correlation_id} although no request is in flight"
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
                        if rewriter.is_busy:
                            if rewriter.is_working or rewriter.held_bytes:  # perhaps of an earlier one
                                self.is_holding = True
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
        """Whether a response passes unchanged, judged by its first part; its end is checked later."""
        if end > after - NO_TAGS_BYTES or not known.passes_prefix(data, pos, after, end):
            return False
        self._expected_padding = NO_TAGS_BYTES
        return True

    def _expect_padding(self, data: bytes, after: int, end: int) -> None:
        """Check the arrived part of the end of a response whose beginning has passed.

        Raises: TruncatedFrame: the end is not zero, although the frame has no room for more fields.
        """
        if any(data[max(0, after - self._expected_padding) : min(after, end)]):
            raise TruncatedFrame("broker", "Fetch response ends too early")
        if after <= end:
            self._expected_padding = 0

    def _check_response(self, response_layout: int, correlation_id: int, size: int) -> int:
        """Return the layout of a response, 0 if it passes unchanged; observe the answer if it is timed.

        Args:   response_layout: the entry of the oldest request, minus the received correlation id.
        Raises: UnknownResponse: the correlation id is not the request's.
        """
        if response_layout & CORRELATION_MASK or response_layout < 0:
            expected = (response_layout + correlation_id) & CORRELATION_MASK
            raise UnknownResponse("broker", f"correlation id {correlation_id}, expected {expected}")
        if response_layout & _SAMPLED:
            self._time_answer(size)
            response_layout ^= _SAMPLED
        return response_layout

    def _handle_exceptional(self, data: bytes, pos: int, end: int) -> int:
        """Judge a frame of a connection that is new, has to leave, or has returned.

        Returns: the position after the frame if it is handled; else INCOMPLETE or ORDINARY.
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
                    self.is_refusing = passes is False
                    return INCOMPLETE
        if mode & _FIRST_REQUEST:
            after = self._receive_first(data, pos, end)
            if after != ORDINARY or not mode & _ROUTING:
                return after
        if mode & _REDIRECTING and not pos and not self.in_flight:
            after = self._redirect(data, end)
            if after != ORDINARY:
                return after
        return self._route(data, pos, end) if mode & _ROUTING else ORDINARY

    def _route(self, data: bytes, pos: int, end: int) -> int:
        """Judge a frame that any broker may be meant by."""
        router = self.router
        assert router is not None
        is_first = pos == (self.discard_bytes if self.local_replies else 0) and not self.in_flight
        after = router.route(data, pos, end, is_first)
        if router.reply:
            if len(self.local_replies) >= MAX_REPLIES_PER_READ:
                raise OversizeFrame("client", f"more than {MAX_REPLIES_PER_READ} requests to answer at once")
            self.local_replies.append(router.take_reply())
            self.discard_bytes = after
            self._counters.local_replies += 1
        elif router.certainty == EXACT:
            self._mode &= ~_ROUTING
        return after

    def _receive_first(self, data: bytes, pos: int, end: int) -> int:
        """Learn the client id from the first request, and answer ApiVersions of an unknown version here.

        Clients find out versions with it, and members probe each other with it, so it must not need a broker.
        If an earlier request went to the broker, the broker answers this one too: answers keep their order.
        """
        if end - pos < REQUEST_HEADER_BYTES:
            return INCOMPLETE
        size: int = read_i32_be(data, pos)
        after = pos + 4 + size
        if read_i16_be(data, pos + 4) == API_VERSIONS and 10 <= size <= PROBE_LIMIT_BYTES - 4:
            if after > end:
                return INCOMPLETE
            if keeps_coordinators(read_software_name(memoryview(data)[pos:after])):
                self.rewriter.remember_coordinators()
            if int(read_i32_be(data, pos + 4)) not in RESPONSE_LAYOUTS:
                if len(self.local_replies) >= MAX_REPLIES_PER_READ:
                    raise OversizeFrame(
                        "client", f"more than {MAX_REPLIES_PER_READ} ApiVersions of unknown versions at once"
                    )
                self.local_replies.append(build_error_reply(read_i32_be(data, pos + 8)))
                self.discard_bytes = after
                self._counters.local_replies += 1
                return after
        if not 10 <= size <= self._max_request_bytes:
            return ORDINARY  # refused there, without waiting for the rest of an HTTP request
        start = pos + REQUEST_HEADER_BYTES
        client_id_end = start + max(int(read_i16_be(data, pos + 12)), 0)
        if client_id_end > end and client_id_end <= after:
            return INCOMPLETE
        rewriter = self.rewriter
        rewriter.client_key = b"\0".join((rewriter.client_key, data[start:client_id_end]))
        self._mode &= ~_FIRST_REQUEST
        return ORDINARY

    def _redirect(self, data: bytes, end: int) -> int:
        """Answer a heartbeat in the coordinator's place, if the frame is one."""
        if end < REQUEST_HEADER_BYTES:
            return INCOMPLETE
        size, api, correlation_id, _ = read_request_header(data)
        if (
            api >> 16 not in HEARTBEATS
            or api not in RESPONSE_LAYOUTS
            or not 10 <= size <= HEADER_LIMIT_BYTES - 4
        ):
            return ORDINARY
        after = 4 + int(size)
        if after > end:
            return INCOMPLETE
        self.local_replies.append(build_not_coordinator(api >> 16, api & 0xFFFF, correlation_id))
        self.discard_bytes = after
        self._counters.local_replies += 1
        self._mode = (self._mode & ~_REDIRECTING) | _REDIRECTED
        return after

    def _passes_drain(self, data: bytes, pos: int, end: int) -> bool | None:
        """Whether a frame passes: Produce with acks=0 always, other requests than Produce after
        `withhold_produce` but not in a drain. None if too few bytes have arrived."""
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
        """Read more than the header of Produce or ApiVersions, and note heartbeats.

        Args:    frame: the request, as far as it has arrived.
        Returns: the layout of the response; INCOMPLETE; or _NO_RESPONSE.
        """
        response_layout = -1 - response_layout
        if key in HEARTBEATS:
            self.is_group_member = True
            return response_layout
        complete = len(frame) == 4 + size
        if len(frame) > HEADER_LIMIT_BYTES:
            frame = frame[:HEADER_LIMIT_BYTES]
        try:
            if key == PRODUCE:
                acks = produce_acks(frame, version, client_id_length)
                return _NO_RESPONSE if acks == 0 else response_layout
            if size + 4 > HEADER_LIMIT_BYTES:
                raise OversizeFrame("client", f"request {key} of {size} bytes is above {HEADER_LIMIT_BYTES}")
            return response_layout if complete else INCOMPLETE
        except OUT_OF_BYTES:
            if len(frame) == HEADER_LIMIT_BYTES:
                raise OversizeFrame("client", f"no acks in {HEADER_LIMIT_BYTES} bytes of Produce") from None
            if complete:
                raise TruncatedFrame("client", f"request {key} of {size} bytes ends inside a field") from None
            return INCOMPLETE
