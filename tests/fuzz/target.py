"""Decode one input of the fuzzer, send it to a session, and check the outcome.

An input holds a byte of flags, a byte that decides where the data is split, and what a client, a broker, or
both send to a session. For every input:

- the session raises nothing but a ``WireError`` that blames the sender;
- other splits, and patching in slices, give the same result;
- forwarded bytes keep their frames;
- a response that the definitions can decode comes out as ``messages.for_client`` makes it, without an address
  of a broker.

    client      0, flags; cuts; bytes
    broker      1, flags; cuts; two requests that were sent before, each in two bytes (`api_code`); bytes
    both        2, flags; cuts; chunks: sender (bit 15) and length in two bytes, and the bytes
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, Final

from fleet.core.errors import Peer, WireError
from fleet.core.model import BrokerId, Endpoint
from fleet.proxy.addresses import AddressSource
from fleet.proxy.frame_limits import HEADER_LIMIT_BYTES
from fleet.proxy.frame_limits import Limits as SessionLimits
from fleet.proxy.rewriter import AT_ONCE_BYTES
from fleet.proxy.session import Session
from fleet.proxy.wire._tables import APIS, PATCHED
from fleet.proxy.wire.api_versions import offered_range
from fleet.proxy.wire.configs import carries_address
from fleet.proxy.wire.counters import WireCounters
from fleet.proxy.wire.requests import RESPONSE_LAYOUTS
from tests.conformance.exchange import ENDPOINTS, request_form, response_form
from tests.conformance.messages import Form, Reader, Values, for_client, without
from tests.conformance.scripted import definitions
from tests.property import wire_fleet
from tests.property.wire_fleet import CLIENT_HOST, DIRECTORY, Limits, Play, pieces, small_slices

CLIENT, BROKER, BOTH = range(3)
FRAMED: Final = 0x80
"""The input holds neither the size nor a response's correlation id: `check` adds fitting ones in front."""
DRAINS: Final = 0x40
REDIRECTS: Final = 0x20
HOLDS_LITTLE: Final = 0x20
"""For a response: the session may hold back only a little."""

PRODUCE, SASL_HANDSHAKE, API_VERSIONS = 0, 17, 18
UNKNOWN_VERSION: Final = 32_767
UNSUPPORTED_VERSION: Final = 35
REAL_HOST: Final = "real-broker"
"""A part of the hosts of all brokers in the seeds."""
MAX_PIECES: Final = 48
MAX_GROWTH_FACTOR: Final = 32
"""How many times longer a response may become: a broker's address takes 10 bytes or more, a proxy's 190."""
INPUTS_PER_DECODE: Final = 8
"""One input in N is decoded. An input whose output contains a broker's address is always decoded."""

ANSWERED_APIS: Final[tuple[int, ...]] = (*sorted(RESPONSE_LAYOUTS), API_VERSIONS << 16 | UNKNOWN_VERSION)
"""API key and version, as one number, of what a broker may answer."""

MESSAGES: Final = {each.api_key: each for each in definitions()}
_NO_FIELDS: Final = Form("Header", (), 0, flexible=True)
WITH_ADDRESSES: Final = {
    key << 16 | version for key, low, high, _ in PATCHED for version in range(low, high + 1)
}
_ORDINARY_LIMITS: Final = Limits()
_SMALL_LIMITS: Final = Limits(max_patched_response_bytes=512)
_SHARED_COUNTERS: Final = WireCounters()
_SHARED_SOURCE: Final = AddressSource(DIRECTORY, "external", "p1", lambda _: None, _SHARED_COUNTERS)
"""The objects that the sessions of a worker share."""


class _Advertised(dict[BrokerId, Endpoint]):
    """The addresses to advertise to clients, for any id."""

    def __missing__(self, broker_id: BrokerId) -> Endpoint:
        return Endpoint(*wire_fleet.advertised(broker_id))


ADVERTISED: Final = _Advertised()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of a session after an input, and the error that ended it."""

    play: Play
    error: WireError | None

    @property
    def observable_state(self) -> tuple[bytes, bytes, bytes, bytes, int]:
        """Everything that must not depend on where the input is split."""
        play = self.play
        return (
            bytes(play.to_client),
            bytes(play.to_broker),
            play.client_rest,
            play.broker_rest,
            play.session.in_flight,
        )


def check(data: bytes) -> None:
    """Raises: AssertionError, or an exception that the code under test should not have raised."""
    if len(data) < 3:
        return
    kind, flags, cuts = data[0] % 32 % 3, data[0], data[1]
    if kind == CLIENT:
        _check_client(data[2:], flags, cuts)
    elif kind == BROKER:
        _check_broker(data[2:], flags, cuts)
    else:
        _check_conversation(data[2:], flags, cuts)


def api_code(api: int) -> int:
    """Encode an API key and a version in a byte each.

    Inputs of the corpus keep their meaning when APIs change.
    """
    return api >> 16 << 8 | min(api & 0xFFFF, 0xFF)


def decode_api(number: int) -> int:
    """Decode two bytes of an input as an API key and version. Any two bytes give an existing pair."""
    return _APIS_BY_CODE.get(number, ANSWERED_APIS[number % len(ANSWERED_APIS)])


def new_play(limits: SessionLimits = _ORDINARY_LIMITS) -> Play:
    session = Session(
        _SHARED_SOURCE,
        limits,
        _SHARED_COUNTERS,
        CLIENT_HOST,
        clock=count(0.0, 0.25).__next__,
        observe_answer=lambda *_: None,
    )
    return Play(session, _SHARED_SOURCE, _SHARED_COUNTERS, [])


def split(data: bytes, pattern: int) -> list[bytes]:
    """Split the data: single bytes where ``pattern`` is 0 and the data is short, else up to 5 pieces."""
    if not pattern:
        return pieces(data, range(0, len(data), 1 + len(data) // MAX_PIECES))
    state, marks = pattern, []
    for _ in range(1 + pattern % 4):
        state = (state * 1_103_515_245 + 12_345) & 0x7FFFFFFF
        marks.append(state % (len(data) + 1))
    return pieces(data, marks)


def _send(play: Play, chunks: Iterable[tuple[Peer, bytes]]) -> Outcome:
    for peer, chunk in chunks:
        try:
            if peer == "client":
                play.client(chunk)
            else:
                play.broker(chunk)
        except WireError as error:
            if error.peer != peer:
                raise AssertionError(f"{peer} sent the data, but the error is {error}") from error
            return Outcome(play, error)
    assert play.most_kept_bytes < HEADER_LIMIT_BYTES
    return Outcome(play, None)


def _check_same_output(whole: Outcome, parts: Outcome) -> None:
    """Check that both splits give the same output, or a prefix where one ends in an error or goes on."""
    unfinished = whole.error is None and whole.play.session.in_response
    if parts.error is None and parts.play.session.in_response:
        unfinished = True  # the session parses a partial response again when its size has doubled
    if not unfinished:
        assert (whole.error is None) == (parts.error is None), (
            f"{whole.error!r}, and in parts {parts.error!r}"
        )
        if whole.error is None:
            assert whole.observable_state == parts.observable_state, (
                "a different split gives a different result"
            )
            return
    for output, other_output in zip(whole.observable_state[:2], parts.observable_state[:2], strict=True):
        shorter, longer = sorted((output, other_output), key=len)
        assert longer.startswith(shorter), "a different split begins with a different output"


# ---- requests


def _check_client(data: bytes, flags: int, cuts: int) -> None:
    if flags & FRAMED:
        data = struct.pack(">i", len(data)) + data
    if flags & (DRAINS | REDIRECTS):
        _check_drain(data, flags, cuts)
        return
    whole = _send(new_play(), [("client", data)])
    parts = new_play()
    parts.reads_per_sample = 2
    _check_same_output(whole, _send(parts, [("client", each) for each in split(data, cuts)]))
    play = whole.play
    if whole.error is not None:
        return
    local = _frames(bytes(play.to_client))[0]
    assert all(len(each) == 20 for each in local), "the session answered an unexpected request itself"
    passed = bytes(play.to_broker)
    assert (data if not local else data[len(data) - len(passed) - len(play.client_rest) :]) == (
        passed + play.client_rest
    )
    _check_in_flight(passed, play.session)


def _check_drain(data: bytes, flags: int, cuts: int) -> None:
    """Check a drain, whose time matters. The broker still receives what came, except whole frames."""
    play = new_play()
    first, *others = split(data, cuts or 1)
    outcome = _send(play, [("client", first)])
    if outcome.error is not None:
        return
    if flags & REDIRECTS:
        play.session.redirect()
    if flags & DRAINS:
        play.session.drain()
    outcome = _send(play, [("client", each) for each in others])
    if outcome.error is None and not play.to_client:
        assert play.to_broker + play.client_rest == data


def _check_in_flight(passed: bytes, session: Session) -> None:
    """Compare the number of responses in flight with a naive count of the frames that went to the broker."""
    whole, rest = _frames(passed)
    expected = 0
    for frame in whole:
        key, version = struct.unpack_from(">hh", frame, 4)
        if key != PRODUCE:
            expected += 1
            continue
        try:
            expected += _acks(frame, version) != 0
        except (AssertionError, UnicodeDecodeError):
            return
    assert session.in_flight in ((expected, expected + 1) if rest else (expected,)), "in flight"


def _acks(frame: bytes, version: int) -> int:
    """Read the acks by the definitions.

    Raises: AssertionError, UnicodeDecodeError: the frame does not fit them.
    """
    message = MESSAGES[PRODUCE]
    (length,) = struct.unpack_from(">h", frame, 12)
    reader = _StrictReader(frame[14 + max(length, 0) :])
    form = request_form(message, version)
    if form.flexible:
        reader.message(_NO_FIELDS)
    before = form.fields[: [each.name for each in form.fields].index("Acks") + 1]
    values = {each.name: reader.read_field(form, each) for each in form.of(before).plain}
    return int(values["Acks"])


# ---- responses


def _check_broker(data: bytes, flags: int, cuts: int) -> None:
    if len(data) < 4:
        return
    first, second = (decode_api(each) for each in struct.unpack_from(">HH", data))
    raw = data[4:]
    if flags & FRAMED:
        raw = struct.pack(">ii", len(raw) + 4, 1) + raw
    limits = _SMALL_LIMITS if flags & HOLDS_LITTLE else _ORDINARY_LIMITS
    whole = _send(_play_with_requests(first, second, limits), [("broker", raw)])
    # ApiVersions is not patched in slices: the session refuses a response that is too long for one turn.
    has_slices = API_VERSIONS not in (first >> 16, second >> 16)
    with small_slices(1 + cuts, 0 if has_slices else AT_ONCE_BYTES):
        parts = _send(
            _play_with_requests(first, second, limits), [("broker", each) for each in split(raw, cuts)]
        )
    _check_same_output(whole, parts)
    play = whole.play
    received = bytes(play.to_client)
    assert len(received) <= MAX_GROWTH_FACTOR * len(raw) + 64
    if whole.error is not None:
        return
    frames, left = _frames(received)
    if not play.session.in_response and not play.broker_rest:
        assert not left, f"{left} bytes follow the last frame"
    sent = _frames(raw[: len(raw) - len(play.broker_rest)])[0]
    assert len(frames) == len(sent)
    is_sampled = zlib.crc32(data) % INPUTS_PER_DECODE == 0
    for api, before, after in zip((first, second), sent, frames, strict=False):
        if api not in WITH_ADDRESSES and api >> 16 != API_VERSIONS:
            assert before == after, "a response without addresses was changed"
        elif is_sampled or REAL_HOST.encode() in after:
            _check_rewritten(api, before, after)


def _play_with_requests(first: int, second: int, limits: Limits) -> Play:
    play = new_play(limits)
    play.client(_SILENT_PRODUCE + _request(first, 1) + _request(second, 2))
    play.to_broker.clear()
    return play


_APIS_BY_CODE: Final = {api_code(api): api for api in ANSWERED_APIS}

_SILENT_PRODUCE: Final = wire_fleet.produce(9, 0, 0)
"""In front of an unknown version of ApiVersions, this request keeps the session from answering it."""


def make_request(api: int, correlation_id: int) -> bytes:
    """Make a request from API key and version as one number. Little more than its header is valid."""
    key, version = api >> 16, api & 0xFFFF
    if key == PRODUCE:
        return wire_fleet.produce(version, correlation_id, 1)
    return wire_fleet.request(key, version, correlation_id, b"\0\5PLAIN" if key == SASL_HANDSHAKE else b"")


_request: Final = cache(make_request)


def _check_rewritten(api: int, before: bytes, after: bytes) -> None:
    """Compare a response with the result of the definitions, as far as they can decode it."""
    message, version = MESSAGES[api >> 16], api & 0xFFFF
    if message.api_key == API_VERSIONS:
        refused = before[8:10] == struct.pack(">h", UNSUPPORTED_VERSION)
        version = 0 if refused or version == UNKNOWN_VERSION else version
    form = response_form(message, version)
    expected, found = _decoded(form, before), _decoded(form, after)
    if found is not None:
        leaks = [each for each in _addresses(form, found) if each[1:] != wire_fleet.advertised(each[0])]
        assert not leaks, f"{message.name} v{version} names {leaks}"
    if expected is None:
        return
    assert found is not None, f"{message.name} v{version} cannot be decoded after the rewrite"
    if message.api_key == API_VERSIONS:
        offered = [
            (each["ApiKey"], offered_range(each["ApiKey"], each["MinVersion"], each["MaxVersion"]))
            for each in expected["ApiKeys"] or ()
        ]
        listed = [
            (each["ApiKey"], (each["MinVersion"], each["MaxVersion"])) for each in found["ApiKeys"] or ()
        ]
        assert listed == [each for each in offered if each[1] is not None]
        assert all(low <= high and key in APIS for key, (low, high) in listed)
        return
    expected = for_client(form, expected, ADVERTISED, _is_blanked)
    if version >= ENDPOINTS.get(message.name, version + 1) and not found.get("NodeEndpoints"):
        expected, found = without(expected, ["NodeEndpoints"]), without(found, ["NodeEndpoints"])
    assert found == expected, f"{message.name} v{version} differs from the expected message"


def _is_blanked(name: Any) -> bool:
    return bool(name) and carries_address(memoryview(name.encode()))


def _decoded(form: Form, frame: bytes) -> Values | None:
    """Decode the message in a whole frame; None if the definitions cannot decode it."""
    reader = _StrictReader(frame[8:])
    try:
        if form.flexible and form.api != MESSAGES[API_VERSIONS].name:
            reader.message(_NO_FIELDS)
        values = reader.message(form)
        reader.check_end()
    except (AssertionError, UnicodeDecodeError):
        return None
    return values


def _addresses(form: Form, values: Values) -> Iterator[tuple[BrokerId, str, int]]:
    """Yield every broker address in a message."""
    if {"Host", "Port"} <= values.keys():
        broker_id = values.get("NodeId", values.get("BrokerId"))
        if broker_id is not None and broker_id != -1 and values["Host"]:
            yield broker_id, values["Host"], values["Port"]
    for item in (*form.plain, *form.tagged):
        inner = values.get(item.name)
        if item.fields and inner is not None:
            for each in inner if isinstance(inner, list) else [inner]:
                yield from _addresses(form.of(item.fields), each)


class _StrictReader(Reader):
    """Fails at an impossible length, and does not start to read that many bytes."""

    def read_length(self, form: Form, classic: str) -> int | None:
        length = super().read_length(form, classic)
        assert length is None or length <= len(self._data) - self._pos, (
            "the length exceeds the remaining bytes"
        )
        return length


# ---- conversations


def _check_conversation(data: bytes, flags: int, cuts: int) -> None:
    conversation = list(chunks(data))
    if flags & (DRAINS | REDIRECTS):
        play, half = new_play(), len(conversation) // 2
        if _send(play, conversation[:half]).error is None:
            if flags & REDIRECTS:
                play.session.redirect()
            if flags & DRAINS:
                play.session.drain()
            _send(play, conversation[half:])
        return
    whole = _send(new_play(), conversation)
    parts = new_play()
    parts.reads_per_sample = 2
    _check_same_output(
        whole, _send(parts, [(peer, each) for peer, chunk in conversation for each in split(chunk, cuts)])
    )


def chunks(data: bytes) -> Iterator[tuple[Peer, bytes]]:
    """Yield sender and bytes of each chunk of a conversation."""
    pos = 0
    while pos + 2 <= len(data):
        (head,) = struct.unpack_from(">H", data, pos)
        size = head & 0x7FFF
        yield "broker" if head >> 15 else "client", data[pos + 2 : pos + 2 + size]
        pos += 2 + size


def _frames(data: bytes) -> tuple[list[bytes], int]:
    """The whole frames at the beginning, and the number of bytes after them."""
    found, pos = [], 0
    while pos + 4 <= len(data):
        (size,) = struct.unpack_from(">i", data, pos)
        if size < 0 or pos + 4 + size > len(data):
            break
        found.append(data[pos : pos + 4 + size])
        pos += 4 + size
    return found, len(data) - pos
