"""The fast path recognizes the usual shapes of Produce, with the result of the full path."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.core.errors import WireError
from fleet.proxy.wire._tables import APIS, PATCHED
from fleet.proxy.wire.addresses import Layout
from fleet.proxy.wire.api_versions import PRODUCE
from fleet.proxy.wire.primitives import OUT_OF_BYTES
from fleet.proxy.wire.produce import FIRST_FLEXIBLE_PRODUCE, PRODUCE_RECOGNIZERS
from fleet.proxy.wire.requests import LAYOUTS, RECOGNIZERS
from tests.examples import examples
from tests.property import kio_samples
from tests.property.wire_fleet import Play, produce

RESPONSES = sorted(PRODUCE_RECOGNIZERS)
IN_PLACE = range(FIRST_FLEXIBLE_PRODUCE, APIS[PRODUCE].max_version + 1)
NAMES = st.text("abcXYZ019._-", min_size=1, max_size=126).map(str.encode)


def response(version: int, name: bytes, partition: bytes, tail: bytes) -> bytes:
    topic = name.ljust(16, b"\x01")[:16] if version >= 13 else bytes((len(name) + 1,)) + name
    body = b"\0\0\0\x07\0\x02" + topic + b"\x02" + partition + b"\x01\0\0\0" + tail
    return struct.pack(">i", len(body)) + body


def addresses_in(version: int, frame: bytes) -> int | None:
    """The number of segments after patching; None if the response is refused."""
    (patch,) = [
        layout.patch
        for key, low, high, layout in PATCHED
        if key == PRODUCE and low <= version <= high and isinstance(layout, Layout)
    ]
    parts: list[bytes | memoryview] = [b""]
    try:
        patch(memoryview(frame), Play.new().source.book.client(b""), parts)
    except (*OUT_OF_BYTES, WireError):
        return None
    return len(parts) - 1


def test_every_patched_version_has_its_shape() -> None:
    assert {
        version for key, low, high, _ in PATCHED if key == PRODUCE for version in range(low, high + 1)
    } == {*RESPONSES}
    layouts = [layout for layout, known in zip(LAYOUTS, RECOGNIZERS, strict=True) if known]
    assert [layout and layout.name for layout in layouts] == [
        "produce_v10",
        "produce_v13",
        "fetch_v16",
    ]
    assert APIS[PRODUCE].first_flexible == FIRST_FLEXIBLE_PRODUCE


@pytest.mark.parametrize("version", RESPONSES)
@given(name=NAMES, partition=st.binary(min_size=30, max_size=30), throttle=st.binary(min_size=4, max_size=4))
def test_the_answer_to_one_batch_is_recognized(
    version: int, name: bytes, partition: bytes, throttle: bytes
) -> None:
    frame = response(version, name, partition, throttle + b"\0")
    assert PRODUCE_RECOGNIZERS[version].passes(b"before" + frame + b"after", 6, 6 + len(frame))
    assert addresses_in(version, frame) == 0


@pytest.mark.parametrize("version", RESPONSES)
def test_short_request_is_examined_no_further(version: int) -> None:
    """Found in a review: the end of a frame was read beyond the buffer, where a new frame has no bytes."""
    for size in range(8, 60):
        assert not PRODUCE_RECOGNIZERS[version].passes(bytes(size), 0, size)


@pytest.mark.parametrize("version", RESPONSES)
@settings(max_examples=examples(400), deadline=None)
@given(
    name=NAMES,
    tail=st.binary(max_size=12),
    changes=st.dictionaries(st.integers(8, 60), st.integers(0, 255), max_size=3),
)
@example(name=b"-" * 44, tail=b"\0" * 5, changes={11: 0x2D, 10: 0xAD})
def test_recognized_request_has_no_address(
    version: int, name: bytes, tail: bytes, changes: dict[int, int]
) -> None:
    frame = bytearray(response(version, name, b"\0" * 30, tail))
    for position, value in changes.items():
        if position < len(frame):
            frame[position] = value
    if PRODUCE_RECOGNIZERS[version].passes(bytes(frame), 0, len(frame)):
        assert addresses_in(version, bytes(frame)) == 0


@pytest.mark.parametrize("version", RESPONSES)
@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_response_with_endpoints_is_recognized(version: int, seed: int) -> None:
    frame = kio_samples.frame(kio_samples.make(PRODUCE, version, seed), 7)
    if PRODUCE_RECOGNIZERS[version].passes(bytes(frame), 0, len(frame)):
        assert addresses_in(version, frame) == 0


@pytest.mark.parametrize("version", IN_PLACE)
@pytest.mark.parametrize("transactional_id", [None, "", "t", "t" * 100])
@pytest.mark.parametrize("acks", [-1, 0, 1, 256])
def test_acks_is_found_at_every_position(version: int, transactional_id: str | None, acks: int) -> None:
    play = Play.new()
    play.client(produce(version, 5, acks, b"records", transactional_id))
    assert play.session.in_flight == (acks != 0)
