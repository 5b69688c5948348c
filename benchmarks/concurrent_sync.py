"""Many connections, each with one small Produce request in flight: `sync` with more than one connection.

librdkafka has threads for each producer, and the benchmark would measure them. These are sockets of one loop.
"""

from __future__ import annotations

import asyncio
import io
import random
import ssl
import struct
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, cast

import uvloop
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.produce.v9 import request as produce_v9
from kio.serial import entity_writer

from benchmarks.errors import BenchError
from benchmarks.metadata_client import ask, client_context
from fleet.config.schema import parse_endpoint
from fleet.core.model import BrokerId, Endpoint

_PRODUCE, _VERSION = 0, 9
_CLIENT_ID: Final = b"outstanding"
_LIMIT_S: Final = 120.0
_TIMEOUT: Final = timedelta(seconds=30)


def produce_request(topic: str, value: bytes) -> bytes:
    """A frame with one record for partition 0; acks=1. Source: ProduceRequest.json v9"""
    batch = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    batch.append(0, int(time.time() * 1000), None, value, [])
    make: Any = produce_v9
    partition = make.PartitionProduceData(index=0, records=bytes(batch.build()))
    topics = (make.TopicProduceData(name=topic, partition_data=(partition,)),)
    request = make.ProduceRequest(transactional_id=None, acks=1, timeout=_TIMEOUT, topic_data=topics)
    body = io.BytesIO()
    entity_writer(make.ProduceRequest)(body, request)
    header = struct.pack(">hhih", _PRODUCE, _VERSION, 1, len(_CLIENT_ID)) + _CLIENT_ID + b"\0"
    return struct.pack(">i", len(header) + len(body.getvalue())) + header + body.getvalue()


def is_accepted(topic: str, frame: bytes) -> bool:
    """Whether a whole response to `produce_request` has no error. Source: ProduceResponse.json v9"""
    # Size, correlation id, tags; one topic, its name; one partition, its index.
    at = 4 + 4 + 1 + 1 + 1 + len(topic) + 1 + 4
    return frame[at : at + 2] == b"\0\0"


class _Client(asyncio.Protocol):
    """Sends a request after each response, until its share is done."""

    def __init__(self, topic: str, request: bytes) -> None:
        self._topic, self._request = topic, request
        self._answer = b""
        self._left = 0
        self.took_s: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def begin(self, requests: int) -> asyncio.Future[None]:
        """Send requests, one after the other. Returns: a future that ends with the last response."""
        self._left = requests
        self.took_s = []
        self.done = asyncio.get_running_loop().create_future()
        self._ask()
        return self.done

    def _ask(self) -> None:
        self._began_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if len(self._answer) < 4 or len(self._answer) < 4 + int.from_bytes(self._answer[:4], "big"):
            return
        self.took_s.append(time.perf_counter() - self._began_s)
        answer, self._answer = self._answer, b""
        self._left -= 1
        if not is_accepted(self._topic, answer):
            self.done.set_exception(BenchError(f"a record was refused: {answer!r}"))
        elif self._left:
            self._ask()
        else:
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(BenchError(f"the server closed a client's connection: {exc}"))


async def _find_leader(servers: str, broker_id: BrokerId, context: ssl.SSLContext | None) -> Endpoint:
    """The address at which clients reach a broker."""
    at = parse_endpoint(servers.split(",")[0])
    reader, writer = await asyncio.open_connection(at.host, at.port, ssl=context)
    table = await ask((reader, writer))
    writer.close()
    return table[broker_id]


class ConcurrentClients:
    """Clients that are connected to the leader of a topic of one partition; for one thread.

    Args:   security: settings of librdkafka, for listeners that require them.
    Raises: BenchError, OSError: a connection or request fails; from every method.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        broker_id: BrokerId,
        connections: int,
        size_bytes: int,
        security: Mapping[str, str],
    ) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        request = produce_request(topic, random.randbytes(size_bytes))
        self._clients: list[_Client] = self._runner.run(
            self._connect(servers, topic, broker_id, connections, request, client_context(security))
        )

    async def _connect(
        self,
        servers: str,
        topic: str,
        broker_id: BrokerId,
        connections: int,
        request: bytes,
        context: ssl.SSLContext | None,
    ) -> list[_Client]:
        at = await _find_leader(servers, broker_id, context)
        loop = asyncio.get_running_loop()
        made = [
            await loop.create_connection(lambda: _Client(topic, request), at.host, at.port, ssl=context)
            for _ in range(connections)
        ]
        return [protocol for _, protocol in made]

    def ask(self, each: int) -> list[float]:
        """Have every client send `each` requests. Returns: the seconds that each response took."""

        async def ask_all() -> None:
            async with asyncio.timeout(_LIMIT_S):
                await asyncio.gather(*(client.begin(each) for client in self._clients))

        self._runner.run(ask_all())
        return [took_s for client in self._clients for took_s in client.took_s]
