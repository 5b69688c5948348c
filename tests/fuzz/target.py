"""What one input of the fuzzer means, and what must come of it.

An input is a flag byte, a byte that decides where what it carries is cut, and what a client, a broker, or
both of them send to a session. Whatever it is: nothing is raised but a ``WireError`` that blames the sender;
cut otherwise, and patched in slices, it comes to the same; what is passed on is framed as before; and a
response that can be decoded comes out as ``messages.for_client`` makes it, with no address of a broker.

    client      0, flags; cuts; bytes
    broker      1, flags; cuts; two requests that were sent before, each in two bytes (`short`); bytes
    both        2, flags; cuts; chunks: who sends it (bit 15) and how long it is, in two bytes, and the bytes
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
from fleet.proxy.rewriter import AT_ONCE_BYTES
from fleet.proxy.session import HEADER_LIMIT_BYTES, Session
from fleet.proxy.session import Limits as SessionLimits
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
"""The size, and for a response the correlation id, are not in the input but put before it: they fit."""
DRAINS: Final = 0x40
REDIRECTS: Final = 0x20
SMALL: Final = 0x20
"""Of a response: little may be held back."""

PRODUCE, SASL_HANDSHAKE, API_VERSIONS = 0, 17, 18
UNKNOWN_VERSION: Final = 32_767
UNSUPPORTED_VERSION: Final = 35
REAL_HOST: Final = "real-broker"
"""In the hosts of all brokers in the seeds."""
MOST_PIECES: Final = 48
GROWTH: Final = 32
"""How many times its length a response may get: an address takes ten bytes at least, a proxy's 190."""
DECODED_EVERY: Final = 8
"""One input in so many is decoded; of those with a broker's address in what comes out, each."""

ASKED: Final[tuple[int, ...]] = (*sorted(RESPONSE_LAYOUTS), API_VERSIONS << 16 | UNKNOWN_VERSION)
"""API key and version, as one number, of what a broker may answer."""

MESSAGES: Final = {each.api_key: each for each in definitions()}
_NO_FIELDS: Final = Form("Header", (), 0, flexible=True)
WITH_ADDRESSES: Final = {
    key << 16 | version for key, low, high, _ in PATCHED for version in range(low, high + 1)
}
_ORDINARY: Final = Limits()
_LITTLE: Final = Limits(max_patched_response_bytes=512)
_COUNTERS: Final = WireCounters()
_SOURCE: Final = AddressSource(DIRECTORY, "external", "p1", lambda _: None, _COUNTERS)
"""What sessions of a worker share, too."""


class _Advertised(dict[BrokerId, Endpoint]):
    """What clients are to be told, of any id."""

    def __missing__(self, broker_id: BrokerId) -> Endpoint:
        return Endpoint(*wire_fleet.advertised(broker_id))


ADVERTISED: Final = _Advertised()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    play: Play
    error: WireError | None

    @property
    def said(self) -> tuple[bytes, bytes, bytes, bytes, int]:
        """All that must not depend on where it was cut."""
        play = self.play
        return (
            bytes(play.to_client),
            bytes(play.to_broker),
            play.client_rest,
            play.broker_rest,
            play.session.in_flight,
        )


def check(data: bytes) -> None:
    """Raises: AssertionError, or whatever the code under test should not have raised."""
    if len(data) < 3:
        return
    kind, flags, cuts = data[0] % 32 % 3, data[0], data[1]
    if kind == CLIENT:
        _of_client(data[2:], flags, cuts)
    elif kind == BROKER:
        _of_broker(data[2:], flags, cuts)
    else:
        _of_both(data[2:], flags, cuts)


def short(api: int) -> int:
    """An API key and a version in a byte each; inputs that are kept mean the same when APIs come and go."""
    return api >> 16 << 8 | min(api & 0xFFFF, 0xFF)


def asked(number: int) -> int:
    """The API key and version that two bytes of an input mean: any two mean one that is there."""
    return _SHORT.get(number, ASKED[number % len(ASKED)])


def new_play(limits: SessionLimits = _ORDINARY) -> Play:
    session = Session(
        _SOURCE,
        limits,
        _COUNTERS,
        CLIENT_HOST,
        clock=count(0.0, 0.25).__next__,
        observe_answer=lambda *_: None,
    )
    return Play(session, _SOURCE, _COUNTERS, [])


def cut(data: bytes, where: int) -> list[bytes]:
    """The data in pieces: of one byte, where ``where`` is 0 and it is short; else in up to five."""
    if not where:
        return pieces(data, range(0, len(data), 1 + len(data) // MOST_PIECES))
    state, marks = where, []
    for _ in range(1 + where % 4):
        state = (state * 1_103_515_245 + 12_345) & 0x7FFFFFFF
        marks.append(state % (len(data) + 1))
    return pieces(data, marks)


def _feed(play: Play, chunks: Iterable[tuple[Peer, bytes]]) -> Outcome:
    for peer, chunk in chunks:
        try:
            if peer == "client":
                play.client(chunk)
            else:
                play.broker(chunk)
        except WireError as error:
            if error.peer != peer:
                raise AssertionError(f"{peer} has sent it, and {error} is what is said") from error
            return Outcome(play, error)
    assert play.most_kept_bytes < HEADER_LIMIT_BYTES
    return Outcome(play, None)


def _agree(whole: Outcome, parts: Outcome) -> None:
    """However it arrives: the same comes out; or it is refused, or goes on, and a beginning has come out."""
    unfinished = whole.error is None and whole.play.session.in_response
    if parts.error is None and parts.play.session.in_response:
        unfinished = True  # what has come of a response is looked at again when it is twice as much
    if not unfinished:
        assert (whole.error is None) == (parts.error is None), (
            f"{whole.error!r}, and in parts {parts.error!r}"
        )
        if whole.error is None:
            assert whole.said == parts.said, "other cuts give something else"
            return
    for mine, other in zip(whole.said[:2], parts.said[:2], strict=True):
        shorter, longer = sorted((mine, other), key=len)
        assert longer.startswith(shorter), "other cuts begin with something else"


# ---- requests


def _of_client(data: bytes, flags: int, cuts: int) -> None:
    if flags & FRAMED:
        data = struct.pack(">i", len(data)) + data
    if flags & (DRAINS | REDIRECTS):
        _in_a_drain(data, flags, cuts)
        return
    whole = _feed(new_play(), [("client", data)])
    parts = new_play()
    parts.reads_per_sample = 2
    _agree(whole, _feed(parts, [("client", each) for each in cut(data, cuts)]))
    play = whole.play
    if whole.error is not None:
        return
    local = _frames(bytes(play.to_client))[0]
    assert all(len(each) == 20 for each in local), "something was answered here"
    passed = bytes(play.to_broker)
    assert (data if not local else data[len(data) - len(passed) - len(play.client_rest) :]) == (
        passed + play.client_rest
    )
    _remembered(passed, play.session)


def _in_a_drain(data: bytes, flags: int, cuts: int) -> None:
    """Where it matters what has come when. What goes to the broker still is what came, less whole frames."""
    play = new_play()
    first, *others = cut(data, cuts or 1)
    outcome = _feed(play, [("client", first)])
    if outcome.error is not None:
        return
    if flags & REDIRECTS:
        play.session.redirect()
    if flags & DRAINS:
        play.session.drain()
    outcome = _feed(play, [("client", each) for each in others])
    if outcome.error is None and not play.to_client:
        assert play.to_broker + play.client_rest == data


def _remembered(passed: bytes, session: Session) -> None:
    """As many answers are awaited as the frames that went to the broker ask for: a naive count of them."""
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
    """Read by the definitions. Raises: AssertionError, UnicodeDecodeError: it does not fit them."""
    message = MESSAGES[PRODUCE]
    (length,) = struct.unpack_from(">h", frame, 12)
    reader = _Strict(frame[14 + max(length, 0) :])
    form = request_form(message, version)
    if form.flexible:
        reader.message(_NO_FIELDS)
    before = form.fields[: [each.name for each in form.fields].index("Acks") + 1]
    values = {each.name: reader.read_field(form, each) for each in form.of(before).plain}
    return int(values["Acks"])


# ---- responses


def _of_broker(data: bytes, flags: int, cuts: int) -> None:
    if len(data) < 4:
        return
    first, second = (asked(each) for each in struct.unpack_from(">HH", data))
    raw = data[4:]
    if flags & FRAMED:
        raw = struct.pack(">ii", len(raw) + 4, 1) + raw
    limits = _LITTLE if flags & SMALL else _ORDINARY
    whole = _feed(_asked(first, second, limits), [("broker", raw)])
    # Of ApiVersions there are no slices: what is too long for one turn is refused.
    has_slices = API_VERSIONS not in (first >> 16, second >> 16)
    with small_slices(1 + cuts, 0 if has_slices else AT_ONCE_BYTES):
        parts = _feed(_asked(first, second, limits), [("broker", each) for each in cut(raw, cuts)])
    _agree(whole, parts)
    play = whole.play
    received = bytes(play.to_client)
    assert len(received) <= GROWTH * len(raw) + 64
    if whole.error is not None:
        return
    there, left = _frames(received)
    if not play.session.in_response and not play.broker_rest:
        assert not left, f"{left} bytes are behind the last frame"
    sent = _frames(raw[: len(raw) - len(play.broker_rest)])[0]
    assert len(there) == len(sent)
    looked_at = zlib.crc32(data) % DECODED_EVERY == 0
    for api, before, after in zip((first, second), sent, there, strict=False):
        if api not in WITH_ADDRESSES and api >> 16 != API_VERSIONS:
            assert before == after, "nothing was to be done"
        elif looked_at or REAL_HOST.encode() in after:
            _as_for_clients(api, before, after)


def _asked(first: int, second: int, limits: Limits) -> Play:
    play = new_play(limits)
    play.client(_SILENT + _request(first, 1) + _request(second, 2))
    play.to_broker.clear()
    return play


_SHORT: Final = {short(api): api for api in ASKED}

_SILENT: Final = wire_fleet.produce(9, 0, 0)
"""Before it, an unknown version of ApiVersions would be answered here."""


def asking(api: int, correlation_id: int) -> bytes:
    """A request, by API key and version as one number, of which hardly more than the header is right."""
    key, version = api >> 16, api & 0xFFFF
    if key == PRODUCE:
        return wire_fleet.produce(version, correlation_id, 1)
    return wire_fleet.request(key, version, correlation_id, b"\0\5PLAIN" if key == SASL_HANDSHAKE else b"")


_request: Final = cache(asking)


def _as_for_clients(api: int, before: bytes, after: bytes) -> None:
    """Compare a response with what the definitions make of it, as far as they can."""
    message, version = MESSAGES[api >> 16], api & 0xFFFF
    if message.api_key == API_VERSIONS:
        refused = before[8:10] == struct.pack(">h", UNSUPPORTED_VERSION)
        version = 0 if refused or version == UNKNOWN_VERSION else version
    form = response_form(message, version)
    wanted, found = _decoded(form, before), _decoded(form, after)
    if found is not None:
        leaks = [each for each in _addresses(form, found) if each[1:] != wire_fleet.advertised(each[0])]
        assert not leaks, f"{message.name} v{version} names {leaks}"
    if wanted is None:
        return
    assert found is not None, f"{message.name} v{version} cannot be decoded any more"
    if message.api_key == API_VERSIONS:
        offered = [
            (each["ApiKey"], offered_range(each["ApiKey"], each["MinVersion"], each["MaxVersion"]))
            for each in wanted["ApiKeys"] or ()
        ]
        listed = [
            (each["ApiKey"], (each["MinVersion"], each["MaxVersion"])) for each in found["ApiKeys"] or ()
        ]
        assert listed == [each for each in offered if each[1] is not None]
        assert all(low <= high and key in APIS for key, (low, high) in listed)
        return
    wanted = for_client(form, wanted, ADVERTISED, _is_blanked)
    if version >= ENDPOINTS.get(message.name, version + 1) and not found.get("NodeEndpoints"):
        wanted, found = without(wanted, ["NodeEndpoints"]), without(found, ["NodeEndpoints"])
    assert found == wanted, f"{message.name} v{version} is another one"


def _is_blanked(name: Any) -> bool:
    return bool(name) and carries_address(memoryview(name.encode()))


def _decoded(form: Form, frame: bytes) -> Values | None:
    """The message in a whole frame; None where the definitions find none."""
    reader = _Strict(frame[8:])
    try:
        if form.flexible and form.api != MESSAGES[API_VERSIONS].name:
            reader.message(_NO_FIELDS)
        values = reader.message(form)
        reader.end()
    except (AssertionError, UnicodeDecodeError):
        return None
    return values


def _addresses(form: Form, values: Values) -> Iterator[tuple[BrokerId, str, int]]:
    """Every address of a broker in a message."""
    if {"Host", "Port"} <= values.keys():
        broker_id = values.get("NodeId", values.get("BrokerId"))
        if broker_id is not None and broker_id != -1 and values["Host"]:
            yield broker_id, values["Host"], values["Port"]
    for item in (*form.plain, *form.tagged):
        inner = values.get(item.name)
        if item.fields and inner is not None:
            for each in inner if isinstance(inner, list) else [inner]:
                yield from _addresses(form.of(item.fields), each)


class _Strict(Reader):
    """Fails at a length that cannot be, and does not begin to read so many."""

    def read_length(self, form: Form, classic: str) -> int | None:
        length = super().read_length(form, classic)
        assert length is None or length <= len(self._data) - self._pos, "longer than all that is left"
        return length


# ---- conversations


def _of_both(data: bytes, flags: int, cuts: int) -> None:
    talk = list(chunks(data))
    if flags & (DRAINS | REDIRECTS):
        play, half = new_play(), len(talk) // 2
        if _feed(play, talk[:half]).error is None:
            if flags & REDIRECTS:
                play.session.redirect()
            if flags & DRAINS:
                play.session.drain()
            _feed(play, talk[half:])
        return
    whole = _feed(new_play(), talk)
    parts = new_play()
    parts.reads_per_sample = 2
    _agree(whole, _feed(parts, [(peer, each) for peer, chunk in talk for each in cut(chunk, cuts)]))


def chunks(data: bytes) -> Iterator[tuple[Peer, bytes]]:
    """Of an input of both sides: who sends it, and what."""
    pos = 0
    while pos + 2 <= len(data):
        (head,) = struct.unpack_from(">H", data, pos)
        size = head & 0x7FFF
        yield "broker" if head >> 15 else "client", data[pos + 2 : pos + 2 + size]
        pos += 2 + size


def _frames(data: bytes) -> tuple[list[bytes], int]:
    """The whole frames at the beginning, and how many bytes are behind them."""
    found, pos = [], 0
    while pos + 4 <= len(data):
        (size,) = struct.unpack_from(">i", data, pos)
        if size < 0 or pos + 4 + size > len(data):
            break
        found.append(data[pos : pos + 4 + size])
        pos += 4 + size
    return found, len(data) - pos
