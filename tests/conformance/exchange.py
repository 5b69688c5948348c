"""Requests of every API and version through a fleet, to brokers that answer what they were told to.

The fleet is real; the brokers are scripts, for no broker of one release knows all versions. They compare each
request with what was sent, and answer with a generated response, of which the client is to get what
``messages.for_client`` makes of it.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from fleet.core.model import BrokerId, Endpoint
from fleet.proxy.wire.api_versions import APIS_WITH_BROKER_MINIMUM
from tests.conformance.messages import (
    UNKNOWN,
    Form,
    Maker,
    Reader,
    Values,
    encode,
    encode_tagged,
    for_client,
    without,
)
from tools.gen_tables import Message, offered

API_VERSIONS, METADATA, SASL_HANDSHAKE = 18, 3, 17
REBOOTSTRAP_REQUIRED = 129
LIMIT_S: Final = 60.0
CLIENT_ID: Final = b"conformance"
CLUSTER_ID: Final = "scripted"
ENDPOINTS: Final = {"Fetch": 16, "ShareFetch": 0}
"""From which version on a response keeps its length, so that addresses may be missing: see ADR 16."""
BEYOND: Final = 3
"""By how many versions the brokers are ahead of the definitions."""
UNKNOWN_KEY: Final = 999
NO_FIELDS: Final[Mapping[int, bytes]] = MappingProxyType({})


def request_form(message: Message, version: int) -> Form:
    return Form(message.name, message.request, version, version >= message.first_flexible)


def response_form(message: Message, version: int) -> Form:
    return Form(message.name, message.response, version, version >= message.first_flexible)


def listed_from(message: Message) -> int:
    """The lowest version that clients are told, of a broker that has all."""
    return message.versions.low if message.api_key in APIS_WITH_BROKER_MINIMUM else offered(message).low


def request_frame(
    message: Message,
    version: int,
    correlation_id: int,
    body: bytes,
    unknown: Mapping[int, bytes] = NO_FIELDS,
    client_id: bytes = CLIENT_ID,
) -> bytes:
    header = struct.pack(">hhih", message.api_key, version, correlation_id, len(client_id)) + client_id
    tags = encode_tagged(unknown) if version >= message.first_flexible else b""
    return struct.pack(">i", len(header + tags + body)) + header + tags + body


def response_frame(
    message: Message, version: int, correlation_id: int, body: bytes, unknown: Mapping[int, bytes] = NO_FIELDS
) -> bytes:
    # The header of an ApiVersions response is always v0. Source: KIP-511
    tagged = version >= message.first_flexible and message.api_key != API_VERSIONS
    rest = struct.pack(">i", correlation_id) + (encode_tagged(unknown) if tagged else b"") + body
    return struct.pack(">i", len(rest)) + rest


@dataclass
class Told:
    """What a broker is to get, and what it is to answer."""

    request: bytes
    response: bytes
    arrived: bytes | None = None


class Brokers:
    """Brokers that answer ApiVersions and Metadata so that a fleet comes up, and else what is in ``told``.

    From version 5 of ApiVersions on they want to be who the client expects (KIP-1242).

    Args:
        messages: every API that brokers serve.
        endpoints: where each broker listens, which is also what it says of itself.
    """

    def __init__(self, messages: Iterable[Message], endpoints: Mapping[BrokerId, Endpoint]) -> None:
        self.messages = {each.api_key: each for each in messages}
        self.endpoints = endpoints
        self.told: dict[int, Told] = {}
        """By correlation id."""
        self.others: list[tuple[int, int]] = []
        """API key and version of requests of ``CLIENT_ID`` that nobody has announced."""
        self._listening = {
            broker_id: socket.create_server((each.host, each.port)) for broker_id, each in endpoints.items()
        }
        for broker_id, each in self._listening.items():
            threading.Thread(target=self._accept, args=(broker_id, each), daemon=True).start()

    def close(self) -> None:
        for each in self._listening.values():
            each.close()

    def _accept(self, broker_id: BrokerId, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=self._serve, args=(broker_id, client), daemon=True).start()

    def _serve(self, broker_id: BrokerId, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            while True:
                frame = read_frame(client)
                key, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
                told = self.told.get(correlation_id)
                if told is not None and CLIENT_ID in frame[:40]:
                    told.arrived = frame
                    client.sendall(told.response)
                elif CLIENT_ID in frame[:40]:
                    self.others.append((key, version))
                    return
                else:
                    client.sendall(self._answer(broker_id, key, version, correlation_id, frame))

    def _answer(
        self, broker_id: BrokerId, key: int, version: int, correlation_id: int, frame: bytes
    ) -> bytes:
        """To the fleet's own questions."""
        message = self.messages[key]
        known = message.versions
        if key == API_VERSIONS and version not in known:
            version = 0
        form = response_form(message, version)
        values = nothing(form)
        if key == API_VERSIONS:
            values["ApiKeys"] = self.api_keys()
            values["ErrorCode"] = self._error_code(broker_id, version, frame)
        elif key == METADATA:
            values["Brokers"] = [
                {"NodeId": broker_id, "Host": each.host, "Port": each.port, "Rack": None}
                for broker_id, each in self.endpoints.items()
            ]
        return response_frame(message, version, correlation_id, encode(form, values))

    def _error_code(self, broker_id: BrokerId, version: int, frame: bytes) -> int:
        """Of ApiVersions, by what the client expects, which it may leave out. Source: KIP-1242"""
        form = request_form(self.messages[API_VERSIONS], version)
        if version < 5:
            return 0
        (client_id_bytes,) = struct.unpack_from(">h", frame, 12)
        header_tags = 1
        expected = Reader(frame[14 + max(0, client_id_bytes) + header_tags :]).message(form)
        right = expected["ClusterId"] in (None, CLUSTER_ID) and expected["NodeId"] in (-1, broker_id)
        return 0 if right else REBOOTSTRAP_REQUIRED

    def api_keys(self) -> list[Values]:
        """More than the definitions have: later versions, and an API that nobody knows."""
        known = [
            {"ApiKey": key, "MinVersion": each.versions.low, "MaxVersion": each.versions.high + BEYOND}
            for key, each in self.messages.items()
        ]
        return [*known, {"ApiKey": UNKNOWN_KEY, "MinVersion": 0, "MaxVersion": 2}]


def nothing(form: Form) -> Values:
    """A message with zeros, nulls and empty arrays alone."""
    values: Values = {}
    for item in form.plain:
        if item.is_array:
            values[item.name] = []
        elif item.fields:
            values[item.name] = nothing(form.of(item.fields))
        elif item.type in ("string", "bytes", "records"):
            empty = "" if item.type == "string" else b""
            values[item.name] = None if form.version in item.nullable else empty
        elif item.type == "uuid":
            values[item.name] = Reader(bytes(16)).read_field(form, item)
        else:
            values[item.name] = 0
    return values


def read_frame(sock: socket.socket) -> bytes:
    """A whole frame, from its size field on. Raises: EOFError"""
    size = _read(sock, 4)
    return size + _read(sock, int.from_bytes(size, "big"))


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


@dataclass
class Outcome:
    """What came of it.

    Args:
        tried: API keys and versions that went through, both ways.
        differences: what arrived otherwise than it should, in words.
        leaks: responses with a byte of a broker's address.
    """

    tried: set[tuple[int, int]] = field(default_factory=set)
    differences: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)


class Conformance:
    """Has requests of every API and version pass, from random messages that a seed decides.

    Args:
        brokers: behind the fleet.
        ports: by broker id, where clients of the fleet find each; None for a bootstrap port.
        advertised: what clients are to be told.
        unknown: how likely a struct, or a header, has tagged fields that nobody knows.
    """

    def __init__(
        self,
        brokers: Brokers,
        ports: Mapping[BrokerId | None, Endpoint],
        advertised: Mapping[BrokerId, Endpoint],
        seed: int,
        unknown: float = 0.0,
    ) -> None:
        self._brokers = brokers
        self._ports = ports
        self._advertised = advertised
        self._chance = random.Random(seed)
        self.maker = Maker(self._chance, brokers.endpoints, unknown)
        self._correlation_id = 0
        self._secrets = [
            secret
            for each in brokers.endpoints.values()
            for secret in (each.host.encode(), struct.pack(">i", each.port))
        ]

    def run(self, times: int, say: Callable[[str], None] = lambda _: None) -> Outcome:
        """Every API and version so many times."""
        outcome = Outcome()
        for message in self._brokers.messages.values():
            versions = offered(message)
            for version in range(versions.low, versions.high + 1):
                for number in range(times):
                    where = list(self._ports)[number % len(self._ports)]
                    self._exchange(message, version, self._ports[where], outcome)
                outcome.tried.add((message.api_key, version))
            say(f"{message.name}: versions {versions.low} to {versions.high}")
        return outcome

    def refused(self) -> Iterator[str]:
        """What is not offered, and is let through or answered all the same."""
        beyond = [
            (message.api_key, version)
            for message in self._brokers.messages.values()
            for version in (
                offered(message).high + 1,
                *range(message.versions.low, offered(message).low),
            )
            if message.api_key != API_VERSIONS
        ]
        for key, version in [*beyond, (UNKNOWN_KEY, 0), (-1, 0)]:
            with socket.create_connection(_address(self._ports[None]), LIMIT_S) as client:
                header = struct.pack(">hhih", key, version, 1, len(CLIENT_ID)) + CLIENT_ID + b"\0"
                client.sendall(struct.pack(">i", len(header)) + header)
                try:
                    read_frame(client)
                    yield f"API {key} v{version} is answered"
                except (EOFError, ConnectionResetError):
                    pass
        yield from (f"API {key} v{version} reaches a broker" for key, version in self._brokers.others)

    def _exchange(self, message: Message, version: int, at: Endpoint, outcome: Outcome) -> None:
        self._correlation_id += 1
        number = self._correlation_id
        asked = self.maker.message(request_form(message, version))
        if message.name == "Produce":
            asked["Acks"] = self._chance.choice((1, -1))  # none wants no answer
        answer = self.maker.message(response_form(message, version))
        if message.api_key == API_VERSIONS:
            answer["ApiKeys"] = self._brokers.api_keys()
        body = encode(request_form(message, version), asked)
        request = request_frame(message, version, number, body, self.maker.unknown())
        form, in_header = response_form(message, version), self.maker.unknown()
        told = Told(request, response_frame(message, version, number, encode(form, answer), in_header))
        self._brokers.told[number] = told
        what = f"{message.name} v{version}"
        try:
            with socket.create_connection(_address(at), LIMIT_S) as client:
                client.sendall(request)
                received = read_frame(client)
        except (OSError, EOFError) as error:
            outcome.differences.append(f"{what}: no answer ({error!r})")
            return
        finally:
            del self._brokers.told[number]
        if told.arrived != request:
            outcome.differences.append(f"{what}: the request arrived otherwise than it was sent")
        wanted = self._wanted(message, form, answer)
        expected = response_frame(message, version, number, encode(form, wanted), in_header)
        # Four bytes of a port are in what clients should get by chance, one run in sixteen.
        if any(received.count(secret) > expected.count(secret) for secret in self._secrets):
            outcome.leaks.append(what)
        problem = _compare(form, wanted, told.response, received, expected)
        if problem:
            outcome.differences.append(f"{what}: {problem}")

    def _wanted(self, message: Message, form: Form, answer: Values) -> Values:
        """What a client is to make of a broker's answer."""
        wanted = for_client(form, answer, self._advertised)
        if message.api_key == API_VERSIONS:
            wanted["ApiKeys"] = [
                {"ApiKey": key, "MinVersion": listed_from(each), "MaxVersion": offered(each).high}
                for key, each in self._brokers.messages.items()
            ]
        return wanted


def _compare(form: Form, wanted: Values, sent: bytes, received: bytes, expected: bytes) -> str:
    """What is wrong with a response; empty where nothing is."""
    if received == expected:
        return ""
    if form.version < ENDPOINTS.get(form.api, form.version + 1):
        return "the response is another one"
    # Its length was sent before its addresses were known: there is padding, or there are none of them.
    if len(received) != len(sent):
        return "the response has another length"
    head = len(expected) - len(encode(form, wanted))
    reader = Reader(received[head:], unknown=True)
    decoded = reader.message(form)
    reader.end()
    sent_unknown, unknown = wanted.get(UNKNOWN, {}), decoded.pop(UNKNOWN, {})
    if any(any(value) for tag, value in unknown.items() if tag not in sent_unknown):
        return "the padding is not zeros"
    kept = {tag: value for tag, value in unknown.items() if tag in sent_unknown}
    if kept:
        decoded[UNKNOWN] = kept
    if decoded == wanted:
        return ""
    if decoded.get("NodeEndpoints"):
        return "the response has other addresses"
    same = without(decoded, ["NodeEndpoints"]) == without(wanted, ["NodeEndpoints"])
    return "" if same else "the response is another one"


def _address(endpoint: Endpoint) -> tuple[str, int]:
    return endpoint.host, endpoint.port
