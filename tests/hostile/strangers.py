"""The tricks of a stranger who may connect, and who knows what a member holds for its clients."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Final

from tests.hostile.crowd import CrowdConnection, Part
from tests.hostile.kinds import client_hello
from tests.hostile.twins import CrowdTargets, fetch
from tests.integration import wire
from tests.key_updates import request_key_update

UNKNOWN_VERSION: Final = 32767
KERNEL_BYTES: Final = 74_000
"""The share of an unread answer that kernels hold; see `SMALL_WINDOW_BYTES` of `tests.hostile.crowd`."""
UNREAD_FETCH_BYTES: Final = 1 << 20
LONG_WAIT_MS: Final = 30_000
BUDGET_SAVING_S: Final = 15.0
"""How long to save the byte budget for a request that asks for much at once."""
MAX_REQUEST_BYTES: Final = 8_000
MAX_TAGS: Final = 16
"""The maximum number of tags in a header."""
SIGN_INTERVAL_S: Final = 3.0
LITTLE_LEFT_BYTES: Final = 52_000
"""The rest of an answer; a member once counted only rests above 64 KiB."""

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
"""The tricks of a stranger who attacks one resource. Without a focus the stranger plays all tricks."""


def tags(count: int) -> bytes:
    """Make the maximum number of tagged fields of a header, each of a few bytes."""
    return bytes((count,)) + b"".join(bytes((number, 3)) + b"abc" for number in range(count))


class Strangers:
    """Makes the parts of strangers.

    Args: targets: what they know of the fleet.
    """

    def __init__(self, targets: CrowdTargets) -> None:
        self._targets = targets
        self._record = wire.one_record()
        self._hello = client_hello()
        self._all_parts = (
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
        self.names = tuple(each.name for each in self._all_parts)

    def parts(self, connections: int, focus: Focus = MIXED) -> Sequence[Part]:
        """Make one part per connection: of one trick, of a focus, or of every trick in turn."""
        names = FOCUSES.get(focus, self.names if focus == MIXED else (focus,))
        chosen = [each for each in self._all_parts if each.name in names]
        return list(islice(cycle(chosen), connections))

    # ---- clients that do not read

    async def _unread_api_versions(self, connection: CrowdConnection) -> None:
        """Send requests that a member answers itself."""
        connection.stop_reading()
        while True:
            await connection.send(wire.request(wire.API_VERSIONS, UNKNOWN_VERSION, 0))

    async def _unread_metadata(self, connection: CrowdConnection) -> None:
        """Request the metadata of all topics."""
        connection.stop_reading()
        while True:
            await connection.send(wire.request(wire.METADATA, 1, 0, struct.pack(">i", -1)))

    async def _unread_fetch(self, connection: CrowdConnection) -> None:
        connection.stop_reading()
        while True:
            await connection.send(fetch(0, self._targets.filled_topic, UNREAD_FETCH_BYTES))

    async def _unread_configs(self, connection: CrowdConnection) -> None:
        connection.stop_reading()
        while True:
            await connection.send(self._describe_configs(connection))

    async def _little_left(self, connection: CrowdConnection) -> None:
        """Read nothing of one answer, so that its small rest keeps all of it in the member's memory."""
        connection.stop_reading()
        await connection.send(fetch(0, self._targets.filled_topic, KERNEL_BYTES + LITTLE_LEFT_BYTES))
        await self._hold(connection, wire.request(wire.API_VERSIONS, 0, 0))

    async def _hold(self, connection: CrowdConnection, sign: bytes) -> None:
        """Send a little now and then: a client that does not read notices the end only when it writes."""
        while True:
            await asyncio.sleep(SIGN_INTERVAL_S)
            await connection.send(sign)

    # ---- clients that send what they must not send

    async def _tokens(self, connection: CrowdConnection) -> None:
        """Send frames without a header, after the handshake that would allow them."""
        await connection.send(wire.request(wire.SASL_HANDSHAKE, 0, 0, wire.string("PLAIN")))
        while True:
            await connection.send(struct.pack(">i", 9) + b"\0app\0word")
            await connection.read_available()

    async def _tagged_fields(self, connection: CrowdConnection) -> None:
        """Send Produce v9 with a header of many tagged fields, one byte at a time."""
        head = struct.pack(">hhih", wire.PRODUCE, 9, 0, 3) + b"raw" + tags(MAX_TAGS)
        body = b"\0" + struct.pack(">hi", 1, 30_000) + b"\1\0"
        await connection.drip(struct.pack(">i", len(head) + len(body)) + head + body)
        await connection.read_response()

    async def _key_updates(self, connection: CrowdConnection) -> None:
        """Send TLS key updates without data. Each asks for an answer, which the client does not read."""
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
                await connection.send(outgoing.read(), free=True)
                incoming.write(await connection.read_available())
        await connection.send(outgoing.read(), free=True)
        connection.stop_reading()
        while True:
            request_key_update(tls)
            tls.write(b"")
            await connection.send(outgoing.read())

    async def _half_handshake(self, connection: CrowdConnection) -> None:
        await connection.send(self._hello[: len(self._hello) // 2], free=True)
        await connection.read_to_end()

    async def _half_request(self, connection: CrowdConnection) -> None:
        await connection.send(wire.metadata_of(0, self._targets.topic)[:-1])
        await connection.read_to_end()

    async def _tiny_produce(self, connection: CrowdConnection) -> None:
        """Send one record at a time, without acknowledgement."""
        topic = wire.string(self._targets.topic)
        body = struct.pack(">hhi", -1, 0, 30_000) + struct.pack(">i", 1) + topic
        body += struct.pack(">iii", 1, 0, len(self._record)) + self._record
        while True:
            await connection.send(wire.request(wire.PRODUCE, 7, 0, body))

    async def _in_flight(self, connection: CrowdConnection) -> None:
        """Send endless requests behind one whose answer takes long."""
        waits = fetch(0, self._targets.topic, UNREAD_FETCH_BYTES, LONG_WAIT_MS, UNREAD_FETCH_BYTES)
        reading = asyncio.create_task(connection.read_to_end())
        try:
            while not reading.done():
                await connection.send(waits)
                for _ in range(100):
                    await connection.send(wire.request(wire.API_VERSIONS, 0, 0))
        finally:
            reading.cancel()

    # ---- clients that request much

    def _saved_bytes(self, connection: CrowdConnection) -> int:
        return int(min(MAX_REQUEST_BYTES, connection.bytes_per_s * BUDGET_SAVING_S))

    def _describe_configs(self, connection: CrowdConnection) -> bytes:
        """DescribeConfigs v4 of the whole broker, many times over. Source: DescribeConfigsRequest.json"""
        broker = str(self._targets.broker_id).encode()
        resource = b"\4" + bytes((len(broker) + 1,)) + broker + b"\0\0"
        count = max(1, self._saved_bytes(connection) // len(resource))
        body = b"\0" + _varint(count + 1) + resource * count + b"\1\1\0"
        return wire.request(wire.DESCRIBE_CONFIGS, 4, 0, body)

    async def _configs(self, connection: CrowdConnection) -> None:
        while True:
            await connection.send(self._describe_configs(connection))
            await connection.read_response()

    async def _coordinators(self, connection: CrowdConnection) -> None:
        """FindCoordinator v4. Source: FindCoordinatorRequest.json"""
        count = max(1, self._saved_bytes(connection) // 2)
        body = b"\0\0" + _varint(count + 1) + b"\2g" * count + b"\0"
        while True:
            await connection.send(wire.request(wire.FIND_COORDINATOR, 4, 0, body))
            await connection.read_response()

    # ---- at the admin port and the peer port

    async def _http_head(self, connection: CrowdConnection) -> None:
        """Send a head without an end."""
        await connection.drip(self._targets.get("/readyz")[:-2])
        while True:
            await connection.drip(b"X-More: 1\r\n")

    async def _unread_live(self, connection: CrowdConnection) -> None:
        connection.stop_reading()
        await connection.send(self._targets.get("/live"))
        await self._hold(connection, self._targets.get("/readyz"))

    async def _unread_http(self, connection: CrowdConnection) -> None:
        connection.stop_reading()
        while True:
            await connection.send(self._targets.get("/ownership"))

    async def _garbage(self, connection: CrowdConnection) -> None:
        await connection.send(connection.rng.randbytes(connection.rng.randint(8, 200)))
        await connection.read_to_end()

    # ---- clients that do nothing

    async def _churn(self, connection: CrowdConnection) -> None:
        """Open a connection and close it at once."""

    async def _idle(self, connection: CrowdConnection) -> None:
        await connection.read_to_end()


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))
