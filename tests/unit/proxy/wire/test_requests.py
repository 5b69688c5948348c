"""The entries for requests in flight, and the fields that are read of three APIs."""

from __future__ import annotations

import datetime
import importlib
import io
import struct

import pytest
from kio.serial import entity_writer

from fleet.core.errors import MalformedFrame
from fleet.proxy.wire._tables import APIS, PATCHED
from fleet.proxy.wire.primitives import OUT_OF_BYTES
from fleet.proxy.wire.produce import produce_acks
from fleet.proxy.wire.requests import (
    API_KEYS,
    CORRELATION_MASK,
    LAYOUT_SHIFT,
    LAYOUTS,
    RESPONSE_LAYOUT_TABLE,
    RESPONSE_LAYOUTS,
    UNKNOWN_API_VERSIONS,
    UNLISTED,
    VERSIONS_PER_API,
)
from tests.property.wire_fleet import produce, request


def test_exactly_the_offered_versions_have_a_layout() -> None:
    offered = {
        key << 16 | version
        for key, api in APIS.items()
        for version in range(api.min_version, api.max_version + 1)
    }
    assert set(RESPONSE_LAYOUTS) == offered


def test_layout_table_has_exactly_the_offered_versions() -> None:
    found = {
        place // VERSIONS_PER_API << 16 | place % VERSIONS_PER_API: response_layout
        for place, response_layout in enumerate(RESPONSE_LAYOUT_TABLE)
        if response_layout != UNLISTED
    }
    assert found == RESPONSE_LAYOUTS


def test_layouts_leave_room_for_a_correlation_id() -> None:
    for api, response_layout in RESPONSE_LAYOUTS.items():
        if response_layout < 0:
            assert api >> 16 in (0, 12, 18, 68, 76)
            response_layout = -1 - response_layout
        assert response_layout & CORRELATION_MASK == 0
        layout = LAYOUTS[response_layout >> LAYOUT_SHIFT]
        expected = [row for row in PATCHED if row[0] == api >> 16 and row[1] <= api & 0xFFFF <= row[2]]
        if api >> 16 == 18:
            assert layout is not None
            assert layout.name == ("api_versions_v3" if api & 0xFFFF >= 3 else "api_versions_v0")
        else:
            assert (layout and layout.name) == (expected[0][3].name if expected else None)
            asks_again = api >> 16 == 10 and api & 0xFFFF <= 2
            assert (layout is (expected[0][3] if expected else None)) is not asks_again
            assert API_KEYS[response_layout >> LAYOUT_SHIFT] == (api >> 16 if expected else API_KEYS[0])
    unknown = LAYOUTS[UNKNOWN_API_VERSIONS >> LAYOUT_SHIFT]
    assert unknown is not None
    assert unknown.name == "api_versions_unknown"


@pytest.mark.parametrize("version", range(3, 14))
def test_acks_is_read_where_kio_writes_acks(version: int) -> None:
    module = importlib.import_module(f"kio.schema.produce.v{version}.request")
    for acks in (-1, 0, 1, 513):
        for transactional_id in (None, "", "t" * 200):
            buffer = io.BytesIO()
            entity = module.ProduceRequest(
                transactional_id=transactional_id,
                acks=acks,
                timeout=datetime.timedelta(seconds=3),
                topic_data=(),
            )
            entity_writer(module.ProduceRequest)(buffer, entity)
            tags = b"\0" if version >= 9 else b""
            frame = memoryview(request(0, version, 1, tags + buffer.getvalue(), b"cid"))
            assert produce_acks(frame, version, 3) == acks


def test_acks_beyond_the_received_bytes_waits() -> None:
    for version in (8, 9):
        whole = produce(version, 1, 1, b"", "tx")
        end = len(whole) - 4
        assert produce_acks(memoryview(whole)[:end], version, 6) == 1
        for cut in range(14, end):
            with pytest.raises(OUT_OF_BYTES):
                produce_acks(memoryview(whole)[:cut], version, 6)


def test_transactional_id_of_negative_length_is_refused() -> None:
    with pytest.raises(MalformedFrame) as caught:
        produce_acks(memoryview(request(0, 8, 1, struct.pack(">hh", -2, 1), None)), 8, -1)
    assert caught.value.peer == "client"
