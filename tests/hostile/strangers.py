"""The tricks of a stranger who may connect, and who knows what a member holds for its clients."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Final

from tests.hostile.crowd import Line, Part
from tests.hostile.kinds import client_hello
from tests.hostile.twins import Ground, fetch
from tests.integration import wire
from tests.key_updates import ask_for_new_keys

IMPOSSIBLE: Final = 32767
KERNEL_BYTES: Final = 74_000
"""What kernels take of an answer that nobody reads; see `SMALL_WINDOW_BYTES` of `tests.hostile.crowd`."""
UNREAD_FETCH_BYTES: Final = 1 << 20
LONG_WAIT_MS: Final = 30_000
SAVED_S: Final = 15.0
"""How long a request may be saved for that asks for much at once."""
MOST_REQUEST_BYTES: Final = 8_000
MOST_TAGS: Final = 16
"""As many as a header may have."""
SIGN_EVERY_S: Final = 3.0
LITTLE_LEFT_BYTES: Final = 52_000
"""What is left of an answer; a member once took note above 64 KiB."""

Focus = str
MIXED: Final = "all"
FOCUSES: Final[dict[Focus, tuple[str, ...]]] = {
    "memory": (
        *("unread ApiVersions", "unread Metadata", "unread Fetch", "a little left"),
        *("DescribeConfigs of everything", "unread DescribeConfigs", "FindCoordinator of thousands"),
        *("unread /live", "unread HTTP answers"),
    ),
    "cpu": (
        *("unread ApiVersions", "tagged fields", "TLS key updates", "tiny Produce", "requests in flight"),
        *(
            "DescribeConfigs of everything",
            "FindCoordinator of thousands",
            "HTTP head",
            "unread HTTP answers",
        ),
        *("garbage at the peer port", "churn"),
    ),
}
"""Which tricks a stranger plays who wants one thing; else each of them."""


def tags(count: int) -> bytes:
    """As many tagged fields as a header may have, each of a few bytes."""
    return bytes((count,)) + b"".join(bytes((number, 3)) + b"abc" for number in range(count))


class Strangers:
    """Makes the parts of strangers.

    Args: ground: what they know.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._record = wire.one_record()
        self._hello = client_hello()
        self._everyone = (
            Part("unread ApiVersions", "bootstrap", self._unread_api_versions, reads_little=True),
            Part("unread Metadata", "broker", self._unread_metadata, reads_little=True),
            Part("unread Fetch", "broker", self._unread_fetch, reads_little=True),
            Part("unread DescribeConfigs", "broker", self._unread_configs, reads_little=True),
            Part("a little left", "broker", self._little_left, floods=False, reads_little=True),
            Part("SaslHandshake v0", "broker", self._tokens),
            Part("tagged fields", "broker", self._tagged_fields),
            Part("TLS key updates", "tls", self._key_updates),
            Part("half TLS handshake", "tls", self._half_handshake, floods=False),
            Part("half request", "broker", self._half_request, floods=False),
            Part("tiny Produce", "broker", self._tiny_produce),
            Part("requests in flight", "broker", self._in_flight),
            Part("DescribeConfigs of everything", "broker", self._configs),
            Part("FindCoordinator of thousands", "broker", self._coordinators),
            Part("HTTP head", "admin", self._http_head),
            Part("unread /live", "admin", self._unread_live, floods=False, reads_little=True),
            Part("unread HTTP answers", "admin", self._unread_http, reads_little=True),
            Part("garbage at the peer port", "peer", self._garbage),
            Part("half hello at the peer port", "peer", self._half_handshake, floods=False),
            Part("churn", "bootstrap", self._churn),
            Part("idle", "bootstrap", self._idle, floods=False),
        )
        self.names = tuple(each.name for each in self._everyone)

    def parts(self, connections: int, focus: Focus = MIXED) -> Sequence[Part]:
        """One for each connection: of one name, of a focus, or of every trick."""
        names = FOCUSES.get(focus, self.names if focus == MIXED else (focus,))
        chosen = [each for each in self._everyone if each.name in names]
        return list(islice(cycle(chosen), connections))

    # ---- who does not read

    async def _unread_api_versions(self, line: Line) -> None:
        """Requests that a member answers itself."""
        line.read_no_more()
        while True:
            await line.send(wire.request(wire.API_VERSIONS, IMPOSSIBLE, 0))

    async def _unread_metadata(self, line: Line) -> None:
        """Of all topics."""
        line.read_no_more()
        while True:
            await line.send(wire.request(wire.METADATA, 1, 0, struct.pack(">i", -1)))

    async def _unread_fetch(self, line: Line) -> None:
        line.read_no_more()
        while True:
            await line.send(fetch(0, self._ground.filled, UNREAD_FETCH_BYTES))

    async def _unread_configs(self, line: Line) -> None:
        line.read_no_more()
        while True:
            await line.send(self._describe_configs(line))

    async def _little_left(self, line: Line) -> None:
        """One answer, of which a little waits in the member, and keeps all of it."""
        line.read_no_more()
        await line.send(fetch(0, self._ground.filled, KERNEL_BYTES + LITTLE_LEFT_BYTES))
        await self._hold(line, wire.request(wire.API_VERSIONS, 0, 0))

    async def _hold(self, line: Line, sign: bytes) -> None:
        """Say a little now and then: a client that does not read learns its end from what it writes."""
        while True:
            await asyncio.sleep(SIGN_EVERY_S)
            await line.send(sign)

    # ---- who sends what is not to be sent

    async def _tokens(self, line: Line) -> None:
        """Frames without a header, after the handshake that would allow them."""
        await line.send(wire.request(wire.SASL_HANDSHAKE, 0, 0, wire.string("PLAIN")))
        while True:
            await line.send(struct.pack(">i", 9) + b"\0app\0word")
            await line.some()

    async def _tagged_fields(self, line: Line) -> None:
        """Produce v9 whose header has many of them, a byte at a time."""
        head = struct.pack(">hhih", wire.PRODUCE, 9, 0, 3) + b"raw" + tags(MOST_TAGS)
        body = b"\0" + struct.pack(">hi", 1, 30_000) + b"\1\0"
        await line.drip(struct.pack(">i", len(head) + len(body)) + head + body)
        await line.answer()

    async def _key_updates(self, line: Line) -> None:
        """TLS without data: each of them asks for an answer, which nobody reads."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        tls = context.wrap_bio(incoming, outgoing)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await line.send(outgoing.read(), free=True)
                incoming.write(await line.some())
        await line.send(outgoing.read(), free=True)
        line.read_no_more()
        while True:
            ask_for_new_keys(tls)
            tls.write(b"")
            await line.send(outgoing.read())

    async def _half_handshake(self, line: Line) -> None:
        await line.send(self._hello[: len(self._hello) // 2], free=True)
        await line.ended()

    async def _half_request(self, line: Line) -> None:
        await line.send(wire.metadata_of(0, self._ground.topic)[:-1])
        await line.ended()

    async def _tiny_produce(self, line: Line) -> None:
        """One record at a time, of which nobody says anything."""
        topic = wire.string(self._ground.topic)
        body = struct.pack(">hhi", -1, 0, 30_000) + struct.pack(">i", 1) + topic
        body += struct.pack(">iii", 1, 0, len(self._record)) + self._record
        while True:
            await line.send(wire.request(wire.PRODUCE, 7, 0, body))

    async def _in_flight(self, line: Line) -> None:
        """Requests without end, behind one whose answer takes its time."""
        waits = fetch(0, self._ground.topic, UNREAD_FETCH_BYTES, LONG_WAIT_MS, UNREAD_FETCH_BYTES)
        reading = asyncio.create_task(line.ended())
        try:
            while not reading.done():
                await line.send(waits)
                for _ in range(100):
                    await line.send(wire.request(wire.API_VERSIONS, 0, 0))
        finally:
            reading.cancel()

    # ---- who asks for much

    def _saved_bytes(self, line: Line) -> int:
        return int(min(MOST_REQUEST_BYTES, line.bytes_per_s * SAVED_S))

    def _describe_configs(self, line: Line) -> bytes:
        """DescribeConfigs v4 of the whole broker, many times over. Source: DescribeConfigsRequest.json"""
        broker = str(self._ground.broker_id).encode()
        resource = b"\4" + bytes((len(broker) + 1,)) + broker + b"\0\0"
        count = max(1, self._saved_bytes(line) // len(resource))
        body = b"\0" + _varint(count + 1) + resource * count + b"\1\1\0"
        return wire.request(wire.DESCRIBE_CONFIGS, 4, 0, body)

    async def _configs(self, line: Line) -> None:
        while True:
            await line.send(self._describe_configs(line))
            await line.answer()

    async def _coordinators(self, line: Line) -> None:
        """FindCoordinator v4. Source: FindCoordinatorRequest.json"""
        count = max(1, self._saved_bytes(line) // 2)
        body = b"\0\0" + _varint(count + 1) + b"\2g" * count + b"\0"
        while True:
            await line.send(wire.request(wire.FIND_COORDINATOR, 4, 0, body))
            await line.answer()

    # ---- at the admin port and the peer port

    async def _http_head(self, line: Line) -> None:
        """A head that has no end."""
        await line.drip(self._ground.get("/readyz")[:-2])
        while True:
            await line.drip(b"X-More: 1\r\n")

    async def _unread_live(self, line: Line) -> None:
        line.read_no_more()
        await line.send(self._ground.get("/live"))
        await self._hold(line, self._ground.get("/readyz"))

    async def _unread_http(self, line: Line) -> None:
        line.read_no_more()
        while True:
            await line.send(self._ground.get("/ownership"))

    async def _garbage(self, line: Line) -> None:
        await line.send(line.chance.randbytes(line.chance.randint(8, 200)))
        await line.ended()

    # ---- who does nothing

    async def _churn(self, line: Line) -> None:
        """Opened, and closed at once."""

    async def _idle(self, line: Line) -> None:
        await line.ended()


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))
