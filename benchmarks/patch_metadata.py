"""CPU time of rewriting one Metadata v12 response, compared with decoding and encoding it; prints JSON.

    python benchmarks/patch_metadata.py [--rounds 7]

`patch_us` is the patching alone, which depends on the number of brokers. `session_us` is all the work of a
session for the response, with the one copy of its tail to the client, in reads of 256 KiB. `kio_us` is kio's
decoding and encoding. The best round counts, because it is the least disturbed by other work of the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import io
import json
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12 import response as v12
from kio.serial import entity_reader, entity_writer

sys.path.insert(0, str(Path(__file__).parent.parent))

from fleet.core.model import AdvertisedListener, Broker, Directory, IdentitySpace, Member
from fleet.proxy.addresses import AddressSource
from fleet.proxy.session import Session
from fleet.proxy.wire._tables import metadata_v9
from fleet.proxy.wire.addresses import Parts
from fleet.proxy.wire.counters import WireCounters

READ_BYTES = 256 * 1024
CASES = ((3, 10), (3, 10_000), (100, 10_000))
REQUEST = struct.pack(">ihhih", 14, 3, 12, 7, 4) + b"test"


@dataclasses.dataclass(frozen=True)
class Limits:
    max_request_bytes: int = 100 << 20
    max_patched_response_bytes: int = 64 << 20


def real_host(broker_id: int) -> str:
    return f"kafka-{broker_id}.brokers.example.org"


def response(
    brokers: int, partitions: int, host_of: Callable[[int], str] = real_host, port: int = 9092
) -> bytes:
    """A broker's response for one topic that has all the partitions, three replicas each."""
    make: Any = v12
    entity = make.MetadataResponse(
        throttle_time=datetime.timedelta(0),
        brokers=tuple(
            make.MetadataResponseBroker(node_id=n, host=host_of(n), port=port, rack="eu-west-1a")
            for n in range(1, brokers + 1)
        ),
        cluster_id="4L6g3nShT-eMCtK--X86sw",
        controller_id=1,
        topics=(
            make.MetadataResponseTopic(
                error_code=ErrorCode.none,
                name="events",
                topic_id=None,
                partitions=tuple(
                    make.MetadataResponsePartition(
                        error_code=ErrorCode.none,
                        partition_index=n,
                        leader_id=n % brokers + 1,
                        leader_epoch=5,
                        replica_nodes=(1, 2, 3),
                        isr_nodes=(1, 2, 3),
                        offline_replicas=(),
                    )
                    for n in range(partitions)
                ),
            ),
        ),
    )
    buffer = io.BytesIO()
    entity_writer(make.MetadataResponse)(buffer, entity)
    return struct.pack(">iib", len(buffer.getvalue()) + 5, 7, 0) + buffer.getvalue()


def directory(brokers: int) -> Directory:
    """Three members that share the identities."""
    members = {
        name: Member(
            name,
            listeners=(AdvertisedListener("external", f"{name}.proxies.example.org", 9100, 9101),),
            identities=IdentitySpace(1, 128),
        )
        for name in ("p1", "p2", "p3")
    }
    return Directory(
        advertised={n: (f"p{n % 3 + 1}",) for n in range(1, brokers + 1)},
        members=members,
        brokers={n: Broker(n, real_host(n), 9092, "eu-west-1a") for n in range(1, brokers + 1)},
    )


def cpu_us(action: Callable[[], object], rounds: int) -> float:
    """CPU microseconds of one call in the best round; a round has as many calls as fill 20 ms."""
    began_s = time.process_time()
    action()
    calls = max(1, min(2_000, int(0.02 / max(time.process_time() - began_s, 1e-6))))
    best_s = float("inf")
    for _ in range(rounds):
        began_s = time.process_time()
        for _ in range(calls):
            action()
        best_s = min(best_s, (time.process_time() - began_s) / calls)
    return round(best_s * 1e6, 2)


def measure(brokers: int, partitions: int, rounds: int) -> dict[str, float]:
    frame = response(brokers, partitions)
    source = AddressSource(directory(brokers), "external", "p1")
    addresses = source.book.client(b"192.0.2.7\0test")
    view = memoryview(bytearray(frame))
    session = Session(source, Limits(), WireCounters(), "192.0.2.7")
    reads = [frame[at : at + READ_BYTES] for at in range(0, len(frame), READ_BYTES)]
    written: list[bytes | memoryview] = []

    def patch() -> None:
        parts: Parts = []
        mark = metadata_v9(view[:READ_BYTES], addresses, parts)
        assert mark
        b"".join(parts)

    def whole() -> None:
        written.clear()
        session.receive_from_client(REQUEST)
        for read in reads:
            session.receive_from_broker(read, written.append)

    def decode_and_encode() -> None:
        entity, _ = entity_reader(v12.MetadataResponse)(memoryview(frame), 9)
        entity_writer(v12.MetadataResponse)(io.BytesIO(), entity)

    return {
        "brokers": brokers,
        "partitions": partitions,
        "bytes": len(frame),
        "patch_us": cpu_us(patch, rounds),
        "session_us": cpu_us(whole, rounds),
        "kio_us": cpu_us(decode_and_encode, rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print(json.dumps({"metadata_v12": [measure(*case, rounds) for case in CASES]}, indent=2))


if __name__ == "__main__":
    main()
