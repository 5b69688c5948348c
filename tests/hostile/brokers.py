"""Brokers that answer as no broker should, and the fleet in front of them."""

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
from tests.fuzz.target import ASKED, MESSAGES, REAL_HOST
from tests.hostile.attack import Told
from tests.hostile.kinds import DEFAULTS
from tests.property import wire_fleet

LIMIT_S: Final = 60.0
METADATA, DESCRIBE_CLUSTER = 3, 60
_MANY: Final = b"\xff\xff\xff\xff\x07"
_PLAIN: Final = ("broker: whole", "broker: slowly", "broker: bytewise", "broker: cut_off")
"""What is well formed, as far as it goes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a broker sends for a request, before it ends the connection.

    Args:
        pieces: with a pause between each two.
        reason: as of ``kinds.Script``.
    """

    kind: str
    api: int
    pieces: list[bytes]
    reason: str | None
    pause_s: float = 0.0


class HostileBrokers(Brokers):
    """Come up as brokers do, and then answer what they are told to."""

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


class BrokerKinds:
    """Makes answers; each is judged by a session of this process."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        # Of no identity that the fleet serves: it believes brokers where they are, and goes there.
        strangers = {each: Endpoint(f"{REAL_HOST}-{each}.example", 30_000 + each) for each in range(4, 9)}
        self._maker = Maker(self._chance, strangers)
        self._with_addresses = sorted(target.WITH_ADDRESSES)
        self._kinds = (
            *(self.size_negative, self.size_small, self.oversize, self.unknown_correlation, self.unasked),
            *(self.cut_short, self.varint_endless, self.deep_arrays, self.uneven, self.cut_off),
            *(self.random_bytes, self.http, self.tls, self.slowly, self.whole, self.mutated, self.mutated),
            *(self.interleaved, self.silent, self.bytewise),
        )

    def answer(self, number: int, correlation_id: int) -> Answer:
        return self._kinds[number % len(self._kinds)](correlation_id)

    def size_negative(self, correlation_id: int) -> Answer:
        head = struct.pack(">ii", -self._chance.randint(1, 2**31), correlation_id)
        return self._judged("broker: size_negative", self._any(), head + bytes(9), correlation_id)

    def size_small(self, correlation_id: int) -> Answer:
        head = struct.pack(">ii", self._chance.randrange(4), correlation_id)
        return self._judged("broker: size_small", self._any(), head + bytes(9), correlation_id)

    def oversize(self, correlation_id: int) -> Answer:
        head = struct.pack(">ii", 2**31 - 1, correlation_id)
        return self._judged("broker: oversize", 32 << 16 | 4, head + bytes(99), correlation_id)

    def unknown_correlation(self, correlation_id: int) -> Answer:
        api, frame = self._valid(correlation_id + 1)
        return self._judged("broker: unknown_correlation", api, frame, correlation_id)

    def unasked(self, correlation_id: int) -> Answer:
        api, frame = self._valid(correlation_id)
        return self._judged("broker: unasked", api, frame + frame, correlation_id)

    def cut_short(self, correlation_id: int) -> Answer:
        """A frame that says of itself how short it is, and ends inside a field."""
        api, frame = self._valid(correlation_id)
        cut = frame[: self._chance.randrange(8, len(frame))]
        framed = struct.pack(">i", len(cut) - 4) + cut[4:]
        return self._judged("broker: cut_short", api, framed, correlation_id)

    def varint_endless(self, correlation_id: int) -> Answer:
        api = self._chance.choice([each for each in self._with_addresses if target_is_flexible(each)])
        body = struct.pack(">i", correlation_id) + b"\xff" * 30
        framed = struct.pack(">i", len(body)) + body
        return self._judged("broker: varint_endless", api, framed, correlation_id)

    def deep_arrays(self, correlation_id: int) -> Answer:
        api = self._chance.choice([each for each in self._with_addresses if target_is_flexible(each)])
        body = struct.pack(">i", correlation_id) + b"\0" + bytes(4) + _MANY * 40
        framed = struct.pack(">i", len(body)) + body
        return self._judged("broker: deep_arrays", api, framed, correlation_id)

    def uneven(self, correlation_id: int) -> Answer:
        """Node endpoints of Produce that are longer than their field."""
        node = struct.pack(">i", 1) + b"\x0c" + REAL_HOST.encode() + struct.pack(">i", 9092) + b"\0\0"
        tags = b"\1\0" + bytes((len(node),)) + b"\2" + node
        body = struct.pack(">i", correlation_id) + b"\0\1" + bytes(4) + tags
        framed = struct.pack(">i", len(body)) + body
        return self._judged("broker: uneven", 10, framed, correlation_id)

    def cut_off(self, correlation_id: int) -> Answer:
        api, frame = self._valid(correlation_id)
        cut = frame[: self._chance.randrange(1, len(frame))]
        return self._judged("broker: cut_off", api, cut, correlation_id)

    def random_bytes(self, correlation_id: int) -> Answer:
        sent = self._chance.randbytes(self._chance.randint(8, 400))
        return self._judged("broker: random_bytes", self._any(), sent, correlation_id)

    def http(self, correlation_id: int) -> Answer:
        return self._judged("broker: http", self._any(), b"HTTP/1.1 400 Bad Request\r\n\r\n", correlation_id)

    def tls(self, correlation_id: int) -> Answer:
        """What a TLS port says to plaintext: an alert. Source: RFC 8446, section 6"""
        alert = b"\x15\x03\x03\x00\x02\x02" + self._chance.choice((b"\x0a", b"\x32", b"\x46"))
        return self._judged("broker: tls", self._any(), alert, correlation_id)

    def interleaved(self, correlation_id: int) -> Answer:
        api, frame = self._valid(correlation_id)
        _, inner = self._valid(correlation_id)
        at = self._chance.randrange(8, len(frame) + 1)
        return self._judged("broker: interleaved", api, frame[:at] + inner + frame[at:], correlation_id)

    def silent(self, correlation_id: int) -> Answer:
        """It says nothing for a while, and ends the connection."""
        return Answer("broker: silent", self._any(), [b"", b""], reason=None, pause_s=0.02)

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
        return self._judged("broker: whole", api, frame, correlation_id)

    def mutated(self, correlation_id: int) -> Answer:
        api, frame = self._valid(correlation_id)
        while api >> 16 in (METADATA, DESCRIBE_CLUSTER):  # which may say then that broker 1 is elsewhere
            api, frame = self._valid(correlation_id)
        mutable = bytearray(frame)
        for _ in range(self._chance.randint(1, 4)):
            mutable[self._chance.randrange(len(mutable))] = self._chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        return self._judged("broker: mutated", api, bytes(mutable), correlation_id)

    def _any(self) -> int:
        return self._chance.choice(ASKED[:-1])

    def _valid(self, correlation_id: int) -> tuple[int, bytes]:
        api = self._chance.choice(self._with_addresses if self._chance.random() < 0.7 else ASKED[:-1])
        message, version = MESSAGES[api >> 16], api & 0xFFFF
        form = response_form(message, version)
        return api, response_frame(message, version, correlation_id, encode(form, self._maker.message(form)))

    def _judged(self, kind: str, api: int, sent: bytes, correlation_id: int) -> Answer:
        play = target.new_play(DEFAULTS)
        play.client(target.asking(api, correlation_id))
        reason = None
        try:
            play.broker(sent)
        except WireError as error:
            reason = error.reason
        else:
            if play.broker_rest or play.session.in_response:
                reason = "truncated"  # for the broker ends it then
        return Answer(kind, api, [sent], reason)


def target_is_flexible(api: int) -> bool:
    return (api & 0xFFFF) >= MESSAGES[api >> 16].first_flexible


@dataclass
class HostileGround:
    """Hostile brokers, a fleet of one member in front of them, and a client that is not to notice.

    Args: unanswered: how often another client was not answered.
    """

    brokers: HostileBrokers
    fleet: LocalFleet
    ports: list[Endpoint]
    told: Told = field(default_factory=Told)
    answered: int = 0

    def run(self, numbers: range, seed: int) -> None:
        """Ask so many questions that are answered by hostile brokers, each on a connection of its own."""
        kinds = BrokerKinds(seed)
        chance = random.Random(seed)
        with socket.create_connection(_address(self.ports[0]), LIMIT_S) as other:
            for number in numbers:
                correlation_id = number + 1_000
                answer = kinds.answer(number, correlation_id)
                self.brokers.answers[correlation_id] = answer
                at = chance.choice(self.ports)
                self._ask(answer, correlation_id, at)
                if number % 20 == 0:
                    self._be_served(other, number)
                del self.brokers.answers[correlation_id]

    def _ask(self, answer: Answer, correlation_id: int, at: Endpoint) -> None:
        told = self.told
        told.kinds[answer.kind] += 1
        if answer.reason is not None:
            told.expected[answer.reason] += 1
        received = b""
        try:
            with socket.create_connection(_address(at), LIMIT_S) as client:
                client.sendall(target.asking(answer.api, correlation_id))
                with suppress(ConnectionResetError):
                    while more := client.recv(1 << 16):
                        received += more
        except OSError as error:
            told.problems.append(f"{answer.kind}: {error!r}")
        if answer.kind in _PLAIN and (
            REAL_HOST.encode() in received
            and answer.api in target.WITH_ADDRESSES
            and MESSAGES[answer.api >> 16].name != "DescribeConfigs"
        ):
            told.problems.append(f"{answer.kind}: a real address in the answer to {answer.api:x}")

    def _be_served(self, other: socket.socket, number: int) -> None:
        """Another client's connection goes on."""
        frame = wire_fleet.request(METADATA, 1, number, bytes(4), client_id=b"other")
        other.sendall(frame)
        response = read_frame(other)
        if response[4:8] != struct.pack(">i", number):
            self.told.problems.append(f"another client was answered {response[:20]!r}")
        self.answered += 1


@contextmanager
def hostile_ground(folder: Path) -> Iterator[HostileGround]:
    """All of it, for as long as the context lasts."""
    hosts = {broker_id: broker_host(broker_id) for broker_id in (1, 2, 3)}
    endpoints = {each: Endpoint(host, free_ports(1, (host,))[0]) for each, host in hosts.items()}
    brokers = HostileBrokers(endpoints)
    space = IdentitySpace(first_id=1, count=len(endpoints))
    with LocalFleet(folder, list(endpoints.values()), 1, identities=space) as fleet:
        fleet.await_settled(frozenset(endpoints))
        member = fleet.settings.member("p1").to_member(fleet.settings)
        identities = (member.endpoint("external", each) for each in endpoints)
        ports = [fleet.bootstrap_endpoint("p1"), *(each for each in identities if each is not None)]
        yield HostileGround(brokers, fleet, ports)
    fleet.remove_data()
    brokers.close()


def _address(endpoint: Endpoint) -> tuple[str, int]:
    return endpoint.host, endpoint.port
