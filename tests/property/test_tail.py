"""The end of Fetch and ShareFetch responses keeps its length, whatever it contains."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.core.errors import MalformedFrame
from fleet.proxy.wire._tables import PATCHED
from fleet.proxy.wire.addresses import Address, Addresses, Streamed
from fleet.proxy.wire.primitives import OUT_OF_BYTES, compact_string, encode_varint, read_varint
from fleet.proxy.wire.tail import TAIL_LIMIT_BYTES, TaggedField, blank_head, fit, padding_head, rewrite
from tests.examples import examples
from tests.property import kio_samples

LAYOUTS = {key: layout for key, _, _, layout in PATCHED if isinstance(layout, Streamed)}
FETCH, SHARE_FETCH = LAYOUTS[1], LAYOUTS[78]
OURS = "proxy-1.example"
IMPOSSIBLE_LENGTHS = (130, 16_387, 2_097_156)
"""Impossible lengths of one tagged field with a tag of one byte: the length would need another byte."""


class OneAddress(Addresses):
    """One address for every broker."""

    __slots__ = ()

    def __missing__(self, broker_id: int) -> Address:
        return Address(compact_string(OURS) + struct.pack(">i", 9101), b"", b"", b"")


def endpoint(broker_id: int, host: str, port: int, rack: bytes = b"\0", tags: bytes = b"\0") -> bytes:
    return struct.pack(">i", broker_id) + compact_string(host) + struct.pack(">i", port) + rack + tags


def array(*endpoints: bytes) -> bytes:
    return encode_varint(len(endpoints) + 1) + b"".join(endpoints)


def tagged(tag: int, value: bytes) -> bytes:
    return encode_varint(tag) + encode_varint(len(value)) + value


def section(*fields: bytes) -> bytes:
    return encode_varint(len(fields)) + b"".join(fields)


def tail_of(layout: Streamed, nodes: bytes, *others: bytes) -> bytes:
    """The tail with an array of addresses and other tagged fields."""
    return section(tagged(0, nodes), *others) if layout is FETCH else nodes + section(*others)


def fields_of(layout: Streamed, tail: bytes) -> tuple[bytes, list[tuple[int, bytes]]]:
    """The array, and the other tagged fields by number. Fails if they do not fill the tail."""
    buf, pos, nodes, fields = memoryview(tail), 0, b"", []
    if layout is SHARE_FETCH:
        pos = layout.endpoints(buf, 0, OneAddress(), [])[1]
        nodes = tail[:pos]
    count, pos = read_varint(buf, pos)
    for _ in range(count):
        tag, pos = read_varint(buf, pos)
        size, pos = read_varint(buf, pos)
        value, pos = tail[pos : pos + size], pos + size
        if tag == layout.tag:
            nodes = value
        else:
            fields.append((tag, value))
    assert pos == len(tail)
    return nodes, fields


def rewritten(layout: Streamed, tail: bytes) -> bytes:
    found = rewrite(memoryview(tail), layout, OneAddress())
    assert found is not None
    assert len(found) == len(tail)
    return found


@pytest.mark.parametrize("kept", [b"", b"\x03\x02ab"])
def test_padding_fills_any_length_except_one(kept: bytes) -> None:
    fields = [TaggedField(3, kept)] if kept else []
    for size in (*range(300), *range(16_370, 16_400), *range(65_500, 65_560)):
        filled = fit(b"", fields, size)
        room = size - 1 - len(kept)
        assert (filled is not None) == (room == 0 or room >= 2)
        assert filled == kio_samples.padded(b"", kept, size)


def test_a_field_has_any_length_but_a_few() -> None:
    for size in (*range(-3, 300), *range(16_380, 16_395), *IMPOSSIBLE_LENGTHS):
        head = padding_head(126, size)
        assert bool(head) == (size >= 2 and size not in IMPOSSIBLE_LENGTHS)
        if head:
            tag, pos = read_varint(memoryview(head), 0)
            assert (tag, sum(read_varint(memoryview(head), pos))) == (126, size)


def test_padding_accounts_for_a_longer_count() -> None:
    """With 127 fields, one more makes the count longer by a byte."""
    fields = [TaggedField(tag, tagged(tag, b"")) for tag in range(1, 128) if tag != 100]
    for room in range(0, 8):
        filled = fit(b"", fields, 1 + 2 * len(fields) + room)
        assert (filled is None) == (room == 1)
        fields_of(FETCH, filled or section())
    full = [TaggedField(tag, tagged(tag, b"")) for tag in range(1, 128)]
    assert fit(b"", full, 1 + 2 * len(full)) == section(*(each.encoded for each in full))
    assert fit(b"", full, 9 + 2 * len(full)) is None, "no number of one byte is left"


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@given(
    lengths=st.lists(
        st.sampled_from([*range(len(OURS) - 2, len(OURS) + 5), 1, 126, 127, 143, 300]), min_size=1, max_size=4
    ),
    others=st.dictionaries(st.sampled_from([1, 5, 125, 126, 127, 128, 300, 20_000]), st.binary(max_size=140)),
    rack=st.sampled_from([b"\0", b"\x01", b"\x03ab"]),
    tags=st.sampled_from([b"\0", section(tagged(4, b"xyz"))]),
)
@settings(max_examples=examples(300), deadline=None)
def test_rewritten_addresses_of_any_length_fit_or_are_blanked(
    layout: Streamed, lengths: list[int], others: dict[int, bytes], rack: bytes, tags: bytes
) -> None:
    """Endpoints that fit are written, otherwise none; all other fields stay in order."""
    hosts = [chr(ord("A") + number) * length for number, length in enumerate(lengths)]
    before = array(*(endpoint(number, host, 9092, rack, tags) for number, host in enumerate(hosts)))
    after = array(*(endpoint(number, OURS, 9101, rack, tags) for number, _ in enumerate(hosts)))
    kept = sorted(others.items())
    tail = tail_of(layout, before, *(tagged(*each) for each in kept))
    found = rewritten(layout, tail)
    nodes, fields = fields_of(layout, found)
    shorter = len(tail) - len(tail_of(layout, after, *(tagged(*each) for each in kept)))
    assert (nodes == after) == (shorter == 0 or shorter >= 2)
    if nodes != after:
        assert nodes == (b"" if layout is FETCH else b"\x01")
    assert [each for each in fields if each[0] in others] == kept
    padding = [each for each in fields if each[0] not in others]
    assert len(padding) <= 2
    assert not any(b"".join(value for _, value in padding))
    assert fields == sorted(fields)
    assert len({tag for tag, _ in fields}) == len(fields)
    assert not any(host.encode() in found for host in hosts if len(host) > 1)
    assert struct.pack(">i", 9092) not in found


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_response_without_addresses_stays_unchanged(layout: Streamed) -> None:
    nobody = endpoint(-1, "", -1)
    for tail in (
        tail_of(layout, array()),
        tail_of(layout, array(nobody, nobody), tagged(9, b"x")),
        section(tagged(7, b"y")) if layout is FETCH else array() + section(tagged(7, b"y")),
    ):
        assert rewrite(memoryview(tail), layout, OneAddress()) is None


def test_both_counts_of_addresses_are_rewritten() -> None:
    both = (tagged(0, array(endpoint(1, "A" * 20, 9092))), tagged(0, array(endpoint(2, "B" * 20, 9092))))
    found = rewritten(FETCH, section(*both))
    assert b"AA" not in found
    assert b"BB" not in found
    assert found.count(OURS.encode()) == 2


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_damaged_tails_are_refused(layout: Streamed) -> None:
    whole = tail_of(layout, array(endpoint(1, "A" * 20, 9092, b"\x03ab")), tagged(9, b"xyz"))
    refused = (MalformedFrame, *OUT_OF_BYTES)
    for cut in range(len(whole)):
        with pytest.raises(refused):
            rewrite(memoryview(whole[:cut]), layout, OneAddress())
    with pytest.raises(MalformedFrame):
        rewrite(memoryview(whole + b"\0"), layout, OneAddress())
    for bad in (
        b"\x01\x09\xff\xff\xff\xff\x07",  # longer than there is
        b"\xff\xff\xff\xff\x07" + tagged(9, b""),  # more fields than there are
        b"\x01" + b"\x80" * 6,  # a varint without an end
    ):
        with pytest.raises(refused):
            rewrite(memoryview((array() if layout is SHARE_FETCH else b"") + bad), layout, OneAddress())
    many = tail_of(layout, b"\xff\xff\xff\xff\x07" + endpoint(1, "A" * 20, 9092))
    with pytest.raises(refused):
        rewrite(memoryview(many), layout, OneAddress())


def test_a_field_that_is_not_as_long_as_its_array_is_refused() -> None:
    nodes = array(endpoint(1, "A" * 20, 9092))
    for value in (nodes + b"\0", nodes[:-1]):
        with pytest.raises((MalformedFrame, *OUT_OF_BYTES)):
            rewrite(memoryview(section(tagged(0, value), tagged(5, b"\0" * 40))), FETCH, OneAddress())


def test_tail_without_a_free_padding_tag_is_rejected() -> None:
    others = [tagged(tag, b"") for tag in range(1, 128)]
    with pytest.raises(MalformedFrame):
        rewrite(memoryview(section(tagged(0, array(endpoint(1, "A" * 20, 1))), *others)), FETCH, OneAddress())


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("size", [TAIL_LIMIT_BYTES + 1, *range(2_097_153, 2_097_162), 2**31 - 1])
def test_blank_tail_has_no_address_and_only_padding_tags(layout: Streamed, size: int) -> None:
    head = blank_head(layout, size)
    assert len(head) <= 12
    if size < 1 << 22:
        nodes, fields = fields_of(layout, head.ljust(size, b"\0"))
        assert nodes == (b"" if layout is FETCH else b"\x01")
        assert {tag for tag, _ in fields} <= {126, 127}
