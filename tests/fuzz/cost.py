"""The cost of a stranger's bytes to a worker: opcodes per read and per byte, and memory per byte.

    opcodes of k reads of n bytes         at most `Allowance.per_read` * k + `per_byte` * n
                                          + `CONNECTION_END_OPCODES`
    opcodes of a turn of the event loop   at most `MAX_TURN_OPCODES`
    opcodes of 2 n bytes                  at most `MAX_GROWTH_FACTOR` times those of n bytes
    memory that k reads of n bytes hold   at most `HELD_BASE_BYTES` + `HELD_BYTES_PER_READ` * k
                                          + `HELD_BYTES_PER_BYTE` * n
                                          and at most `MAX_HELD_BYTES`
    memory left after a connection        at most `MAX_LEFT_BYTES`

Opcodes are Python's. The instructions and the memory of OpenSSL are not counted.
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
from tests.fuzz.target import (
    API_VERSIONS,
    BOTH,
    CLIENT,
    FRAMED,
    UNKNOWN_VERSION,
    chunks,
    decode_api,
    make_request,
)
from tests.fuzz.worker_harness import (
    BROKER_STATES,
    CLIENT_STATES,
    LIST_GROUPS,
    METADATA,
    READ_BYTES,
    TLS_STATES,
    ConnectionHarness,
    Mode,
    Usage,
    WorkerHarness,
)
from tests.fuzz.worker_harness import ConnectionState as S
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
"""Size of a record with one KeyUpdate. Source: RFC 8446, sections 4.6.3 and 5.2"""
READ_SIZES_BYTES: Final = (1, 2, 7, 1448, READ_BYTES)
"""The largest number of bytes in a read."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Opcodes that reads may take when the worker samples every read.

    With honest frames (`tests.fuzz.seeds`), a read of one byte takes up to 730 opcodes, and each further byte
    up to 31. Inputs in the fuzzer's corpus take up to 1,060 and 90. The allowance per read is twice the 730.
    The allowance per byte is three times the 31, because the worker parses a partial head three times.
    """

    per_read: int = 1_500
    per_byte: int = 100


CONNECTION_END_OPCODES: Final = 5_000
"""Extra opcodes once per connection: refusing a connection takes up to 2,400, with the log line."""
ORDINARY_ALLOWANCE: Final = Allowance()
TAGGED_ALLOWANCE: Final = Allowance(per_read=6_000)
"""For a header with the maximum number of tagged fields: each read parses them again in 2,900 opcodes."""
MAX_TURN_OPCODES: Final = 110_000
"""Twice the cost of a slice of coordinators with many addresses. A slice of configurations takes 25,000."""
MAX_GROWTH_FACTOR: Final = 2.5

HELD_BASE_BYTES: Final = 32 * 1024
HELD_BYTES_PER_READ: Final = 1_600
"""Twice the memory of a waiting write."""
HELD_BYTES_PER_BYTE: Final = 9
"""Twice the memory of 14-byte requests in flight to a broker that does not read: 40 bytes and the request."""
MAX_HELD_BYTES: Final = 1536 * 1024
"""The requests of one read (1.1 MB) and one buffer per side."""
MAX_LEFT_BYTES: Final = 8 * 1024
"""Two rows for control, and what the event loop frees later: up to 4,200 bytes."""


class CostExceeded(AssertionError):
    """An input costs more than its limit."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that Python has allocated in addition to those before the connection.

    Args: held: while the connection exists; left: after its loss.
    """

    held: int
    left: int


def check_opcodes(usage: Usage, allowance: Allowance = ORDINARY_ALLOWANCE) -> None:
    """Raises: CostExceeded: the reads or a turn took too many opcodes."""
    most = (
        allowance.per_read * usage.reads + allowance.per_byte * usage.received_bytes + CONNECTION_END_OPCODES
    )
    if usage.read_opcodes > most:
        raise CostExceeded(f"{usage} is above {most} opcodes")
    if usage.max_turn_opcodes > MAX_TURN_OPCODES:
        raise CostExceeded(f"{usage} has a turn above {MAX_TURN_OPCODES} opcodes")


def check_growth(once: Usage, twice: Usage) -> None:
    """Raises: CostExceeded: twice as many bytes took much more than twice as many opcodes."""
    if twice.opcodes > MAX_GROWTH_FACTOR * once.opcodes:
        raise CostExceeded(f"{twice} is above {MAX_GROWTH_FACTOR} times {once}")


def check_memory(memory: Memory, usage: Usage) -> None:
    """Raises: CostExceeded: the connection holds or leaves too much memory."""
    most = HELD_BASE_BYTES + HELD_BYTES_PER_READ * usage.reads + HELD_BYTES_PER_BYTE * usage.received_bytes
    most = min(most, MAX_HELD_BYTES)
    if memory.held > most:
        raise CostExceeded(f"{memory.held} bytes are held of {usage}, above {most}")
    if memory.left > MAX_LEFT_BYTES:
        raise CostExceeded(f"{memory.left} bytes are left of {usage}, above {MAX_LEFT_BYTES}")


# ---- inputs


@dataclass(frozen=True, slots=True)
class Input:
    """What a client and a broker send.

    Args:
        sent_requests: requests that the client sent before.
        record_bytes: size of the plaintext in each TLS record.
        key_updates: number of TLS 1.3 KeyUpdates before each chunk.
    """

    chunks: tuple[tuple[Peer, bytes], ...]
    sent_requests: bytes = b""
    record_bytes: int = RECORD_BYTES
    key_updates: int = 0

    def states(self, mode: Mode) -> tuple[S, ...]:
        """The states in which the peers may send the input."""
        if self.key_updates and mode != "TLS 1.3":
            return ()
        peers = {peer for peer, _ in self.chunks}
        states = (
            CLIENT_STATES if peers == {"client"} else BROKER_STATES if peers == {"broker"} else (S.JOINED,)
        )
        excluded_states = TLS_STATES if mode == "plaintext" else (S.SHAKING,) if self.key_updates else ()
        return tuple(each for each in states if each not in excluded_states)


def parse(data: bytes) -> Input:
    """Decode an input of the fuzzer; see `tests.fuzz.target`."""
    kind, flags = data[0] % 32 % 3, data[0]
    if kind == CLIENT:
        sent_bytes = data[2:]
        return Input(
            (("client", struct.pack(">i", len(sent_bytes)) + sent_bytes if flags & FRAMED else sent_bytes),)
        )
    if kind == BOTH:
        return Input(tuple(chunks(data[2:])))
    if len(data) < 6:
        return Input(())
    first_api, second_api = (decode_api(each) for each in struct.unpack_from(">HH", data, 2))
    sent_bytes = data[6:]
    if flags & FRAMED:
        sent_bytes = struct.pack(">ii", len(sent_bytes) + 4, 1) + sent_bytes
    return Input((("broker", sent_bytes),), make_request(first_api, 1) + make_request(second_api, 2))


@dataclass(frozen=True, slots=True)
class Flood:
    """Bytes of one kind, in any amount.

    Args:
        make: makes about the given number of bytes.
        sent_requests: makes the requests that the client sent before, for the same number of bytes.
        record_bytes: size of the plaintext in each TLS record.
        few_bytes: size for short reads; the cost of this size and of twice this size is counted.
        many_bytes: size for long reads.
        memory_bytes: size after which memory is measured.
        changes_keys: whether the flood consists of TLS 1.3 KeyUpdates only.
    """

    name: str
    peer: Peer
    make: Callable[[int], bytes]
    sent_requests: Callable[[int], bytes] = lambda _: b""
    record_bytes: int = RECORD_BYTES
    few_bytes: int = 400
    many_bytes: int = 8 * 1024
    memory_bytes: int = 2 * MAX_HELD_BYTES
    changes_keys: bool = False

    def sized(self, size_bytes: int) -> Input:
        key_updates = size_bytes // KEY_UPDATE_BYTES if self.changes_keys else 0
        sent_bytes = b"" if key_updates else self.make(size_bytes)
        return Input(
            ((self.peer, sent_bytes),), self.sent_requests(size_bytes), self.record_bytes, key_updates
        )

    def states(self, mode: Mode) -> tuple[S, ...]:
        """The states in which the flood is sent."""
        allowed_states = CLIENT_STATES if self.peer == "client" else (S.JOINED, S.GOODBYE)
        return tuple(each for each in self.sized(self.few_bytes).states(mode) if each in allowed_states)

    def counted_bytes(self, read_bytes: int) -> int:
        return self.few_bytes if read_bytes < 100 else self.many_bytes


def _repeat_frame(frame: bytes) -> Callable[[int], bytes]:
    return lambda size_bytes: frame * (size_bytes // len(frame))


def _single_request(api_key: int, version: int) -> Callable[[int], bytes]:
    return lambda _: request(api_key, version, 1)


def _array(head: bytes, entry: bytes, tail: bytes) -> Callable[[int], bytes]:
    """Make a response that is an array of equal entries, with a short head and tail."""

    def make(size_bytes: int) -> bytes:
        count = size_bytes // len(entry)
        return response(1, head + encode_varint(count + 1) + entry * count + tail)

    return make


CORRELATION_ID: Final = 1_000
"""A correlation id: Python allocates an object for each integer above 256."""
_silent_produces: Final = _repeat_frame(produce(9, 1, 0))
requests: Final = _repeat_frame(request(LIST_GROUPS, 0, CORRELATION_ID, client_id=b""))
_ANSWER: Final = response(CORRELATION_ID, b"")
_ADDRESS: Final = struct.pack(">i", 1) + compact(b"h") + bytes(4)
_coordinators: Final = _array(bytes(5), compact(b"g") + _ADDRESS + bytes(4), b"\0")
_brokers: Final = _array(bytes(5), _ADDRESS + b"\0\0", bytes(4) + b"\1" + bytes(5) + b"\0")
"""Metadata without topics."""
_partitions: Final = _array(bytes(11) + b"\2" + bytes(16), bytes(30) + b"\1" + bytes(4) + b"\1\0", b"\0\0")
"""Fetch of one topic, without records. Source: FetchResponse.json v16"""


def _fetch_with_tagged_header(size_bytes: int) -> bytes:
    """A Fetch response without topics, and with tagged fields in its header."""
    count = size_bytes // 2
    return response(1, encode_varint(count) + b"\x09\0" * count + bytes(10) + b"\1\0")


def _requests_for_answers(size_bytes: int) -> bytes:
    return request(LIST_GROUPS, 0, CORRELATION_ID, client_id=b"") * (size_bytes // len(_ANSWER))


def _configs(size_bytes: int) -> bytes:
    return response(1, configs(copies_for(size_bytes)))


TAG_BYTES: Final = 10


def tagged_produce(size_bytes: int) -> bytes:
    """Half a Produce request: the tagged fields of its header, each two long varints without a value."""
    field = b"\x81\x80\x80\x80\x00" + b"\x80\x80\x80\x80\x00"
    count = size_bytes // TAG_BYTES
    return struct.pack(">ihhih", 1 << 20, 0, 9, 1, -1) + encode_varint(count) + field * count


def produce_body(size_bytes: int) -> bytes:
    """The beginning of a Produce request that is much longer. Source: ProduceRequest.json v3"""
    return struct.pack(">ihhihhhi", 64 << 20, 0, 3, 1, -1, -1, 1, 1000) + bytes(size_bytes)


def half_hello(size_bytes: int) -> bytes:
    """Half a ClientHello of 64 KiB, one byte per record. Source: RFC 8446, sections 4 and 5.1"""
    text = b"\x01\x01\0\0\x03\x03" + bytes(32) + b"\0\xff\xff" + bytes(size_bytes)
    return b"".join(b"\x16\x03\x01\0\x01%c" % each for each in text[: size_bytes // 6])


FLOODS: Final = (
    Flood(
        "impossible ApiVersions",
        "client",
        _repeat_frame(request(API_VERSIONS, UNKNOWN_VERSION, 1, client_id=b"")),
    ),
    Flood("requests", "client", requests),
    Flood("requests without a response", "client", _silent_produces, memory_bytes=READ_BYTES),
    Flood(
        "tiny records",
        "client",
        _silent_produces,
        record_bytes=1,
        few_bytes=112,
        many_bytes=560,
        memory_bytes=4_000,
    ),
    Flood("a long client id", "client", lambda n: request(METADATA, 12, 1, client_id=bytes(min(n, 32_000)))),
    Flood("new keys", "client", bytes, changes_keys=True, memory_bytes=64 * 1024),
    Flood("new keys of a broker", "broker", bytes, changes_keys=True, memory_bytes=64 * 1024),
    Flood("half a ClientHello", "client", half_hello, memory_bytes=READ_BYTES),
    Flood("answers", "broker", _repeat_frame(_ANSWER), _requests_for_answers, memory_bytes=64 * 1024),
    Flood("a long answer", "broker", lambda n: response(CORRELATION_ID, bytes(n)), lambda _: requests(14)),
    Flood(
        "configurations",
        "broker",
        _configs,
        _single_request(DESCRIBE_CONFIGS, 4),
        many_bytes=64 * 1024,
        memory_bytes=READ_BYTES,
    ),
    Flood(
        "coordinators",
        "broker",
        _coordinators,
        _single_request(FIND_COORDINATOR, 4),
        many_bytes=64 * 1024,
        memory_bytes=READ_BYTES,
    ),
    Flood(
        "brokers",
        "broker",
        _brokers,
        _single_request(METADATA, 12),
        many_bytes=32 * 1024,
        memory_bytes=64 * 1024,
    ),
    Flood("partitions", "broker", _partitions, _single_request(FETCH, 16)),
    Flood(
        "tagged fields", "broker", _fetch_with_tagged_header, _single_request(FETCH, 16), many_bytes=32 * 1024
    ),
)
"""A client's floods are sent in every state, a broker's to a joined client or after its goodbye."""


# ---- sending inputs and measuring


def send_input(harness: ConnectionHarness, fuzz_input: Input, read_bytes: int) -> None:
    """Send an input to a connection while the worker reads it."""
    for peer, data in fuzz_input.chunks:
        if fuzz_input.key_updates:
            side = harness.side_of(peer)
            harness.receive(side, side.key_updates(fuzz_input.key_updates), read_bytes)
        if not harness.send(peer, data, read_bytes, fuzz_input.record_bytes):
            break
    harness.run_turns()


async def count_opcodes(
    workers: WorkerHarness, state: S, mode: Mode, fuzz_input: Input, read_bytes: int
) -> Usage:
    """Count the opcodes of an input that arrives in reads of ``read_bytes``."""
    harness = await workers.open_connection(state, mode, fuzz_input.sent_requests)
    harness.count()
    usage = harness.usage
    send_input(harness, fuzz_input, read_bytes)
    await harness.lose_connection()
    return usage


async def measure_memory(
    workers: WorkerHarness,
    state: S,
    mode: Mode,
    fuzz_input: Input,
    read_bytes: int,
    broker_reads: bool = True,
) -> tuple[Memory, Usage]:
    """Measure the memory of an input and of the connection that receives it."""
    workers.discard_traffic_log()
    with _traced_allocation() as allocated:
        before_bytes = allocated()
        harness = await workers.open_connection(state, mode, fuzz_input.sent_requests, broker_reads)
        usage = harness.usage
        send_input(harness, fuzz_input, read_bytes)
        held_bytes = allocated() - before_bytes
        await harness.lose_connection()
        del harness
        return Memory(held_bytes, allocated() - before_bytes), usage


@contextmanager
def _traced_allocation() -> Iterator[Callable[[], int]]:
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
