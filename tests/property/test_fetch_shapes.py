"""The fast path recognizes exactly those usual Fetch responses that the full walk leaves unchanged."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.core.errors import WireError
from fleet.proxy.wire._tables import PATCHED
from fleet.proxy.wire.addresses import Streamed
from fleet.proxy.wire.fetch import FETCH, FETCH_RECOGNIZERS, NO_TAGS_BYTES
from fleet.proxy.wire.primitives import OUT_OF_BYTES, encode_varint
from fleet.proxy.wire.scan import FieldBudget
from fleet.proxy.wire.tail import rewrite
from tests.examples import examples
from tests.property import kio_samples
from tests.property.wire_fleet import Play

(RECOGNIZE,) = FETCH_RECOGNIZERS.values()


def response(partition: bytes, aborted: bytes, records: bytes, tail: bytes = b"\0\0\0") -> bytes:
    body = struct.pack(">i", 7) + b"\0" + b"\0" * 10 + b"\x02" + b"t" * 16 + b"\x02"
    body += partition + aborted + b"\xff" * 4 + records + tail
    return struct.pack(">i", len(body)) + body


def bent(records: bytes, aborted: bytes, tail: bytes, changes: dict[int, int], size: int | None) -> bytes:
    """A response whose records may claim another size, with some bytes changed."""
    length = encode_varint(len(records) + 1 if size is None else size)
    frame = bytearray(response(b"\0" * 30, aborted, length + records, tail))
    for position, value in changes.items():
        if position < len(frame):
            frame[position] = value
    return bytes(frame)


def stays(frame: bytes) -> bool:
    """Whether the full walk ends with the frame, and finds nothing to rewrite."""
    (layout,) = [layout for key, _, _, layout in PATCHED if key == FETCH]
    assert isinstance(layout, Streamed)
    try:
        next(layout.scan(memoryview(frame), 0, len(frame), FieldBudget()))
    except StopIteration as ended:
        try:
            tail = memoryview(frame)[ended.value :]
            return rewrite(tail, layout, Play.new().source.book.client(b"")) is None
        except (*OUT_OF_BYTES, WireError):
            return False
    except WireError:
        return False
    return False


def recognized(frame: bytes) -> bool:
    try:
        return bool(RECOGNIZE.passes(b"before" + frame + b"after" * 30, 6, 6 + len(frame)))
    except WireError:
        return False


def test_every_layout_has_its_shape() -> None:
    assert {first for key, first, _, _ in PATCHED if key == FETCH} == {*FETCH_RECOGNIZERS}


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 128, 16_381, 16_382, 16_383, 16_384, 2_097_152])
@pytest.mark.parametrize("aborted", [b"\0", b"\x01"])
def test_partition_is_recognized(length: int, aborted: bytes) -> None:
    frame = response(b"\xab" * 30, aborted, encode_varint(length + 1) + b"\xff" * length)
    assert recognized(frame)
    assert stays(frame)


def test_no_records_and_no_partitions_are_recognized() -> None:
    assert recognized(response(b"\0" * 30, b"\0", b"\0"))
    body = struct.pack(">i", 7) + b"\0" + b"\0" * 10 + b"\x01\0"
    empty = struct.pack(">i", len(body)) + body
    assert recognized(empty)
    assert stays(empty)


@settings(max_examples=examples(600), deadline=None)
@given(
    records=st.binary(max_size=300),
    aborted=st.sampled_from([b"\0", b"\x01", b"\x02" + b"a" * 16 + b"\0"]),
    tail=st.one_of(st.just(b"\0\0\0"), st.binary(max_size=80)),
    changes=st.dictionaries(st.integers(8, 80), st.integers(0, 255), max_size=3),
    size=st.one_of(st.none(), st.integers(0, 2**31)),
)
@example(records=b"", aborted=b"\0", tail=b"\0\0\0", changes={72: 0}, size=None)
def test_recognized_response_stays_unchanged(
    records: bytes, aborted: bytes, tail: bytes, changes: dict[int, int], size: int | None
) -> None:
    frame = bent(records, aborted, tail, changes, size)
    if recognized(frame):
        assert stays(frame)


HEAD_BYTES = 73
"""The number of bytes before the length of the records."""


@pytest.mark.parametrize("length", [0, 1, 126, 127, 16_382, 16_383, 2_097_152])
def test_partition_is_recognized_with_its_record_length(length: int) -> None:
    # Found: brokers write the records separately, so at ten responses per second every tenth response came in
    # two
    # reads, and took the full walk.
    frame = response(b"\xab" * 30, b"\x01", encode_varint(length + 1) + b"\xff" * length)
    varint_bytes = len(encode_varint(length + 1))
    known_bytes = HEAD_BYTES - 1 + varint_bytes
    for read in (*range(min(HEAD_BYTES + 8, len(frame))), len(frame) // 2, len(frame)):
        arrived = b"before" + frame[:read]
        passes_prefix = RECOGNIZE.passes_prefix(arrived, 6, 6 + len(frame), len(arrived))
        assert passes_prefix == (known_bytes <= read), read


@settings(max_examples=examples(600), deadline=None)
@given(
    records=st.binary(max_size=300),
    aborted=st.sampled_from([b"\0", b"\x01", b"\x02" + b"a" * 16 + b"\0"]),
    tail=st.one_of(st.just(b"\0\0\0"), st.binary(min_size=3, max_size=3), st.binary(max_size=80)),
    changes=st.dictionaries(st.integers(8, 80), st.integers(0, 255), max_size=3),
    size=st.one_of(st.none(), st.integers(0, 2**31)),
    read=st.integers(0, 400),
)
@example(records=b"r", aborted=b"\0", tail=b"\0\0\0", changes={}, size=None, read=73)
def test_response_recognized_by_its_head_keeps_its_zero_tail(
    records: bytes, aborted: bytes, tail: bytes, changes: dict[int, int], size: int | None, read: int
) -> None:
    frame = bent(records, aborted, tail, changes, size)
    arrived = frame[:read]
    try:
        passes_prefix = RECOGNIZE.passes_prefix(arrived, 0, len(frame), len(arrived))
    except WireError:
        assert not stays(frame)
        return
    if passes_prefix:
        assert stays(frame) == (not any(frame[-NO_TAGS_BYTES:]))


@pytest.mark.parametrize("version", [16, 18])
@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_response_with_endpoints_is_recognized(version: int, seed: int) -> None:
    frame = kio_samples.frame(kio_samples.make(FETCH, version, seed), 7)
    if recognized(frame):
        assert stays(frame)
