"""Hostile brokers and the fleet in front of them."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fleet.core.errors import WireError
from fleet.core.model import BrokerId, Endpoint, IdentitySpace
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.ports import free_ports
from tests.conformance.exchange import Brokers, read_frame, response_form, response_frame
from tests.conformance.messages import Maker, encode
from tests.conftest import broker_host
from tests.fuzz import target
from tests.fuzz.target import ANSWERED_APIS, MESSAGES, REAL_HOST
from tests.hostile.attack import ConnectionTally
from tests.hostile.kinds import DEFAULT_LIMITS
from tests.property import wire_fleet

SOCKET_TIMEOUT_S: Final = 60.0
METADATA, DESCRIBE_CLUSTER = 3, 60
_HUGE_COUNT: Final = b"\xff\xff\xff\xff\x07"
_WELL_FORMED_KINDS: Final = ("broker: whole", "broker: slowly", "broker: bytewise", "broker: cut_off")
"""The kinds of answers that are well formed as far as they come."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a broker sends for a request before it ends the connection.

    Args:
        pieces: sent with a pause between each two.
        reason: as in ``kinds.Script``.
    """

    kind: str
    api: int
    pieces: list[bytes]
    reason: str | None
    pause_s: float = 0.0


class HostileBrokers(Brokers):
    """Start as brokers do, and then send the configured answers."""

    answers: dict[int, Answer]

    def __init__(self, endpoints: Mapping[BrokerId, Endpoint]) -> None:
        self.answers = {}
        """By the first request's correlation id."""
        super().__init__(target.MESSAGES.values(), endpoints)

    def _serve(self, broker_id: BrokerId, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                frame = read_frame(client)
                key, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
                if wire_fleet.CLIENT_ID not in frame[:40]:
                    client.sendall(self._answer(broker_id, key, version, correlation_id, frame))
                    continue
                answer = self.answers[correlation_id]
                for piece in answer.pieces:
                    client.sendall(piece)
                    if answer.pause_s:
                        time.sleep(answer.pause_s)
                return


class AnswerMaker:
    """Makes answers. A session of this process decides how each of them must end."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        # No identity of the fleet is used: the fleet trusts the brokers' addresses and would dial them.
        foreign_endpoints = {
            each: Endpoint(f"{REAL_HOST}-{each}.example", 30_000 + each) for each in range(4, 9)
        }
        self._maker = Maker(self._rng, foreign_endpoints)
        self._with_addresses = sorted(target.WITH_ADDRESSES)
        self._makers = (
            *(self.size_negative, self.size_small, self.oversize, self.unknown_correlation, self.unasked),
            *(self.cut_short, self.varint_endless, self.deep_arrays, self.uneven, self.cut_off),
            *(self.random_bytes, self.http, self.tls, self.slowly, self.whole, self.mutated, self.mutated),
            *(self.interleaved, self.silent, self.bytewise),
        )

    def answer(self, number: int, correlation_id: int) -> Answer:
        return self._makers[number % len(self._makers)](correlation_id)

    def size_negative(self, correlation_id: int) -> Answer:
        head = struct.pack(">ii", -self._rng.randint(1, 2**31), correlation_id)
        return self._with_expected_end(
            "broker: size_negative", self._any_api(), head + bytes(9), correlation_id
        )

    def size_small(self, correlation_id: int) -> Answer:
        head = struct.pack(">ii", self._rng.randrange(4), correlation_id)
        return self._with_expected_end("broker: size_small", self._any_api(), head + bytes(9), correlation_id)

    def oversize(self, correlation_id: int) -> Answer:
        head = struct.pack(">ii", 2**31 - 1, correlation_id)
        return self._with_expected_end("broker: oversize", 32 << 16 | 4, head + bytes(99), correlation_id)

    def unknown_correlation(self, correlation_id: int) -> Answer:
        api, frame = self._valid(correlation_id + 1)
        return self._with_expected_end("broker: unknown_correlation", api, frame, correlation_id)

    def unasked(self, correlation_id: int) -> Answer:
        api, frame = self._valid(correlation_id)
        return self._with_expected_end("broker: unasked", api, frame + frame, correlation_id)

    def cut_short(self, correlation_id: int) -> Answer:
        """A frame whose size field matches its short length, and which ends inside a field."""
        api, frame = self._valid(correlation_id)
        cut = frame[: self._rng.randrange(8, len(frame))]
        framed = struct.pack(">i", len(cut) - 4) + cut[4:]
        return self._with_expected_end("broker: cut_short", api, framed, correlation_id)

    def varint_endless(self, correlation_id: int) -> Answer:
        api = self._rng.choice([each for each in self._with_addresses if target_is_flexible(each)])
        body = struct.pack(">i", correlation_id) + b"\xff" * 30
        framed = struct.pack(">i", len(body)) + body
        return self._with_expected_end("broker: varint_endless", api, framed, correlation_id)

    def deep_arrays(self, correlation_id: int) -> Answer:
        api = self._rng.choice([each for each in self._with_addresses if target_is_flexible(each)])
        body = struct.pack(">i", correlation_id) + b"\0" + bytes(4) + _HUGE_COUNT * 40
        framed = struct.pack(">i", len(body)) + body
        return self._with_expected_end("broker: deep_arrays", api, framed, correlation_id)

    def uneven(self, correlation_id: int) -> Answer:
        """Node endpoints of Produce that are longer than their field."""
        node = struct.pack(">i", 1) + b"\x0c" + REAL_HOST.encode() + struct.pack(">i", 9092) + b"\0\0"
        tags = b"\1\0" + bytes((len(node),)) + b"\2" + node
        body = struct.pack(">i", correlation_id) + b"\0\1" + bytes(4) + tags
        framed = struct.pack(">i", len(body)) + body
        return self._with_expected_end("broker: uneven", 10, framed, correlation_id)

    def cut_off(self, correlation_id: int) -> Answer:
        api, frame = self._valid(correlation_id)
        cut = frame[: self._rng.randrange(1, len(frame))]
        return self._with_expected_end("broker: cut_off", api, cut, correlation_id)

    def random_bytes(self, correlation_id: int) -> Answer:
        sent = self._rng.randbytes(self._rng.randint(8, 400))
        return self._with_expected_end("broker: random_bytes", self._any_api(), sent, correlation_id)

    def http(self, correlation_id: int) -> Answer:
        return self._with_expected_end(
            "broker: http", self._any_api(), b"HTTP/1.1 400 Bad Request\r\n\r\n", correlation_id
        )

    def tls(self, correlation_id: int) -> Answer:
        """The answer of a TLS port to plaintext: an alert. Source: RFC 8446, section 6"""
        alert = b"\x15\x03\x03\x00\x02\x02" + self._rng.choice((b"\x0a", b"\x32", b"\x46"))
        return self._with_expected_end("broker: tls", self._any_api(), alert, correlation_id)

    def interleaved(self, correlation_id: int) -> Answer:
        api, frame = self._valid(correlation_id)
        _, inner = self._valid(correlation_id)
        position = self._rng.randrange(8, len(frame) + 1)
        return self._with_expected_end(
            "broker: interleaved", api, frame[:position] + inner + frame[position:], correlation_id
        )

    def silent(self, correlation_id: int) -> Answer:
        """The broker sends nothing for a while, and ends the connection."""
        return Answer("broker: silent", self._any_api(), [b"", b""], reason=None, pause_s=0.02)

    def bytewise(self, correlation_id: int) -> Answer:
        api, frame = self._valid(correlation_id)
        pieces = [bytes((each,)) for each in frame[:200]] + [frame[200:]]
        return Answer("broker: bytewise", api, pieces, reason=None, pause_s=0.0002)

    def slowly(self, correlation_id: int) -> Answer:
        api, frame = self._valid(correlation_id)
        pieces = wire_fleet.pieces(frame, range(0, len(frame), 1 + len(frame) // 30))
        return Answer("broker: slowly", api, pieces, reason=None, pause_s=0.002)

    def whole(self, correlation_id: int) -> Answer:
        api, frame = self._valid(correlation_id)
        return self._with_expected_end("broker: whole", api, frame, correlation_id)

    def mutated(self, correlation_id: int) -> Answer:
        api, frame = self._valid(correlation_id)
        while api >> 16 in (METADATA, DESCRIBE_CLUSTER):  # a mutation might move broker 1 elsewhere
            api, frame = self._valid(correlation_id)
        mutable = bytearray(frame)
        for _ in range(self._rng.randint(1, 4)):
            mutable[self._rng.randrange(len(mutable))] = self._rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        return self._with_expected_end("broker: mutated", api, bytes(mutable), correlation_id)

    def _any_api(self) -> int:
        return self._rng.choice(ANSWERED_APIS[:-1])

    def _valid(self, correlation_id: int) -> tuple[int, bytes]:
        api = self._rng.choice(self._with_addresses if self._rng.random() < 0.7 else ANSWERED_APIS[:-1])
        message, version = MESSAGES[api >> 16], api & 0xFFFF
        form = response_form(message, version)
        return api, response_frame(message, version, correlation_id, encode(form, self._maker.message(form)))

    def _with_expected_end(self, kind: str, api: int, sent: bytes, correlation_id: int) -> Answer:
        play = target.new_play(DEFAULT_LIMITS)
        play.client(target.make_request(api, correlation_id))
        reason = None
        try:
            play.broker(sent)
        except WireError as error:
            reason = error.reason
        else:
            if play.broker_rest or play.session.in_response:
                reason = "truncated"  # the broker ends the connection at this point
        return Answer(kind, api, [sent], reason)


def target_is_flexible(api: int) -> bool:
    return (api & 0xFFFF) >= MESSAGES[api >> 16].first_flexible


@dataclass
class HostileBrokerFleet:
    """Hostile brokers, a fleet of one member in front of them, and a client that must not be disturbed.

    Args: answered: number of answers to the undisturbed client.
    """

    brokers: HostileBrokers
    fleet: LocalFleet
    ports: list[Endpoint]
    tally: ConnectionTally = field(default_factory=ConnectionTally)
    answered: int = 0

    def run(self, numbers: range, seed: int) -> None:
        """Send a request for each number, each on its own connection, and let a hostile broker answer."""
        kinds = AnswerMaker(seed)
        rng = random.Random(seed)
        with socket.create_connection(_address(self.ports[0]), SOCKET_TIMEOUT_S) as undisturbed_client:
            for number in numbers:
                correlation_id = number + 1_000
                answer = kinds.answer(number, correlation_id)
                self.brokers.answers[correlation_id] = answer
                endpoint = rng.choice(self.ports)
                self._send_request(answer, correlation_id, endpoint)
                if number % 20 == 0:
                    self._check_undisturbed_client(undisturbed_client, number)
                del self.brokers.answers[correlation_id]

    def _send_request(self, answer: Answer, correlation_id: int, endpoint: Endpoint) -> None:
        tally = self.tally
        tally.kinds[answer.kind] += 1
        if answer.reason is not None:
            tally.expected[answer.reason] += 1
        received = b""
        try:
            with socket.create_connection(_address(endpoint), SOCKET_TIMEOUT_S) as client:
                client.sendall(target.make_request(answer.api, correlation_id))
                with suppress(ConnectionResetError):
                    while more := client.recv(1 << 16):
                        received += more
        except OSError as error:
            tally.problems.append(f"{answer.kind}: {error!r}")
        if answer.kind in _WELL_FORMED_KINDS and (
            REAL_HOST.encode() in received
            and answer.api in target.WITH_ADDRESSES
            and MESSAGES[answer.api >> 16].name != "DescribeConfigs"
        ):
            tally.problems.append(f"{answer.kind}: a real address in the response to {answer.api:x}")

    def _check_undisturbed_client(self, undisturbed_client: socket.socket, number: int) -> None:
        """Check that another client's connection still works."""
        frame = wire_fleet.request(METADATA, 1, number, bytes(4), client_id=b"other")
        undisturbed_client.sendall(frame)
        response = read_frame(undisturbed_client)
        if response[4:8] != struct.pack(">i", number):
            self.tally.problems.append(f"another client received {response[:20]!r}")
        self.answered += 1


@contextmanager
def hostile_broker_fleet(folder: Path) -> Iterator[HostileBrokerFleet]:
    """Run hostile brokers and a fleet for the duration of the context."""
    hosts = {broker_id: broker_host(broker_id) for broker_id in (1, 2, 3)}
    endpoints = {each: Endpoint(host, free_ports(1, (host,))[0]) for each, host in hosts.items()}
    brokers = HostileBrokers(endpoints)
    space = IdentitySpace(first_id=1, count=len(endpoints))
    with LocalFleet(folder, list(endpoints.values()), 1, identities=space) as fleet:
        fleet.await_settled(frozenset(endpoints))
        member = fleet.settings.member("p1").to_member(fleet.settings)
        identities = (member.endpoint("external", each) for each in endpoints)
        ports = [fleet.bootstrap_endpoint("p1"), *(each for each in identities if each is not None)]
        yield HostileBrokerFleet(brokers, fleet, ports)
    fleet.remove_data()
    brokers.close()


def _address(endpoint: Endpoint) -> tuple[str, int]:
    return endpoint.host, endpoint.port
