"""Varints and tagged fields."""

from __future__ import annotations

import pytest

from fleet.core.errors import MalformedFrame
from fleet.proxy.wire.primitives import (
    MAX_TAGS_PER_SECTION,
    OUT_OF_BYTES,
    classic_string,
    compact_string,
    encode_varint,
    read_varint,
    reject_negative_length,
    skip_tags,
)

VALUES = (0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, 0x1FFFFF, 0x200000, 0xFFFFFFF, 0x10000000, 0x7FFFFFFF)


@pytest.mark.parametrize("value", VALUES)
def test_varints_there_and_back(value: int) -> None:
    encoded = encode_varint(value)
    assert len(encoded) == max(1, -(-value.bit_length() // 7))
    assert read_varint(memoryview(b"\xff" + encoded + b"\xff"), 1) == (value, 1 + len(encoded))
    for cut in range(len(encoded)):
        with pytest.raises(OUT_OF_BYTES):
            read_varint(memoryview(encoded[:cut]), 0)


@pytest.mark.parametrize(
    "encoded", [b"\x80" * 5 + b"\0", b"\xff" * 9, b"\xff\xff\xff\xff\x08", b"\x80\x80\x80\x80\x10"]
)
def test_invalid_varints_are_refused(encoded: bytes) -> None:
    with pytest.raises(MalformedFrame) as caught:
        read_varint(memoryview(encoded), 0, "client")
    assert caught.value.peer == "client"


def test_any_tags_are_skipped() -> None:
    assert skip_tags(memoryview(b"\0rest"), 0) == 1
    section = b"\x03" + b"\0\0" + b"\x05\x02ab" + b"\xe8\x07\xac\x02" + b"x" * 300
    assert skip_tags(memoryview(b"?" + section + b"rest"), 1) == 1 + len(section)


def test_giant_count_of_tags_is_refused() -> None:
    for count in (b"\xff\xff\xff\xff\x07", encode_varint(MAX_TAGS_PER_SECTION + 1)):
        with pytest.raises(MalformedFrame, match="tagged fields in one section"):
            skip_tags(memoryview(count + b"\0" * 64), 0)
    with pytest.raises(OUT_OF_BYTES):
        skip_tags(memoryview(encode_varint(MAX_TAGS_PER_SECTION) + b"\0" * 64), 0)


def test_lengths_below_null_are_refused() -> None:
    with pytest.raises(MalformedFrame):
        reject_negative_length(-2, 7)


def test_strings_are_encoded_with_their_length() -> None:
    assert compact_string("é") == b"\x03\xc3\xa9"
    assert compact_string("h" * 127) == b"\x80\x01" + b"h" * 127
    assert classic_string("é") == b"\0\x02\xc3\xa9"
    assert classic_string("") == b"\0\0"
