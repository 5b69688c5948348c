"""Scripted brokers: one process that answers for all of them, from memory.

    python -m benchmarks.scripted PORT BROKERS PARTITIONS [CERTIFICATE]

Broker N is at `host_of(N)`, and one topic has all the partitions. The process knows ApiVersions and Metadata,
in the versions of a fleet (0 and 5) and of the clients in `storm.py` (12). It acknowledges the requests of
`frames.produce`, and has no records for Fetch. With a certificate (PEM, with its key) it speaks TLS.
"""

from __future__ import annotations

import asyncio
import io
import ssl
import struct
import sys
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast

import uvloop
from kio.schema.api_versions.v0 import response as api_versions_v0
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v5 import response as metadata_v5
from kio.serial import entity_writer

from benchmarks.frames import FETCH, METADATA, PRODUCE, nothing_fetched, produced
from benchmarks.patch_metadata import response
from fleet.proxy.wire.api_versions import API_VERSIONS
from fleet.proxy.wire.primitives import skip_tags

VERSION, OLD_VERSION = 12, 5
"""Versions of Metadata: the clients' and the fleet's."""
_BACKLOG: Final = 4096


def host_of(broker_id: int) -> str:
    """An address of this machine."""
    return f"127.1.{broker_id >> 8}.{broker_id & 255}"


class ScriptedResponses:
    """The brokers' responses.

    Args: port: of each broker.
    """

    def __init__(self, port: int, brokers: int, partitions: int) -> None:
        # Without the length and the correlation id, which differ between responses.
        self._everything = response(brokers, partitions, host_of, port)[8:]
        self._brokers = response(brokers, 0, host_of, port)[8:]
        self._old = _encode(_metadata_v5(port, brokers))
        self._api_versions = _encode(_api_versions())
        self._produced = produced()[8:]
        self._nothing_fetched = nothing_fetched()[8:]

    def to(self, request: bytes) -> tuple[bytes, bytes]:
        """The response to a whole frame, in two parts: length and correlation id, and the rest."""
        key, version, correlation_id, client_id_bytes = struct.unpack_from(">hhih", request, 4)
        if key == API_VERSIONS:
            body = self._api_versions
        elif key == PRODUCE:
            body = self._produced
        elif key == FETCH:
            body = self._nothing_fetched
        elif version == OLD_VERSION:
            body = self._old
        else:
            topics = skip_tags(memoryview(request), 14 + max(0, client_id_bytes))
            body = self._everything if request[topics] == 0 else self._brokers
        return struct.pack(">ii", 4 + len(body), correlation_id), body


def _encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def _api_versions() -> Any:
    make: Any = api_versions_v0
    known = ((METADATA, OLD_VERSION, VERSION), (API_VERSIONS, 0, 0))
    keys = (make.ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in known)
    return make.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=tuple(keys))


def _metadata_v5(port: int, brokers: int) -> Any:
    make: Any = metadata_v5
    known = range(1, brokers + 1)
    return make.MetadataResponse(
        throttle_time=timedelta(0),
        brokers=tuple(make.MetadataResponseBroker(node_id=n, host=host_of(n), port=port) for n in known),
        cluster_id="4L6g3nShT-eMCtK--X86sw",
        controller_id=1,
        topics=(),
    )


class _BrokerConnection(asyncio.Protocol):
    """One connection to any of the brokers."""

    def __init__(self, answers: ScriptedResponses) -> None:
        self._answers = answers
        self._kept = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._kept += data
        while len(self._kept) >= 4 and len(self._kept) >= (end := 4 + int.from_bytes(self._kept[:4], "big")):
            self._transport.writelines(self._answers.to(self._kept[:end]))
            self._kept = self._kept[end:]


async def serve(port: int, brokers: int, partitions: int, certificate: str | None = None) -> None:
    """Answer until killed."""
    made = partial(_BrokerConnection, ScriptedResponses(port, brokers, partitions))
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    loop = asyncio.get_running_loop()
    await loop.create_server(made, "0.0.0.0", port, backlog=_BACKLOG, ssl=context)
    await asyncio.Event().wait()


if __name__ == "__main__":
    _port, _brokers, _partitions = map(int, sys.argv[1:4])
    uvloop.run(serve(_port, _brokers, _partitions, *sys.argv[4:]))
