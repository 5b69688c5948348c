"""A broker that pairs requests and responses as Kafka does: the oracle for a session's pairing.

Written from Kafka's sources (``SocketServer``, ``RequestContext``, ``SaslServerAuthenticator``,
``KafkaApis``, ``ByteBufferAccessor``), and without the code that it judges. It decides which frames are
answered, with what, and when the connection ends. It parses no more of a body than that needs, so it answers
more than Kafka would.
``tests/integration/test_pairing.py`` compares it with real brokers.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from types import MappingProxyType
from typing import Final

from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType
from kio.static.protocol import Entity

from tests.property import kio_samples

PRODUCE, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 0, 17, 18, 36
UNKNOWN_API: Final = 999
"""An API of a later Kafka."""
LATER_VERSIONS: Final = 2
"""The number of additional versions of each API in a later Kafka."""
NO_ERROR, UNSUPPORTED_MECHANISM, ILLEGAL_SASL_STATE, UNSUPPORTED_VERSION = 0, 33, 34, 35
INVALID_REQUEST, SASL_AUTHENTICATION_FAILED = 42, 58
FIRST_FLEXIBLE_API_VERSIONS: Final = 3
FLEXIBLE_HEADER: Final = 2

REAL_ADDRESS: Final = b"real-broker-7.internal"
"""Bytes of responses in places that only a later Kafka knows."""
VALID_TOKEN_PART: Final = b"good"
"""A part of the SASL tokens of a client that knows its password."""
TOKENS_OF_MECHANISM: Final[Mapping[str, int]] = MappingProxyType(
    {"PLAIN": 1, "OAUTHBEARER": 1, "SCRAM-SHA-256": 2}
)
"""Maps each mechanism to the number of tokens that a client sends."""
LISTED_RANGES: Final = ((0, 0, 15), (3, 0, 15), (12, 0, 4), (17, 0, 1), (60, 0, 2), (500, 0, 3))
"""The APIs that ApiVersions lists in addition to itself: key, lowest and highest version."""
SAMPLES_PER_RESPONSE: Final = 6
"""The number of samples of each response that carries addresses."""


class Refused(Exception):
    """Kafka closes the connection without an answer."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The listener and the Kafka version that a client has met.

    Args:
        sasl: whether clients must authenticate.
        mechanisms: the mechanisms, of ``TOKENS_OF_MECHANISM``; gssapi: whether Kerberos is allowed, too.
        reauthenticates: whether a session expires (KIP-368).
        newest_api_versions: the newest version of ApiVersions that this Kafka knows.
        is_later: whether this Kafka knows an API, and versions of each API, of a future release.
    """

    sasl: bool = False
    mechanisms: frozenset[str] = frozenset(TOKENS_OF_MECHANISM)
    gssapi: bool = False
    reauthenticates: bool = False
    newest_api_versions: int = 4
    is_later: bool = False


@dataclass(frozen=True, slots=True)
class Header:
    key: int
    version: int
    correlation_id: int
    body: bytes
    """The bytes after the header."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """Bytes that a client must get unchanged."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Carrying:
    """A response that carries addresses: a sample of one API and version."""

    key: int
    version: int
    seed: int

    @property
    def entity(self) -> Entity:
        return sample(self.key, self.version, self.seed)


@dataclass(frozen=True, slots=True)
class Versions:
    """A response of ApiVersions: the version of its form, and the listed ranges."""

    form: int
    error: int
    ranges: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One response. ``frame`` is the whole frame with its size. ``key`` is None without a header."""

    key: int | None
    version: int
    request_bytes: int
    correlation_id: int
    content: Opaque | Carrying | Versions
    frame: bytes
    error: int | None = None
    """The error code at the start of responses of ApiVersions and SASL."""


class State(Enum):
    """The states of SaslServerAuthenticator. Without SASL a connection begins as AUTHENTICATED."""

    INITIAL = auto()
    VERSIONS_OR_HANDSHAKE = auto()
    HANDSHAKE = auto()
    TOKENS = auto()
    AUTHENTICATED = auto()
    OTHER_MECHANISM = auto()


@cache
def versions_of(key: int) -> range:
    """The versions of an API in the newest known Kafka; empty for an unknown API."""
    name = api_key_map.get(key)
    known = schema_name_map[name] if name is not None else {}
    return range(min(known), max(known) + 1) if known else range(0)


@cache
def header_version(key: int, version: int) -> int:
    """2 if a request's header has tagged fields, else 1.

    A future version has the header of the newest one.
    """
    known = versions_of(key)
    if key == API_VERSIONS:
        return FLEXIBLE_HEADER if version >= FIRST_FLEXIBLE_API_VERSIONS else 1
    if not known or version < known[0]:
        return 1
    schema = schema_name_map[api_key_map[key]][min(version, known[-1])][EntityType.request]
    module, _, name = schema.partition(":")
    return FLEXIBLE_HEADER if getattr(importlib.import_module(module), name).__flexible__ else 1


class Reader:
    """Reads as ``ByteBufferAccessor`` does. Raises: Refused: the bytes end too early, or are invalid."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0

    @property
    def rest(self) -> bytes:
        return self._data[self._pos :]

    def take(self, size: int) -> bytes:
        taken = self._data[self._pos : self._pos + size]
        if size < 0 or len(taken) < size:
            raise Refused
        self._pos += size
        return taken

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def varint(self) -> int:
        """Read five bytes at most.

        Bits above an int32 are lost, and the highest remaining bit is the sign.
        """
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
        raise Refused

    def string(self) -> bytes | None:
        """Read a nullable string: every negative length is null."""
        size = self.int16()
        return None if size < 0 else self.take(size)

    def compact_string(self) -> bytes | None:
        size = self.varint() - 1
        if size > 0x7FFF:
            raise Refused
        return None if size < 0 else self.take(size)

    def tags(self) -> None:
        """Read tagged fields. A negative count means none."""
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())


def read_header(frame: bytes) -> Header:
    """Args: frame: without its size."""
    reader = Reader(frame)
    key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
    reader.string()
    if header_version(key, version) == FLEXIBLE_HEADER:
        reader.tags()
    return Header(key, version, correlation_id, reader.rest)


def read_acks(header: Header) -> int:
    """The number of acknowledgements that a Produce request requires."""
    reader = Reader(header.body)
    if header_version(header.key, header.version) == FLEXIBLE_HEADER:
        reader.compact_string()
    elif header.version >= 3:
        reader.string()
    return reader.int16()


@cache
def sample(key: int, version: int, seed: int) -> Entity:
    """Make a response with real addresses only."""

    def address(broker_id: int, _host: str, _port: int) -> tuple[str, int]:
        return f"real-broker-{abs(broker_id)}.internal", 19092

    def listener(_host: str, port: int) -> tuple[str, int]:
        return "real-broker-controller.internal", port

    return kio_samples.convert(kio_samples.make(key, version, seed), address, lambda _: False, listener)


@cache
def sample_frame(key: int, version: int, seed: int) -> bytes:
    """The bytes after the correlation id."""
    return kio_samples.frame(sample(key, version, seed), 0)[8:]


def frame_response(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def has_form_0(frame: bytes) -> bool:
    """Whether the count of an ApiVersions response is an int32, which begins with a zero, instead of
    compact."""
    return not frame[10]


def encode_versions(content: Versions) -> bytes:
    """The body of an ApiVersions response. A future form contains a real address."""
    ranges = [struct.pack(">hhh", *each) for each in content.ranges]
    error = struct.pack(">h", content.error)
    if content.form < FIRST_FLEXIBLE_API_VERSIONS:
        throttle = bytes(4) if content.form else b""
        return error + struct.pack(">i", len(ranges)) + b"".join(ranges) + throttle
    later = REAL_ADDRESS if content.form > 5 else b""
    return error + bytes([len(ranges) + 1]) + b"".join(each + b"\0" for each in ranges) + bytes(5) + later


@dataclass
class ModelBroker:
    """One connection at a broker."""

    setup: Setup = field(default_factory=Setup)
    closed: bool = False
    _state: State = field(init=False)
    _mechanism: str = ""
    _rounds_left: int = 0
    _has_headers: bool = False
    """Whether tokens arrive in SaslAuthenticate requests: after SaslHandshake v1."""
    _number: int = 0

    def __post_init__(self) -> None:
        self._state = State.INITIAL if self.setup.sasl else State.AUTHENTICATED

    @property
    def is_authenticated(self) -> bool:
        return self._state is State.AUTHENTICATED

    def handle(self, frame: bytes) -> Answer | None:
        """Handle the next request, without its size, after answering the former one.

        None: there is no answer.
        """
        assert not self.closed
        self._number += 1
        try:
            return self.answer_frame(frame)
        except Refused:
            self.closed = True
            return None

    def knows(self, key: int, version: int) -> bool:
        """Whether a request is accepted."""
        if key == API_VERSIONS:
            return True
        if key == UNKNOWN_API:
            return self.setup.is_later and version == 0
        known = versions_of(key)
        later = LATER_VERSIONS if self.setup.is_later else 0
        return bool(known) and known[0] <= version <= known[-1] + later

    def answer_frame(self, frame: bytes) -> Answer | None:
        if self._state is State.OTHER_MECHANISM:
            raise Refused
        if self._state is State.TOKENS:
            return self._authenticate(frame) if self._has_headers else self._take_token(frame)
        if self._state is State.AUTHENTICATED:
            header = self._read(frame)
            if header.key == SASL_HANDSHAKE and self.setup.sasl and self.setup.reauthenticates:
                return self._shake_hands(header, frame)
            return self._serve(header, frame)
        return self._greet(frame)

    def _read(self, frame: bytes) -> Header:
        header = read_header(frame)
        if not self.knows(header.key, header.version):
            raise Refused
        return header

    def _greet(self, frame: bytes) -> Answer:
        """Handle a request before the handshake.

        With GSSAPI Kafka takes a first frame that is no request for a token of a client of version 0.9. A
        token begins with 0x60, and whatever does not ends the connection, as it does here.
        """
        header = self._read(frame)
        if self._state is State.INITIAL:
            self._state = State.VERSIONS_OR_HANDSHAKE
        if header.key == SASL_HANDSHAKE:
            return self._shake_hands(header, frame)
        if header.key != API_VERSIONS or self._state is not State.VERSIONS_OR_HANDSHAKE:
            raise Refused
        content = self._list_versions(header)
        if content.error == NO_ERROR:
            self._state = State.HANDSHAKE
        return self._versions(header, frame, content)

    def _shake_hands(self, header: Header, frame: bytes) -> Answer:
        mechanism = Reader(header.body).string()
        if mechanism is None or header.version > 1:
            raise Refused
        name = mechanism.decode(errors="replace")
        self._has_headers = header.version >= 1
        if name not in self.setup.mechanisms and not (name == "GSSAPI" and self.setup.gssapi):
            self.closed = True
            return self._opaque(header, frame, UNSUPPORTED_MECHANISM)
        if self._state is State.AUTHENTICATED and name != self._mechanism:
            self._state = State.OTHER_MECHANISM
        else:
            self._mechanism, self._rounds_left = name, TOKENS_OF_MECHANISM.get(name, 3)
            self._state = State.TOKENS
        return self._opaque(header, frame, NO_ERROR)

    def _authenticate(self, frame: bytes) -> Answer:
        header = self._read(frame)
        if header.key != SASL_AUTHENTICATE:
            self.closed = True
            if header.key == PRODUCE and read_acks(header) == 0:
                raise Refused
            if header.key == API_VERSIONS:
                form = header.version if self._knows_form(header.version) else 0
                return self._versions(header, frame, Versions(form, ILLEGAL_SASL_STATE, ()))
            return self._answer(header, frame, ILLEGAL_SASL_STATE)
        if VALID_TOKEN_PART not in header.body:
            self.closed = True
            return self._opaque(header, frame, SASL_AUTHENTICATION_FAILED)
        self._count_round()
        return self._opaque(header, frame, NO_ERROR)

    def _take_token(self, token: bytes) -> Answer:
        """Handle a token after SaslHandshake v0: the answer has no header, and the client chooses its
        bytes."""
        if VALID_TOKEN_PART not in token:
            raise Refused
        self._count_round()
        chosen = token.partition(VALID_TOKEN_PART)[2]
        content = Opaque(struct.pack(">i", len(chosen)) + chosen)
        return Answer(None, 0, 4 + len(token), 0, content, content.data)

    def _count_round(self) -> None:
        self._rounds_left -= 1
        if not self._rounds_left:
            self._state = State.AUTHENTICATED

    def _serve(self, header: Header, frame: bytes) -> Answer | None:
        """Handle a request as ``KafkaApis`` does."""
        if header.key == API_VERSIONS:
            return self._versions(header, frame, self._list_versions(header))
        if header.key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            return self._opaque(header, frame, ILLEGAL_SASL_STATE)
        if header.key == PRODUCE and read_acks(header) == 0:
            return None
        return self._answer(header, frame, NO_ERROR)

    def _knows_form(self, version: int) -> bool:
        return 0 <= version <= self.setup.newest_api_versions

    def _list_versions(self, header: Header) -> Versions:
        """Answer every version; an unknown version in the form of version 0."""
        itself = (API_VERSIONS, 0, self.setup.newest_api_versions)
        if not self._knows_form(header.version):
            return Versions(0, UNSUPPORTED_VERSION, (itself,))
        if header.version >= FIRST_FLEXIBLE_API_VERSIONS:
            reader = Reader(header.body)
            if not (reader.compact_string() and reader.compact_string()):
                return Versions(header.version, INVALID_REQUEST, ())
        return Versions(header.version, NO_ERROR, (*LISTED_RANGES, itself))

    def _answer(self, header: Header, frame: bytes, error: int) -> Answer:
        """Answer with addresses where this API's responses have them, even in an error without addresses in
        Kafka."""
        key, version = header.key, header.version
        if (key, version) not in kio_samples.CASES:
            return self._opaque(header, frame, error)
        seed = self._number % SAMPLES_PER_RESPONSE
        content = Carrying(key, version, seed)
        response = frame_response(header.correlation_id, sample_frame(key, version, seed))
        return Answer(key, version, 4 + len(frame), header.correlation_id, content, response)

    def _versions(self, header: Header, frame: bytes, content: Versions) -> Answer:
        response = frame_response(header.correlation_id, encode_versions(content))
        size = 4 + len(frame)
        return Answer(
            API_VERSIONS, header.version, size, header.correlation_id, content, response, content.error
        )

    def _opaque(self, header: Header, frame: bytes, error: int) -> Answer:
        """Return what the client has sent: members of groups, metadata of offsets, names."""
        is_known = header.version in versions_of(header.key)
        body = struct.pack(">h", error) + (header.body if is_known else REAL_ADDRESS)
        response = frame_response(header.correlation_id, body)
        size = 4 + len(frame)
        first_error = error if header.key in (SASL_HANDSHAKE, SASL_AUTHENTICATE) else None
        return Answer(
            header.key, header.version, size, header.correlation_id, Opaque(response), response, first_error
        )
