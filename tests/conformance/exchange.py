"""Requests of every API and version through a fleet, to brokers that send prepared responses.

The fleet is real. The brokers are scripted, because no broker of one release knows all versions. They compare
each request with what the client sent, and send a generated response. The client must receive what
``messages.for_client`` makes of the response.
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
SOCKET_TIMEOUT_S: Final = 60.0
CLIENT_ID: Final = b"conformance"
CLUSTER_ID: Final = "scripted"
ENDPOINTS: Final = {"Fetch": 16, "ShareFetch": 0}
"""From this version on a response keeps its length, so that addresses may be missing: see ADR 16."""
VERSIONS_AHEAD: Final = 3
"""The number of versions by which the brokers are ahead of the definitions."""
UNKNOWN_KEY: Final = 999
NO_FIELDS: Final[Mapping[int, bytes]] = MappingProxyType({})


def request_form(message: Message, version: int) -> Form:
    return Form(message.name, message.request, version, version >= message.first_flexible)


def response_form(message: Message, version: int) -> Form:
    return Form(message.name, message.response, version, version >= message.first_flexible)


def lowest_offered(message: Message) -> int:
    """The lowest version that the fleet offers to clients if the broker has all versions."""
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
class PreparedExchange:
    """The request that a broker must receive, and the response that it must send."""

    request: bytes
    response: bytes
    arrived: bytes | None = None


class Brokers:
    """Brokers that answer ApiVersions and Metadata so that a fleet starts, and send the responses in
    ``exchange``.

    From version 5 of ApiVersions on they check that the client expects this broker (KIP-1242).

    Args:
        messages: every API that the brokers serve.
        endpoints: the endpoint of each broker, which is also its advertised one.
    """

    def __init__(self, messages: Iterable[Message], endpoints: Mapping[BrokerId, Endpoint]) -> None:
        self.messages = {each.api_key: each for each in messages}
        self.endpoints = endpoints
        self.exchange: dict[int, PreparedExchange] = {}
        """The prepared exchanges by correlation id."""
        self.unprepared: list[tuple[int, int]] = []
        """API key and version of unprepared requests of ``CLIENT_ID``."""
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
                exchange = self.exchange.get(correlation_id)
                if exchange is not None and CLIENT_ID in frame[:40]:
                    exchange.arrived = frame
                    client.sendall(exchange.response)
                elif CLIENT_ID in frame[:40]:
                    self.unprepared.append((key, version))
                    return
                else:
                    client.sendall(self._answer(broker_id, key, version, correlation_id, frame))

    def _answer(
        self, broker_id: BrokerId, key: int, version: int, correlation_id: int, frame: bytes
    ) -> bytes:
        """Answer a request of the fleet itself."""
        message = self.messages[key]
        known = message.versions
        if key == API_VERSIONS and version not in known:
            version = 0
        form = response_form(message, version)
        values = empty_message(form)
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
        """The error code of ApiVersions; the client may omit the broker that it expects. Source: KIP-1242"""
        form = request_form(self.messages[API_VERSIONS], version)
        if version < 5:
            return 0
        (client_id_bytes,) = struct.unpack_from(">h", frame, 12)
        header_tags = 1
        expected = Reader(frame[14 + max(0, client_id_bytes) + header_tags :]).message(form)
        is_expected = expected["ClusterId"] in (None, CLUSTER_ID) and expected["NodeId"] in (-1, broker_id)
        return 0 if is_expected else REBOOTSTRAP_REQUIRED

    def api_keys(self) -> list[Values]:
        """More than the definitions have: later versions, and an unknown API."""
        known = [
            {
                "ApiKey": key,
                "MinVersion": each.versions.low,
                "MaxVersion": each.versions.high + VERSIONS_AHEAD,
            }
            for key, each in self.messages.items()
        ]
        return [*known, {"ApiKey": UNKNOWN_KEY, "MinVersion": 0, "MaxVersion": 2}]


def empty_message(form: Form) -> Values:
    """Make a message of zeros, nulls and empty arrays only."""
    values: Values = {}
    for item in form.plain:
        if item.is_array:
            values[item.name] = []
        elif item.fields:
            values[item.name] = empty_message(form.of(item.fields))
        elif item.type in ("string", "bytes", "records"):
            empty = "" if item.type == "string" else b""
            values[item.name] = None if form.version in item.nullable else empty
        elif item.type == "uuid":
            values[item.name] = Reader(bytes(16)).read_field(form, item)
        else:
            values[item.name] = 0
    return values


def read_frame(sock: socket.socket) -> bytes:
    """Read a whole frame, from its size field on. Raises: EOFError: the connection ended."""
    size = _read_exactly(sock, 4)
    return size + _read_exactly(sock, int.from_bytes(size, "big"))


def _read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


@dataclass
class Outcome:
    """The result of a comparison.

    Args:
        tried: API keys and versions that were sent.
        differences: descriptions of wrong requests and responses.
        leaks: responses with a byte of a broker's address.
    """

    tried: set[tuple[int, int]] = field(default_factory=set)
    differences: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)


class Conformance:
    """Sends random requests of every API and version, chosen by a seed.

    Args:
        brokers: the brokers behind the fleet.
        ports: the endpoint of each broker id for the fleet's clients; None for a bootstrap port.
        advertised: the endpoints that clients must receive.
        unknown: the probability that a struct, or a header, has unknown tagged fields.
        is_shared: whether all brokers have one port, so that each connection first names its broker.
    """

    def __init__(
        self,
        brokers: Brokers,
        ports: Mapping[BrokerId | None, Endpoint],
        advertised: Mapping[BrokerId, Endpoint],
        seed: int,
        unknown: float = 0.0,
        *,
        is_shared: bool = False,
    ) -> None:
        self._brokers = brokers
        self._is_shared = is_shared
        self._ports = ports
        self._advertised = advertised
        self._rng = random.Random(seed)
        self.maker = Maker(self._rng, brokers.endpoints, unknown)
        self._correlation_id = 0
        self._secrets = [
            secret
            for each in brokers.endpoints.values()
            for secret in (each.host.encode(), struct.pack(">i", each.port))
        ]

    def run(self, times: int, say: Callable[[str], None] = lambda _: None) -> Outcome:
        """Send every API and version a number of times."""
        outcome = Outcome()
        for message in self._brokers.messages.values():
            versions = offered(message)
            for version in range(versions.low, versions.high + 1):
                for number in range(times):
                    broker_id = list(self._ports)[number % len(self._ports)]
                    self._exchange(message, version, broker_id, outcome)
                outcome.tried.add((message.api_key, version))
            say(f"{message.name}: versions {versions.low} to {versions.high}")
        return outcome

    def refused(self) -> Iterator[str]:
        """Yield requests that the fleet does not offer, and yet forwards or answers."""
        unoffered = [
            (message.api_key, version)
            for message in self._brokers.messages.values()
            for version in (
                offered(message).high + 1,
                *range(message.versions.low, offered(message).low),
            )
            if message.api_key != API_VERSIONS
        ]
        for key, version in [*unoffered, (UNKNOWN_KEY, 0), (-1, 0)]:
            with socket.create_connection(_address(self._ports[None]), SOCKET_TIMEOUT_S) as client:
                header = struct.pack(">hhih", key, version, 1, len(CLIENT_ID)) + CLIENT_ID + b"\0"
                client.sendall(struct.pack(">i", len(header)) + header)
                try:
                    read_frame(client)
                    yield f"API {key} v{version}: the fleet answered an unoffered version"
                except (EOFError, ConnectionResetError):
                    pass
        yield from (
            f"API {key} v{version}: a broker received an unoffered version"
            for key, version in self._brokers.unprepared
        )

    def _name_broker(self, client: socket.socket, broker_id: BrokerId) -> None:
        """Send ApiVersions v5 with the id of a broker."""
        message = self._brokers.messages[API_VERSIONS]
        form = request_form(message, 5)
        values = {**empty_message(form), "ClusterId": CLUSTER_ID, "NodeId": broker_id}
        client.sendall(request_frame(message, 5, 0, encode(form, values), client_id=b"named"))
        read_frame(client)

    def _exchange(self, message: Message, version: int, broker_id: BrokerId | None, outcome: Outcome) -> None:
        self._correlation_id += 1
        number = self._correlation_id
        request_values = self.maker.message(request_form(message, version))
        if message.name == "Produce":
            request_values["Acks"] = self._rng.choice((1, -1))  # 0 has no response
        response_values = self.maker.message(response_form(message, version))
        if message.api_key == API_VERSIONS:
            response_values["ApiKeys"] = self._brokers.api_keys()
        body = encode(request_form(message, version), request_values)
        request = request_frame(message, version, number, body, self.maker.unknown())
        form, in_header = response_form(message, version), self.maker.unknown()
        exchange = PreparedExchange(
            request, response_frame(message, version, number, encode(form, response_values), in_header)
        )
        self._brokers.exchange[number] = exchange
        name = f"{message.name} v{version}"
        try:
            with socket.create_connection(_address(self._ports[broker_id]), SOCKET_TIMEOUT_S) as client:
                if self._is_shared:
                    self._name_broker(client, broker_id or min(self._advertised))
                client.sendall(request)
                received = read_frame(client)
        except (OSError, EOFError) as error:
            outcome.differences.append(f"{name}: no response ({error!r})")
            return
        finally:
            del self._brokers.exchange[number]
        if exchange.arrived != request:
            outcome.differences.append(f"{name}: the broker received a different request")
        expected_values = self._expected_values(message, form, response_values)
        expected = response_frame(message, version, number, encode(form, expected_values), in_header)
        # By chance a correct response may contain the four bytes of a port: in one run of sixteen.
        if any(received.count(secret) > expected.count(secret) for secret in self._secrets):
            outcome.leaks.append(name)
        problem = _compare(form, expected_values, exchange.response, received, expected)
        if problem:
            outcome.differences.append(f"{name}: {problem}")

    def _expected_values(self, message: Message, form: Form, response_values: Values) -> Values:
        """Make the response that a client must decode from a broker's response."""
        expected_values = for_client(form, response_values, self._advertised)
        if message.api_key == API_VERSIONS:
            expected_values["ApiKeys"] = [
                {"ApiKey": key, "MinVersion": lowest_offered(each), "MaxVersion": offered(each).high}
                for key, each in self._brokers.messages.items()
            ]
        return expected_values


def _compare(form: Form, expected_values: Values, sent: bytes, received: bytes, expected: bytes) -> str:
    """Describe the problem of a response; empty if there is none."""
    if received == expected:
        return ""
    if form.version < ENDPOINTS.get(form.api, form.version + 1):
        return "the response differs"
    # The fleet sends the length before it knows the addresses: the response has padding or lacks all
    # addresses.
    if len(received) != len(sent):
        return "the response has another length"
    head = len(expected) - len(encode(form, expected_values))
    reader = Reader(received[head:], unknown=True)
    decoded = reader.message(form)
    reader.check_end()
    sent_unknown, unknown = expected_values.get(UNKNOWN, {}), decoded.pop(UNKNOWN, {})
    if any(any(value) for tag, value in unknown.items() if tag not in sent_unknown):
        return "the padding is not zeros"
    known_tags = {tag: value for tag, value in unknown.items() if tag in sent_unknown}
    if known_tags:
        decoded[UNKNOWN] = known_tags
    if decoded == expected_values:
        return ""
    if decoded.get("NodeEndpoints"):
        return "the response has other addresses"
    is_same_otherwise = without(decoded, ["NodeEndpoints"]) == without(expected_values, ["NodeEndpoints"])
    return "" if is_same_otherwise else "the response differs"


def _address(endpoint: Endpoint) -> tuple[str, int]:
    return endpoint.host, endpoint.port
