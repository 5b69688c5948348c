"""A small fleet and its sessions, and the bytes that clients must get, computed in the naive way."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from unittest.mock import patch

from fleet.core.directory import pick
from fleet.core.model import AdvertisedListener, Broker, Directory, IdentitySpace, Member
from fleet.proxy import rewriter
from fleet.proxy.addresses import AddressSource
from fleet.proxy.session import Session
from fleet.proxy.wire import _tables
from fleet.proxy.wire.counters import WireCounters

CLIENT_HOST = "192.0.2.7"
CLIENT_ID = b"tester"
CLIENT_KEY = CLIENT_HOST.encode() + b"\0" + CLIENT_ID
BLANKED = {"listeners", "advertised.listeners", "controller.quorum.voters"}


@dataclass(frozen=True)
class Limits:
    max_request_bytes: int = 1 << 20
    max_patched_response_bytes: int = 1 << 22


def member(proxy_id: str, host: str) -> Member:
    identities = IdentitySpace(first_id=0, count=17)
    listeners = (
        AdvertisedListener("internal", f"inside.{host}", 29092, 29100),
        AdvertisedListener("external", host, 9092, 9100),
    )
    return Member(proxy_id, listeners=listeners, identities=identities)


MEMBERS = {
    "p1": member("p1", "proxy-1.example"),
    "p2": member("p2", "a-proxy-with-a-name-that-is-longer-than-the-varint-of-one-byte." + "x" * 120),
    "p3": member("p3", "é"),
}
ADVERTISED = {0: ("p2",), 1: ("p1",), 2: ("p2",), 3: ("p3",), 4: ("p1", "p2", "p3"), 9: ("p3", "p1")}
DIRECTORY = Directory(
    generation=1,
    revision=1,
    advertised=ADVERTISED,
    members=MEMBERS,
    brokers={1: Broker(1, "127.77.0.1", 19092), 2: Broker(2, "kafka-1.example.org", 1)},
)


def advertised(broker_id: int, host: str = "", port: int = 0) -> tuple[str, int]:
    """The endpoint to advertise to a client: the naive twin of AddressBook.lookup."""
    owners = ADVERTISED.get(broker_id, ("p1",))
    owner = MEMBERS[owners[0] if len(owners) == 1 else pick(owners, CLIENT_KEY)]
    listener = owner.listeners[1]
    return listener.host, listener.first_port + broker_id if 0 <= broker_id < 17 else 0


def blanks(name: str) -> bool:
    return name in BLANKED


def request(
    key: int, version: int, correlation_id: int, body: bytes = b"", client_id: bytes | None = CLIENT_ID
) -> bytes:
    """Make a request as a client sends it. Most tests need only the header."""
    name = struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id
    rest = struct.pack(">hhi", key, version, correlation_id) + name + body
    return struct.pack(">i", len(rest)) + rest


def produce(
    version: int, correlation_id: int, acks: int, records: bytes = b"", transactional_id: str | None = None
) -> bytes:
    """Make a Produce request whose topics are arbitrary bytes."""
    if version >= 9:
        text = (
            b"\0"
            if transactional_id is None
            else bytes([len(transactional_id) + 1]) + transactional_id.encode()
        )
        head = b"\0" + text
    elif transactional_id is None:
        head = struct.pack(">h", -1)
    else:
        head = struct.pack(">h", len(transactional_id)) + transactional_id.encode()
    return request(0, version, correlation_id, head + struct.pack(">hi", acks, 30_000) + records)


@dataclass
class Play:
    """One session, driven as its shell does it, and its output."""

    session: Session
    source: AddressSource
    counters: WireCounters
    seen: list[Broker]
    to_broker: bytearray = field(default_factory=bytearray)
    to_client: bytearray = field(default_factory=bytearray)
    client_rest: bytes = b""
    broker_rest: bytes = b""
    most_kept_bytes: int = 0
    reads_per_sample: int = 0
    reads: int = 0
    timed: list[tuple[int, int, int, float]] = field(default_factory=list)
    """Observed answers: API key, bytes of the request and of the answer, seconds."""

    @classmethod
    def new(cls, directory: Directory = DIRECTORY, limits: Limits | None = None) -> Play:
        counters = WireCounters()
        seen: list[Broker] = []
        source = AddressSource(directory, "external", "p1", seen.append, counters)
        timed: list[tuple[int, int, int, float]] = []
        session = Session(
            source,
            limits or Limits(),
            counters,
            CLIENT_HOST,
            clock=count(0.0, 0.25).__next__,
            observe_answer=lambda *answer: timed.append(answer),
        )
        return cls(session, source, counters, seen, reads_per_sample=2, timed=timed)

    def client(self, data: bytes) -> None:
        """Send bytes as the client."""
        data = self.client_rest + data
        self.reads += 1
        sampled = self.reads_per_sample and self.reads % self.reads_per_sample == 0
        receive = self.session.receive_sampled if sampled else self.session.receive_from_client
        consumed, begin = receive(data), 0
        if self.session.local_replies:
            self.to_client += b"".join(self.session.local_replies)
            self.session.local_replies.clear()
            begin = self.session.discard_bytes
        self.to_broker += data[begin:consumed]
        self.client_rest = data[consumed:]
        self.most_kept_bytes = max(self.most_kept_bytes, len(self.client_rest))

    def broker(self, data: bytes) -> None:
        """Send bytes as the broker."""
        data = self.broker_rest + data
        written: list[bytes | memoryview] = []
        session = self.session
        try:
            data = data[session.receive_from_broker(data, written.append) :]
            while session.is_working:
                while session.is_working:
                    session.work(written.append)
                data = data[session.receive_from_broker(data, written.append) :]
        finally:  # bytes that were written before an error have been sent, too
            self.to_client += b"".join(written)
        if session.is_holding and not session.held_bytes:
            session.is_holding = False
        assert session.is_holding == bool(session.held_bytes)
        self.broker_rest = data
        assert len(self.broker_rest) < 8

    def ask(self, *requests: tuple[int, int, int]) -> None:
        """Send requests that consist of headers only: API key, version, correlation id."""
        for key, version, correlation_id in requests:
            self.client(
                produce(version, correlation_id, 1) if key == 0 else request(key, version, correlation_id)
            )


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """Split ``data`` at these positions."""
    marks = [0, *sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    return [data[low:high] for low, high in pairwise(marks)]


@contextmanager
def small_slices(slice_bytes: int, at_once_bytes: int = 0) -> Iterator[None]:
    """Patch held responses in slices of this size, if they are longer than the second size."""
    with (
        patch.object(_tables, "SLICE_BYTES", slice_bytes),
        patch.object(rewriter, "AT_ONCE_BYTES", at_once_bytes),
    ):
        yield
