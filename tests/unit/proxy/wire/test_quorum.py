"""DescribeQuorum v2: clients get the broker's response without the addresses of controllers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pytest

from fleet.core.errors import MalformedFrame, TruncatedFrame
from fleet.proxy.rewriter import AT_ONCE_BYTES
from fleet.proxy.wire.primitives import compact_string, encode_varint
from tests.property.wire_fleet import Play, pieces, small_slices

DESCRIBE_QUORUM: Final = 55
CORRELATION_ID: Final = 7
NO_TAGS: Final = b"\0"
UNKNOWN_TAGS: Final = b"\x02\x05\x03new\x63\0"
"""Two fields of a later Kafka version."""


@dataclass(frozen=True)
class Listener:
    """A controller's listener; None is a null host, which no Kafka sends."""

    name: str
    host: str | None
    port: int


@dataclass(frozen=True)
class Quorum:
    """A broker's response: nodes 1 to N with their listeners.

    Args: tags: the encoded tagged fields of each struct.
    """

    nodes: Sequence[Sequence[Listener]] = ()
    voters: int = 3
    observers: int = 2
    message: str | None = None
    tags: bytes = NO_TAGS

    def frame(self, *, blanked: bool = False) -> bytes:
        """Encode the response from its size field on, as a broker sends it or as a client should get it."""
        body = struct.pack(">i", CORRELATION_ID) + self.tags
        body += struct.pack(">h", 0) + nullable(self.message)
        body += array([] if self.message else [self._topic()])
        body += array([self._node(number, each, blanked) for number, each in enumerate(self.nodes, 1)])
        body += self.tags
        return struct.pack(">i", len(body)) + body

    def _topic(self) -> bytes:
        partition = struct.pack(">ih", 0, 0) + nullable(None) + struct.pack(">iiq", 1, 5, 4_000_000_000)
        voters = [self._replica(number) for number in range(1, self.voters + 1)]
        observers = [self._replica(number) for number in range(100, self.observers + 100)]
        partition += array(voters) + array(observers) + self.tags
        return compact_string("__cluster_metadata") + array([partition]) + self.tags

    def _replica(self, number: int) -> bytes:
        """Id, directory id, end of the log, and two timestamps."""
        directory_id = UUID(int=number << 100 | number).bytes
        return struct.pack(">i16sqqq", number, directory_id, 9_000, 1_800_000_000_000, -1) + self.tags

    def _node(self, number: int, listeners: Sequence[Listener], blanked: bool) -> bytes:
        there = [
            compact_string(each.name)
            + (b"\1\0\0" if blanked else nullable(each.host) + struct.pack(">H", each.port))
            + self.tags
            for each in listeners
        ]
        return struct.pack(">i", number) + array(there) + self.tags


def nullable(text: str | None) -> bytes:
    return b"\0" if text is None else compact_string(text)


def array(items: Sequence[bytes]) -> bytes:
    return encode_varint(len(items) + 1) + b"".join(items)


def at(host: str | None, port: int = 9093, name: str = "CONTROLLER") -> Listener:
    return Listener(name, host, port)


THREE: Final = Quorum([[at("127.77.1.1")], [at("127.77.2.2", 19093)], [at("kafka-3.example.org", 65534)]])
QUORUMS: Final = {
    "three voters": THREE,
    "one voter": Quorum([[at("localhost")]], voters=1, observers=0),
    "many observers": Quorum([[at("10.0.0.1")]], voters=1, observers=200),
    "several listeners": Quorum([[at("a"), at("::1", 1, "TLS"), at("c", 2, "X")], [at("d")]]),
    "texts beyond ASCII": Quorum([[at("kontröller.example", name="STEUERUNG_Ä")], [at("控制器", 1, "控")]]),
    "long hosts": Quorum([[at("h" * size)] for size in (125, 126, 127, 128, 300, 20_000)]),
    "long names": Quorum([[at("host", name="N" * size)] for size in (126, 127, 300)]),
    "130 nodes": Quorum([[at(f"10.0.0.{number}")] for number in range(130)], voters=130),
    "no listeners": Quorum([[], [at("b")], []]),
    "no nodes": Quorum(),
    "an error": Quorum(message="The broker is at work."),
    "unknown tags": Quorum(THREE.nodes, tags=UNKNOWN_TAGS),
    "a null host": Quorum([[at(None, 1), at("b", name="B")]]),
    "blank already": Quorum([[at("", 0)], [at("", 1)], [at("b", 0)]]),
}
SPLIT: Final = ("several listeners", "texts beyond ASCII", "no listeners", "no nodes", "unknown tags")
"""Short responses of every form."""


def received(raw: bytes, cuts: Sequence[int] = (), version: int = 2) -> bytes:
    """Return the client's bytes of a response that arrives in pieces."""
    play = Play.new()
    play.ask((DESCRIBE_QUORUM, version, CORRELATION_ID))
    for piece in pieces(raw, cuts):
        play.broker(piece)
    assert play.session.in_flight == 0
    return bytes(play.to_client)


@pytest.mark.parametrize("quorum", QUORUMS.values(), ids=QUORUMS)
def test_only_hosts_and_ports_are_blanked(quorum: Quorum) -> None:
    assert received(quorum.frame()) == quorum.frame(blanked=True)


def test_no_part_of_an_address_remains() -> None:
    """The identity of controllers passes: ids, directory ids, names of listeners."""
    found = received(THREE.frame())
    for (listener,) in THREE.nodes:
        assert listener.host is not None
        assert listener.host.encode() not in found
        assert struct.pack(">H", listener.port) not in found
    assert found.count(b"CONTROLLER") == 3
    for number in (1, 2, 3, 100, 101):
        assert UUID(int=number << 100 | number).bytes in found


@pytest.mark.parametrize("quorum", [QUORUMS[name] for name in SPLIT], ids=SPLIT)
def test_every_split_gives_the_same_result(quorum: Quorum) -> None:
    raw, expected = quorum.frame(), quorum.frame(blanked=True)
    for cut in range(1, len(raw)):
        assert received(raw, [cut]) == expected
    assert received(raw, range(len(raw))) == expected


@pytest.mark.parametrize("quorum", QUORUMS.values(), ids=QUORUMS)
def test_slices_give_the_same_result(quorum: Quorum) -> None:
    raw, expected = quorum.frame(), quorum.frame(blanked=True)
    for slice_bytes in (1, 7, 100):
        with small_slices(slice_bytes):
            assert received(raw) == expected
            assert received(raw, range(0, len(raw), 50)) == expected


def test_long_response_is_patched_in_slices() -> None:
    """The client controls the length, because it may request the same partition many times."""
    long = Quorum([[at(f"controller-{number}.example")] for number in range(3_000)], voters=1_000)
    raw = long.frame()
    assert len(raw) > AT_ONCE_BYTES
    play = Play.new()
    play.ask((DESCRIBE_QUORUM, 2, CORRELATION_ID))
    written: list[bytes | memoryview] = []
    play.session.receive_from_broker(raw, written.append)
    turns = 0
    while play.session.is_working:
        play.session.work(written.append)
        turns += 1
    assert b"".join(written) == long.frame(blanked=True)
    assert turns > len(raw) // AT_ONCE_BYTES


@pytest.mark.parametrize("in_slices", [False, True], ids=["at once", "in slices"])
@pytest.mark.parametrize("quorum", [QUORUMS[name] for name in SPLIT], ids=SPLIT)
def test_truncated_response_is_refused(quorum: Quorum, in_slices: bool) -> None:
    """The tags at the end are not read, because they have no address."""
    raw = quorum.frame()
    for cut in range(8, len(raw) - len(quorum.tags)):
        short = struct.pack(">i", cut - 4) + raw[4:cut]
        play = Play.new()
        play.ask((DESCRIBE_QUORUM, 2, CORRELATION_ID))
        with small_slices(5, 0 if in_slices else AT_ONCE_BYTES), pytest.raises(TruncatedFrame):
            play.broker(short)
        assert not play.to_client


def test_invalid_lengths_are_refused() -> None:
    host = compact_string("127.77.1.1")
    raw = THREE.frame()
    endless = raw.replace(host, b"\xff" * 6 + host[6:])
    assert len(endless) == len(raw)
    with pytest.raises(MalformedFrame):
        received(endless)
    with pytest.raises(TruncatedFrame):
        received(raw.replace(host, b"\x7f" + host[1:]))


def test_only_rewritten_responses_are_counted() -> None:
    play = Play.new()
    for quorum, counted in ((QUORUMS["no nodes"], 0), (THREE, 1), (QUORUMS["an error"], 1), (THREE, 2)):
        play.ask((DESCRIBE_QUORUM, 2, CORRELATION_ID))
        play.broker(quorum.frame())
        assert play.counters.rewritten[DESCRIBE_QUORUM] == counted
    assert not play.seen, "no controller is taken for a broker"


@pytest.mark.parametrize("version", [0, 1])
def test_earlier_versions_pass_unchanged(version: int) -> None:
    """Earlier versions have no nodes; their bytes are not read."""
    assert received(THREE.frame(), version=version) == THREE.frame()
