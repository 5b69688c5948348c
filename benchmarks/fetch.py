"""CPU time of one complete Fetch response without addresses, and of one with addresses; prints JSON.

    python -m benchmarks.fetch [--rounds 7] [--version 16]

`session_us` is all the work of a session for the request and the response, with the one copy to the client.
The best round counts, because it is the least disturbed by other work of the machine.
"""

from __future__ import annotations

import argparse
import json
import struct

from benchmarks.patch_metadata import Limits, cpu_us, directory, real_host
from fleet.proxy.addresses import AddressSource
from fleet.proxy.session import Session
from fleet.proxy.wire.counters import WireCounters
from fleet.proxy.wire.primitives import compact_string, encode_varint

RECORDS_BYTES = 1_000
HEAD_BYTES = 74
"""What is before the records in a response with one partition: brokers write these bytes by themselves."""
CASES = ((1, 0), (2, 0), (100, 0), (1, 3))
"""Numbers of partitions and of endpoints."""


def response(partitions: int, endpoints: int) -> bytes:
    """A response of Fetch v13 to v18; it can have endpoints from v16 on. Source: FetchResponse.json"""
    records = encode_varint(RECORDS_BYTES + 1) + bytes(RECORDS_BYTES)
    each = bytes(30) + b"\x01" + struct.pack(">i", -1) + records + b"\0"
    body = struct.pack(">i", 7) + b"\0" + bytes(10)
    body += b"\x02" + bytes(16) + encode_varint(partitions + 1) + each * partitions + b"\0"
    if endpoints:
        nodes = encode_varint(endpoints + 1)
        for broker_id in range(1, endpoints + 1):
            nodes += struct.pack(">i", broker_id) + compact_string(real_host(broker_id))
            nodes += struct.pack(">i", 9092) + compact_string("eu-west-1a") + b"\0"
        body += b"\x01\0" + encode_varint(len(nodes)) + nodes
    else:
        body += b"\0"
    return struct.pack(">i", len(body)) + body


def measure(version: int, partitions: int, endpoints: int, rounds: int) -> dict[str, float]:
    frame = response(partitions, endpoints)
    session = Session(AddressSource(directory(3), "external", "p1"), Limits(), WireCounters(), "192.0.2.7")
    request = struct.pack(">ihhih", 14, 1, version, 7, 4) + b"test"
    written: list[bytes | memoryview] = []

    def pass_one() -> None:
        written.clear()
        session.receive_from_client(request)
        session.receive_from_broker(frame, written.append)

    return {
        "partitions": partitions,
        "endpoints": endpoints,
        "bytes": len(frame),
        "session_us": cpu_us(pass_one, rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--version", type=int, default=16)
    options = parser.parse_args()
    measured = [measure(options.version, *case, options.rounds) for case in CASES]
    print(json.dumps({f"fetch_v{options.version}": measured}, indent=2))


if __name__ == "__main__":
    main()
