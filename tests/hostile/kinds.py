"""What hostile clients do, and how their connections end: known for some kinds, else found by a session.

The same seed makes the same scripts.
"""

from __future__ import annotations

import random
import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from fleet.config import Limits
from fleet.core.errors import WireError
from fleet.core.model import Endpoint
from fleet.proxy.timeouts import SWEEP_S
from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.requests import RESPONSE_LAYOUTS
from tests.conformance.exchange import request_form, request_frame
from tests.conformance.messages import Maker, encode
from tests.fuzz.target import API_VERSIONS, MESSAGES, PRODUCE, SASL_HANDSHAKE, new_play
from tests.property import wire_fleet

FIRST_REQUEST, REQUEST = "first_request_timeout_s", "request_timeout_s"
TIME_LIMITS: Final = {FIRST_REQUEST: 5.0, REQUEST: 5.0}
"""The time limits of the fleets under attack."""
METADATA: Final = 3
MAX_BODY_BYTES: Final = 20_000
DEFAULT_LIMITS: Final = Limits()

CHANGES_CLUSTER: Final = frozenset(
    {
        *("Metadata", "CreateTopics", "DeleteTopics", "DeleteRecords", "CreatePartitions", "ElectLeaders"),
        *("AlterConfigs", "IncrementalAlterConfigs", "AlterPartitionReassignments", "AlterReplicaLogDirs"),
        *("AlterClientQuotas", "UpdateFeatures", "UnregisterBroker", "AddRaftVoter", "RemoveRaftVoter"),
        *("CreateAcls", "DeleteAcls", "AlterUserScramCredentials", "AssignReplicasToDirs", "UpdateRaftVoter"),
    }
)
"""Requests to cut short: the workload shares the cluster, and Metadata makes topics."""

Then = Literal["wait", "end", "reset", "answer"]
"""How the client ends: wait for the fleet to close, half-close, reset, or read an answer."""


@dataclass(frozen=True, slots=True)
class Script:
    """One connection.

    Args:
        chunks: sent with a pause between each two.
        then: how the client ends.
        reason: the reason that the fleet counts when it closes the connection; None if the fleet does not.
        port: "plaintext", or a TLS listener: "tls" for bytes without TLS, "tls_spoken" for TLS.
    """

    kind: str
    chunks: Sequence[bytes]
    then: Then
    reason: str | None
    port: Literal["plaintext", "tls", "tls_spoken"] = "plaintext"
    pause_s: float = 0.0

    @property
    def is_long(self) -> bool:
        """Whether the script takes long."""
        return self.reason in TIME_LIMITS or self.pause_s > 0 or self.kind == "tls_silent"


class ScriptMaker:
    """Makes scripts.

    Args: seed: seed of all choices.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._maker = Maker(self._rng, {1: Endpoint("broker-1.example", 9092)})
        self._apis = sorted(RESPONSE_LAYOUTS)
        self._next_api = 0
        self._quick: list[Callable[[], Script]] = [
            *(self.size_negative, self.size_small, self.size_huge, self.client_id_negative),
            *(self.client_id_long, self.varint_endless, self.unknown_api, self.unknown_version),
            *(self.http, self.tls_hello, self.random_bytes, self.truncated, self.interleaved),
            *(self.unknown_tags, self.deep_arrays, self.reset, self.reset_inside, self.half_closed),
            *(self.tokens, *[self.mutated] * 8),
            *(self.plaintext_to_tls, self.http_to_tls, self.tls_truncated, self.garbage_in_tls),
        ]
        self._slow: list[Callable[[], Script]] = [
            *(self.silent, self.begun_request, self.slow_writer, self.slow_garbage, self.acks_0_flood),
            self.tls_silent,
        ]

    def script(self, number: int) -> Script:
        """Make the script of a number. One in twenty takes long."""
        if number % 20 == 19:
            return self._slow[number // 20 % len(self._slow)]()
        return self._quick[number % len(self._quick)]()

    # ---- one kind each

    def size_negative(self) -> Script:
        head = struct.pack(">i", -self._rng.choice((1, 2, 2**31, self._rng.randint(1, 2**31))))
        return Script("size_negative", [head + self._random_bytes(14, 60)], "wait", "malformed")

    def size_small(self) -> Script:
        head = struct.pack(">i", self._rng.randrange(10))
        return Script("size_small", [head + self._random_bytes(14, 60)], "wait", "malformed")

    def size_huge(self) -> Script:
        head = struct.pack(">i", self._rng.randint(DEFAULT_LIMITS.max_request_bytes + 1, 2**31 - 1))
        return Script("size_huge", [head + self._random_bytes(14, 60)], "wait", "oversize")

    def client_id_negative(self) -> Script:
        frame = bytearray(self._valid()[1])
        struct.pack_into(">h", frame, 12, -self._rng.randint(2, 2**15))
        return Script("client_id_negative", [bytes(frame)], "wait", "malformed")

    def client_id_long(self) -> Script:
        frame = bytearray(wire_fleet.request(METADATA, 12, 1, self._random_bytes(1, 40)))
        struct.pack_into(">h", frame, 12, self._rng.randint(len(frame), 2**15 - 1))
        return Script("client_id_long", [bytes(frame)], "wait", "malformed")

    def varint_endless(self) -> Script:
        frame = wire_fleet.request(PRODUCE, self._rng.choice((9, 11, 13)), 1, b"\xff" * 12)
        return Script("varint_endless", [frame], "wait", "malformed")

    def unknown_api(self) -> Script:
        key = self._rng.choice((-1, 999, max(APIS) + 1, 2**15 - 1))
        return Script("unknown_api", [wire_fleet.request(key, 0, 1, bytes(8))], "wait", "unsupported_version")

    def unknown_version(self) -> Script:
        key = self._rng.choice([each for each in APIS if each != API_VERSIONS])
        version = self._rng.randint(APIS[key].max_version + 1, 2**15 - 1)
        frame = wire_fleet.request(key, version, 1, bytes(8))
        return Script("unknown_version", [frame], "wait", "unsupported_version")

    def http(self) -> Script:
        verb = self._rng.choice(("GET", "POST", "CONNECT", "OPTIONS"))
        text = f"{verb} /{self._random_bytes(1, 9).hex()} HTTP/1.1\r\nHost: kafka\r\n\r\n"
        return Script("http", [text.encode()], "wait", "oversize")

    def tls_hello(self) -> Script:
        return Script("tls_to_plaintext", [client_hello()], "wait", "oversize")

    def random_bytes(self) -> Script:
        return self._with_expected_end("random_bytes", self._random_bytes(1, 400))

    def truncated(self) -> Script:
        """The rest of a request does not come, and the client half-closes."""
        frame = wire_fleet.request(METADATA, 12, 1, b"\1\0\0\0")
        cut = self._rng.randrange(1, len(frame))
        return Script("truncated", [frame[:cut]], "end", "truncated")

    def interleaved(self) -> Script:
        outer, inner = wire_fleet.request(METADATA, 12, 1, self._random_bytes(20, 60)), self._valid()[1]
        position = self._rng.randrange(14, len(outer))
        return self._with_expected_end("interleaved", outer[:position] + inner + outer[position:])

    def unknown_tags(self) -> Script:
        """Tags as a later Kafka may send them: the fleet answers the request."""
        tags = b"\2\x63\3xyz\x7f\0"
        body = tags + b"\4lib\2" + b"1" + tags
        return Script("unknown_tags", [wire_fleet.request(API_VERSIONS, 3, 1, body)], "answer", None)

    def deep_arrays(self) -> Script:
        """The fleet forwards the request; the broker rejects it."""
        huge_count = b"\xff\xff\xff\xff\x07"
        frame = wire_fleet.request(1, 13, 1, b"\0" + bytes(21) + huge_count + bytes(16) + huge_count * 9)
        return Script("deep_arrays", [frame], "wait", None)

    def reset(self) -> Script:
        return Script("reset", [], "reset", None)

    def reset_inside(self) -> Script:
        frame = wire_fleet.request(METADATA, 12, 1, b"\1\0\0\0")
        return Script("reset_inside", [frame[: self._rng.randrange(1, len(frame))]], "reset", None)

    def half_closed(self) -> Script:
        return Script("half_closed", [wire_fleet.request(METADATA, 12, 1, b"\1\0\0\0")], "end", None)

    def tokens(self) -> Script:
        """The fleet expects frames without a header only after version 0, which it refuses."""
        mechanism = self._rng.choice((b"PLAIN", b"SCRAM-SHA-512", b"GSSAPI"))
        name = struct.pack(">h", len(mechanism)) + mechanism
        token = struct.pack(">i", 5) + b"token"
        sent = wire_fleet.request(SASL_HANDSHAKE, 0, 1, name) + token * 2
        return Script("tokens", [sent], "wait", "unsupported_version")

    def mutated(self) -> Script:
        """A valid frame of the next key and version, with some bytes changed."""
        api, frame = self._valid()
        mutable = bytearray(frame)
        cut_short = MESSAGES[api >> 16].name in CHANGES_CLUSTER
        if cut_short:
            body_at = 14 + 11
            mutable = mutable[: self._rng.randrange(body_at, max(body_at + 1, len(mutable) - 1))]
            struct.pack_into(">i", mutable, 0, len(mutable) - 4)
        for _ in range(self._rng.randint(1, 4)):
            # The head of a frame that would change something must keep its API key.
            position = self._rng.randrange(12 if cut_short else 8, len(mutable))
            mutable[position] = self._rng.choice((0, 1, 0x7F, 0x80, 0xFF, self._rng.randrange(256)))
        if self._rng.random() < 0.3:
            claimed = max(-1, len(mutable) - 4 + self._rng.choice((-9, -1, 1, 9, 1000)))
            struct.pack_into(">i", mutable, 0, claimed)
        return self._with_expected_end("mutated", bytes(mutable))

    def plaintext_to_tls(self) -> Script:
        return Script("plaintext_to_tls", [wire_fleet.request(METADATA, 12, 1)], "wait", "handshake", "tls")

    def http_to_tls(self) -> Script:
        return Script("http_to_tls", [b"GET / HTTP/1.1\r\n\r\n"], "wait", "handshake", "tls")

    def tls_truncated(self) -> Script:
        hello = client_hello()
        cut = hello[: self._rng.randrange(6, len(hello) - 1)]
        return Script("tls_truncated", [cut], "end", "handshake", "tls")

    def garbage_in_tls(self) -> Script:
        sent = struct.pack(">i", -1) + self._random_bytes(14, 60)
        return Script("garbage_in_tls", [sent], "wait", "malformed", "tls_spoken")

    def silent(self) -> Script:
        return Script("silent", [], "wait", FIRST_REQUEST)

    def begun_request(self) -> Script:
        frame = wire_fleet.request(METADATA, 12, 1, b"\1\0\0\0")
        return Script("begun", [frame[: self._rng.randrange(20, len(frame))]], "wait", REQUEST)

    def slow_writer(self) -> Script:
        frame = wire_fleet.request(API_VERSIONS, 0, 1)
        return Script("slow_writer", [bytes((each,)) for each in frame], "answer", None, pause_s=0.005)

    def slow_garbage(self) -> Script:
        sent = struct.pack(">i", -7) + bytes(10)
        chunks = [bytes((each,)) for each in sent]
        return Script("slow_garbage", chunks, "wait", "malformed", pause_s=0.005)

    def acks_0_flood(self) -> Script:
        """As many Produce requests without topics and responses as a client can send."""
        frame = wire_fleet.request(PRODUCE, 7, 1, struct.pack(">hhii", -1, 0, 30_000, 0))
        flood = frame * (self._rng.choice((16, 64, 256)) * 1024 // len(frame))
        return Script("acks_0_flood", [flood] * 4, self._rng.choice(("end", "reset")), None, pause_s=0.001)

    def tls_silent(self) -> Script:
        return Script("tls_silent", [client_hello()[:20]], "wait", "handshake", "tls")

    # ---- helpers

    def _with_expected_end(self, kind: str, sent: bytes) -> Script:
        """Let a session of this process decide how the connection ends.

        Accepted bytes end with the client's end.
        """
        play = new_play(DEFAULT_LIMITS)
        try:
            play.client(sent)
        except WireError as error:
            return Script(kind, [sent], "wait", error.reason)
        is_partial = bool(play.client_rest) or not play.session.at_boundary
        if is_partial and 4 + int.from_bytes(sent[:4], "big") <= len(sent):
            # The broker may close first, because of the whole frame that it received before.
            return Script(kind, [sent], "reset", None)
        return Script(kind, [sent], "end", "truncated" if is_partial else None)

    def _valid(self) -> tuple[int, bytes]:
        """Make a frame of the next API and version, one after the other."""
        api = self._apis[self._next_api % len(self._apis)]
        self._next_api += 1
        message, version = MESSAGES[api >> 16], api & 0xFFFF
        form = request_form(message, version)
        bodies = (encode(form, self._maker.message(form)) for _ in range(20))
        body = next((each for each in bodies if len(each) <= MAX_BODY_BYTES), b"")
        return api, request_frame(message, version, 1, body)

    def _random_bytes(self, min_bytes: int, max_bytes: int) -> bytes:
        return self._rng.randbytes(self._rng.randint(min_bytes, max_bytes))


def client_hello() -> bytes:
    """Return the first flight of a TLS client."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="kafka")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("a handshake completed without a peer")


MAX_CONNECTION_S: Final = max(TIME_LIMITS.values()) + 10 * SWEEP_S
"""The longest time that these fleets may leave a hostile connection open, on a busy machine."""
