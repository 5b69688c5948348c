"""What bytes of strangers cost a worker: opcodes for each read and each byte, and memory for each byte.

    opcodes of k reads of n bytes         at most `Allowance.per_read` * k + `per_byte` * n + `OF_END`
    opcodes of a turn of the event loop   at most `PER_TURN`
    opcodes of 2 n bytes                  at most `MOST_GROWTH` times those of n bytes
    memory that k reads of n bytes hold   at most `HELD_BYTES` + `HELD_PER_READ` * k + `HELD_PER_BYTE` * n
                                          and at most `MOST_HELD_BYTES`
    memory that a connection has left     at most `LEFT_BYTES`

Opcodes are those of Python: what OpenSSL does is not counted, nor the memory that it has.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from fleet.core.errors import Peer
from fleet.proxy.tls_transport import RECORD_BYTES
from fleet.proxy.wire.primitives import encode_varint
from tests.fuzz.stand import (
    LIST_GROUPS,
    METADATA,
    OF_BROKER,
    OF_CLIENT,
    OF_TLS,
    READ_BYTES,
    Mode,
    Scene,
    Spent,
    Stand,
)
from tests.fuzz.stand import States as S
from tests.fuzz.target import (
    API_VERSIONS,
    BOTH,
    CLIENT,
    FRAMED,
    UNKNOWN_VERSION,
    asked,
    asking,
    chunks,
)
from tests.integration.in_process.proxy.test_worker import response
from tests.property.wire_fleet import produce, request
from tests.unit.proxy.test_held_responses import (
    DESCRIBE_CONFIGS,
    FIND_COORDINATOR,
    compact,
    configs,
    copies_for,
)

FETCH: Final = 1
KEY_UPDATE_BYTES: Final = 27
"""Of a record with one. Source: RFC 8446, sections 4.6.3 and 5.2"""
CUTS: Final = (1, 2, 7, 1448, READ_BYTES)
"""How many bytes a read brings at most."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Opcodes that reads may take, with every read sampled.

    Of honest frames (`tests.fuzz.seeds`) a read of one byte takes up to 730, and each byte more up to 31.
    What the fuzzer has kept takes up to 1,060 and 90. This is twice the first of these, and three times the
    second: a head that comes in parts is looked at three times.
    """

    per_read: int = 1_500
    per_byte: int = 100


OF_END: Final = 5_000
"""Opcodes once more: of a connection that is refused, which takes up to 2,400, with the line in the log."""
ORDINARY: Final = Allowance()
TAGGED: Final = Allowance(per_read=6_000)
"""Of a header with as many tagged fields as are allowed: each read reads them again, with 2,900 opcodes."""
PER_TURN: Final = 110_000
"""Twice what a slice of coordinators takes, which have many addresses; one of configurations takes 25,000."""
MOST_GROWTH: Final = 2.5

HELD_BYTES: Final = 32 * 1024
HELD_PER_READ: Final = 1_600
"""Twice what a write takes that waits."""
HELD_PER_BYTE: Final = 9
"""Twice what requests of 14 bytes take in flight to a broker that does not read: 40 bytes, and themselves."""
MOST_HELD_BYTES: Final = 1536 * 1024
"""What one read brings of such requests, 1.1 MB, and a buffer to each side."""
LEFT_BYTES: Final = 8 * 1024
"""Two rows for control, and what the event loop forgets later: up to 4,200 bytes."""


class Excess(AssertionError):
    """Something costs more than it may."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that Python has allocated beyond those before.

    Args: held: with the connection; left: when it was lost.
    """

    held: int
    left: int


def check_opcodes(spent: Spent, allowance: Allowance = ORDINARY) -> None:
    """Raises: Excess."""
    most = allowance.per_read * spent.reads + allowance.per_byte * spent.received_bytes + OF_END
    if spent.of_reads > most:
        raise Excess(f"{spent} is above {most} opcodes")
    if spent.most_in_turn > PER_TURN:
        raise Excess(f"{spent} has a turn above {PER_TURN} opcodes")


def check_growth(once: Spent, twice: Spent) -> None:
    """Raises: Excess: the second, of twice as many bytes, took much more than twice as many opcodes."""
    if twice.opcodes > MOST_GROWTH * once.opcodes:
        raise Excess(f"{twice} is above {MOST_GROWTH} times {once}")


def check_memory(memory: Memory, spent: Spent) -> None:
    """Raises: Excess."""
    most = HELD_BYTES + HELD_PER_READ * spent.reads + HELD_PER_BYTE * spent.received_bytes
    most = min(most, MOST_HELD_BYTES)
    if memory.held > most:
        raise Excess(f"{memory.held} bytes are held of {spent}, above {most}")
    if memory.left > LEFT_BYTES:
        raise Excess(f"{memory.left} bytes are left of {spent}, above {LEFT_BYTES}")


# ---- inputs


@dataclass(frozen=True, slots=True)
class Input:
    """What is sent, and by whom.

    Args:
        asks: requests that the client has sent before.
        record_bytes: of plaintext in each record of TLS.
        key_updates: of TLS 1.3, after which each chunk comes.
    """

    chunks: tuple[tuple[Peer, bytes], ...]
    asks: bytes = b""
    record_bytes: int = RECORD_BYTES
    key_updates: int = 0

    def states(self, mode: Mode) -> tuple[S, ...]:
        """In which it may be sent."""
        if self.key_updates and mode != "TLS 1.3":
            return ()
        peers = {peer for peer, _ in self.chunks}
        states = OF_CLIENT if peers == {"client"} else OF_BROKER if peers == {"broker"} else (S.JOINED,)
        left_out = OF_TLS if mode == "plaintext" else (S.SHAKING,) if self.key_updates else ()
        return tuple(each for each in states if each not in left_out)


def parse(data: bytes) -> Input:
    """What an input of the fuzzer means; see `tests.fuzz.target`."""
    kind, flags = data[0] % 32 % 3, data[0]
    if kind == CLIENT:
        sent = data[2:]
        return Input((("client", struct.pack(">i", len(sent)) + sent if flags & FRAMED else sent),))
    if kind == BOTH:
        return Input(tuple(chunks(data[2:])))
    if len(data) < 6:
        return Input(())
    first, second = (asked(each) for each in struct.unpack_from(">HH", data, 2))
    sent = data[6:]
    if flags & FRAMED:
        sent = struct.pack(">ii", len(sent) + 4, 1) + sent
    return Input((("broker", sent),), asking(first, 1) + asking(second, 2))


@dataclass(frozen=True, slots=True)
class Flood:
    """Bytes of one kind, as many as one likes.

    Args:
        make: makes about as many bytes as it is asked for.
        asks: makes the requests that the client has sent before, for the same number.
        record_bytes: of plaintext in each record of TLS.
        few_bytes: the size whose cost, and that of twice the size, is counted in short reads.
        many_bytes: the size whose cost is counted in long reads.
        weighed_bytes: the size after which memory is looked at.
        changes_keys: whether KeyUpdates of TLS 1.3 are sent, and nothing else.
    """

    name: str
    peer: Peer
    make: Callable[[int], bytes]
    asks: Callable[[int], bytes] = lambda _: b""
    record_bytes: int = RECORD_BYTES
    few_bytes: int = 400
    many_bytes: int = 8 * 1024
    weighed_bytes: int = 2 * MOST_HELD_BYTES
    changes_keys: bool = False

    def of(self, size_bytes: int) -> Input:
        key_updates = size_bytes // KEY_UPDATE_BYTES if self.changes_keys else 0
        sent = b"" if key_updates else self.make(size_bytes)
        return Input(((self.peer, sent),), self.asks(size_bytes), self.record_bytes, key_updates)

    def states(self, mode: Mode) -> tuple[S, ...]:
        """In which it is tried."""
        tried = OF_CLIENT if self.peer == "client" else (S.JOINED, S.GOODBYE)
        return tuple(each for each in self.of(self.few_bytes).states(mode) if each in tried)

    def counted_bytes(self, read_bytes: int) -> int:
        return self.few_bytes if read_bytes < 100 else self.many_bytes


def _again(frame: bytes) -> Callable[[int], bytes]:
    return lambda size_bytes: frame * (size_bytes // len(frame))


def _asking(api_key: int, version: int) -> Callable[[int], bytes]:
    return lambda _: request(api_key, version, 1)


def _array(head: bytes, entry: bytes, tail: bytes) -> Callable[[int], bytes]:
    """A response that is an array of the same entries, and a little around it."""

    def make(size_bytes: int) -> bytes:
        count = size_bytes // len(entry)
        return response(1, head + encode_varint(count + 1) + entry * count + tail)

    return make


NUMBER: Final = 1_000
"""A correlation id: Python has an object for each of those above 256."""
_silent: Final = _again(produce(9, 1, 0))
requests: Final = _again(request(LIST_GROUPS, 0, NUMBER, client_id=b""))
_ANSWER: Final = response(NUMBER, b"")
_ADDRESS: Final = struct.pack(">i", 1) + compact(b"h") + bytes(4)
_coordinators: Final = _array(bytes(5), compact(b"g") + _ADDRESS + bytes(4), b"\0")
_brokers: Final = _array(bytes(5), _ADDRESS + b"\0\0", bytes(4) + b"\1" + bytes(5) + b"\0")
"""Metadata without topics."""
_partitions: Final = _array(bytes(11) + b"\2" + bytes(16), bytes(30) + b"\1" + bytes(4) + b"\1\0", b"\0\0")
"""Fetch of one topic, without records. Source: FetchResponse.json v16"""


def _fields(size_bytes: int) -> bytes:
    """Fetch without topics, and with tagged fields in its header."""
    count = size_bytes // 2
    return response(1, encode_varint(count) + b"\x09\0" * count + bytes(10) + b"\1\0")


def _asking_for_answers(size_bytes: int) -> bytes:
    return request(LIST_GROUPS, 0, NUMBER, client_id=b"") * (size_bytes // len(_ANSWER))


def _configs(size_bytes: int) -> bytes:
    return response(1, configs(copies_for(size_bytes)))


TAG_BYTES: Final = 10


def tagged(size_bytes: int) -> bytes:
    """Half a Produce request: the tagged fields of its header, each two long varints without a value."""
    field = b"\x81\x80\x80\x80\x00" + b"\x80\x80\x80\x80\x00"
    count = size_bytes // TAG_BYTES
    return struct.pack(">ihhih", 1 << 20, 0, 9, 1, -1) + encode_varint(count) + field * count


def body(size_bytes: int) -> bytes:
    """Some of a Produce request that is much longer. Source: ProduceRequest.json v3"""
    return struct.pack(">ihhihhhi", 64 << 20, 0, 3, 1, -1, -1, 1, 1000) + bytes(size_bytes)


def half_hello(size_bytes: int) -> bytes:
    """Half a ClientHello of 64 KiB, of which each record has a byte. Source: RFC 8446, sections 4 and 5.1"""
    text = b"\x01\x01\0\0\x03\x03" + bytes(32) + b"\0\xff\xff" + bytes(size_bytes)
    return b"".join(b"\x16\x03\x01\0\x01%c" % each for each in text[: size_bytes // 6])


FLOODS: Final = (
    Flood(
        "impossible ApiVersions", "client", _again(request(API_VERSIONS, UNKNOWN_VERSION, 1, client_id=b""))
    ),
    Flood("requests", "client", requests),
    Flood("requests without a response", "client", _silent, weighed_bytes=READ_BYTES),
    Flood(
        "tiny records", "client", _silent, record_bytes=1, few_bytes=112, many_bytes=560, weighed_bytes=4_000
    ),
    Flood("a long client id", "client", lambda n: request(METADATA, 12, 1, client_id=bytes(min(n, 32_000)))),
    Flood("new keys", "client", bytes, changes_keys=True, weighed_bytes=64 * 1024),
    Flood("new keys of a broker", "broker", bytes, changes_keys=True, weighed_bytes=64 * 1024),
    Flood("half a ClientHello", "client", half_hello, weighed_bytes=READ_BYTES),
    Flood("answers", "broker", _again(_ANSWER), _asking_for_answers, weighed_bytes=64 * 1024),
    Flood("a long answer", "broker", lambda n: response(NUMBER, bytes(n)), lambda _: requests(14)),
    Flood(
        "configurations",
        "broker",
        _configs,
        _asking(DESCRIBE_CONFIGS, 4),
        many_bytes=64 * 1024,
        weighed_bytes=READ_BYTES,
    ),
    Flood(
        "coordinators",
        "broker",
        _coordinators,
        _asking(FIND_COORDINATOR, 4),
        many_bytes=64 * 1024,
        weighed_bytes=READ_BYTES,
    ),
    Flood(
        "brokers", "broker", _brokers, _asking(METADATA, 12), many_bytes=32 * 1024, weighed_bytes=64 * 1024
    ),
    Flood("partitions", "broker", _partitions, _asking(FETCH, 16)),
    Flood("tagged fields", "broker", _fields, _asking(FETCH, 16), many_bytes=32 * 1024),
)
"""Those of a client come in every state, those of a broker to a joined client or after its goodbye."""


# ---- what is done with them


def feed(scene: Scene, given: Input, read_bytes: int) -> None:
    """Have a connection receive an input, as far as it is read."""
    for peer, data in given.chunks:
        if given.key_updates:
            side = scene.side(peer)
            scene.receive(side, side.key_updates(given.key_updates), read_bytes)
        if not scene.feed(peer, data, read_bytes, given.record_bytes):
            break
    scene.finish()


async def count(stand: Stand, state: S, mode: Mode, given: Input, read_bytes: int) -> Spent:
    """The opcodes that an input costs when it comes in reads of ``read_bytes``."""
    scene = await stand.scene(state, mode, given.asks)
    scene.count()
    spent = scene.spent
    feed(scene, given, read_bytes)
    await scene.lose()
    return spent


async def weigh(
    stand: Stand, state: S, mode: Mode, given: Input, read_bytes: int, broker_reads: bool = True
) -> tuple[Memory, Spent]:
    """The memory of an input, and that of a connection that it is fed to."""
    stand.told()
    with _traced() as allocated:
        before_bytes = allocated()
        scene = await stand.scene(state, mode, given.asks, broker_reads)
        spent = scene.spent
        feed(scene, given, read_bytes)
        held_bytes = allocated() - before_bytes
        await scene.lose()
        del scene
        return Memory(held_bytes, allocated() - before_bytes), spent


@contextmanager
def _traced() -> Iterator[Callable[[], int]]:
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
