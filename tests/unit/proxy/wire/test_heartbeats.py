"""The response that makes a member of a group look for its coordinator, as kio reads it."""

from __future__ import annotations

import importlib

import pytest
from kio.serial import entity_reader

from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.heartbeats import HEARTBEATS, build_not_coordinator

NAMES = {12: "heartbeat", 68: "consumer_group_heartbeat", 76: "share_group_heartbeat"}
CASES = [
    (key, version)
    for key in sorted(HEARTBEATS)
    for version in range(APIS[key].min_version, APIS[key].max_version + 1)
]


@pytest.mark.parametrize(("key", "version"), CASES)
def test_kio_reads_the_answer_to_its_last_byte(key: int, version: int) -> None:
    module = importlib.import_module(f"kio.schema.{NAMES[key]}.v{version}.response")
    kind = next(value for name, value in vars(module).items() if name.endswith("HeartbeatResponse"))
    raw = build_not_coordinator(key, version, 0x89ABCDEF)
    assert int.from_bytes(raw[:4], "big") == len(raw) - 4
    header, at = entity_reader(kind.__header_schema__)(raw, 4)
    assert header.correlation_id & 0xFFFFFFFF == 0x89ABCDEF
    body, read = entity_reader(kind)(raw, 4 + at)
    assert body.error_code.name == "not_coordinator"
    assert 4 + at + read == len(raw)
