"""Fetch and ShareFetch responses pass as they arrive: unbuffered, with the same length, without an
address."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterable
from itertools import product
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.core.errors import MalformedFrame, TruncatedFrame
from fleet.proxy.wire import scan
from fleet.proxy.wire.primitives import encode_varint
from fleet.proxy.wire.tail import TAIL_LIMIT_BYTES
from tests.examples import examples
from tests.property import kio_samples
from tests.property.test_tail import array, endpoint, section, tagged
from tests.property.wire_fleet import Play, advertised, pieces

CORRELATION_ID = 7
HOST, PORT = advertised(1)
CASES = [(1, 16), (1, 18), (78, 1), (78, 2)]
ABORTED = struct.pack(">qq", 1, 2) + b"\0"
UNKNOWN = section(tagged(99, b"\0\1\2"))


def framed(body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, CORRELATION_ID) + body


def partition(key: int, records: bytes | None, many: int = 0, tags: bytes = b"\0") -> bytes:
    """Source: FetchResponse.json v16-18, ShareFetchResponse.json v1-2"""
    length = b"\0" if records is None else encode_varint(len(records) + 1) + records
    if key == 1:
        return b"p" * 30 + encode_varint(many + 1) + ABORTED * many + b"\xff" * 4 + length + tags
    acquired = encode_varint(many + 1) + (b"a" * 18 + tags) * many
    return b"p" * 6 + b"\0" + b"ak" + b"\x03no" + b"l" * 8 + tags + length + acquired + tags


def before_tail(key: int, *partitions: bytes, header: bytes = b"\0") -> bytes:
    """All bytes of a response after the correlation id, up to the changeable part."""
    head = b"h" * 10 if key == 1 else b"h" * 6 + b"\0" + b"lock"
    topic = b"t" * 16 + encode_varint(len(partitions) + 1) + b"".join(partitions) + b"\0"
    return header + head + b"\x02" + topic


def tail(key: int, nodes: bytes, *others: bytes) -> bytes:
    return section(tagged(0, nodes), *others) if key == 1 else nodes + section(*others)


def feed(play: Play, raw: bytes, cuts: Iterable[int]) -> None:
    for piece in pieces(raw, cuts):
        play.broker(piece)


def passed(key: int, version: int, raw: bytes, cuts: Iterable[int] = ()) -> bytes:
    play = Play.new()
    play.ask((key, version, CORRELATION_ID))
    feed(play, raw, cuts)
    assert play.session.in_flight == 0
    assert not play.broker_rest
    return bytes(play.to_client)


@pytest.mark.parametrize(("key", "version"), CASES)
@pytest.mark.parametrize("longer", [-3, -1, 0, 1, 2, 3, 128, 300])
def test_records_and_length_stay_at_every_split(key: int, version: int, longer: int) -> None:
    """With hosts that are longer or shorter than the fleet's host by this number of bytes."""
    host = "H" * (len(HOST) + longer)
    parts = [partition(key, b"r" * 40, 3, UNKNOWN), partition(key, None), partition(key, b"r" * 200)]
    start = before_tail(key, *parts, header=UNKNOWN)
    raw = framed(start + tail(key, array(endpoint(1, host, 9092, b"\x02a")), tagged(5, b"five")))
    expected = passed(key, version, raw)
    assert len(expected) == len(raw)
    assert expected.startswith(raw[: 8 + len(start)])
    assert host.encode() not in expected
    assert struct.pack(">i", 9092) not in expected
    assert (HOST.encode() in expected) == (longer == 0 or longer >= 2)
    assert tagged(5, b"five") in expected
    for cut in range(len(raw)):
        assert passed(key, version, raw, [cut]) == expected
    assert passed(key, version, raw, range(len(raw))) == expected


@pytest.mark.parametrize(("key", "version"), CASES)
@settings(max_examples=examples(30), deadline=None)
@given(
    sizes=st.lists(st.one_of(st.none(), st.integers(0, 400)), max_size=6),
    many=st.integers(0, 400),
    cuts=st.lists(st.integers(0, 8_000), max_size=20),
)
def test_result_is_independent_of_pieces(
    key: int, version: int, sizes: list[int | None], many: int, cuts: list[int]
) -> None:
    """For any number of partitions and aborted transactions."""
    parts = [
        partition(key, None if size is None else b"r" * size, many if not number else 0)
        for number, size in enumerate(sizes)
    ]
    raw = framed(before_tail(key, *parts) + tail(key, array(endpoint(1, "H" * 99, 9092))))
    expected = passed(key, version, raw)
    assert b"HH" not in expected
    assert passed(key, version, raw, cuts) == expected


@pytest.mark.parametrize(("key", "version"), CASES)
@settings(max_examples=examples(30), deadline=None)
@given(
    many=st.integers(0, 20),
    fields=st.integers(0, 5),
    at_once=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 1_000), max_size=20),
)
def test_pauses_do_not_matter(
    key: int, version: int, many: int, fields: int, at_once: int, cuts: list[int]
) -> None:
    """For any number of tagged fields per turn of the event loop."""
    tags = section(*(tagged(90 + number, b"v" * number) for number in range(fields)))
    parts = [partition(key, b"r" * 40, many, tags), partition(key, None, 0, tags)]
    raw = framed(before_tail(key, *parts, header=tags) + tail(key, array(endpoint(1, "H" * 99, 9092))))
    expected = passed(key, version, raw)
    assert b"HH" not in expected
    with patch.object(scan, "FIELDS_PER_TURN", at_once):
        assert passed(key, version, raw, cuts) == expected


@pytest.mark.parametrize(("key", "version"), CASES)
def test_too_long_tail_is_blanked_while_it_arrives(key: int, version: int) -> None:
    start = before_tail(key, partition(key, b"records"))
    nodes = array(*(endpoint(1, "H" * 90, 9092) for _ in range(TAIL_LIMIT_BYTES // 120)))
    least = len(tail(key, nodes, tagged(9, b"")))
    whole = TAIL_LIMIT_BYTES - least
    for length, blanked in ((whole - 5, False), (whole + 5, True)):
        raw = framed(start + tail(key, nodes, tagged(9, b"x" * length)))
        expected = passed(key, version, raw)
        assert len(expected) == len(raw)
        assert b"HH" not in expected
        assert (HOST.encode() in expected) != blanked
        assert (b"xx" in expected) != blanked
        rng = random.Random(length)
        for count in (1, 2, 40, 2_000):
            cuts = rng.sample(range(len(raw)), count) + [8 + len(start) + near for near in range(-3, 14)]
            assert passed(key, version, raw, cuts) == expected
        if blanked:
            assert not any(expected[8 + len(start) + 12 :])


def test_responses_after_a_streamed_one_are_patched() -> None:
    records = partition(1, b"r" * 300)
    with_nodes = framed(before_tail(1, records) + tail(1, array(endpoint(1, "H" * 20, 9092))))
    without = framed(before_tail(1, records, partition(1, None)) + b"\0")
    raw = with_nodes + without + with_nodes + without
    for cuts in ([], range(len(raw)), range(0, len(raw), 7), [len(with_nodes) + len(without) - 1]):
        play = Play.new()
        play.ask(*[(1, 17, CORRELATION_ID)] * 4)
        feed(play, raw, cuts)
        assert len(play.to_client) == len(raw)
        assert play.to_client[len(with_nodes) : len(with_nodes) + len(without)] == without
        assert play.to_client.endswith(without)
        assert b"HH" not in play.to_client
        assert play.counters.rewritten[1] == 2
        assert play.session.in_flight == 0


@pytest.mark.parametrize(("key", "version"), [(1, 18), (78, 2)])
def test_fifty_megabytes_are_never_held(key: int, version: int) -> None:
    """Records of many partitions, most of them in one, and fifty thousand aborted transactions."""
    read_bytes = 256 << 10
    records = bytes(1 << 20)
    parts = [partition(key, records)] * 10 + [partition(key, None, 50_000), partition(key, bytes(40 << 20))]
    raw = framed(before_tail(key, *parts) + tail(key, array(endpoint(1, "H" * 20, 9092))))
    assert len(raw) > 50 << 20
    play = Play.new()
    play.ask((key, version, CORRELATION_ID))
    written = most_kept = held_bytes = 0

    def write(data: bytes | memoryview) -> None:
        nonlocal written
        written += len(data)

    tracemalloc.start()
    try:
        start = end = 0
        while end < len(raw):
            end = min(end + read_bytes, len(raw))
            start += play.session.receive_from_broker(raw[start:end], write)
            most_kept = max(most_kept, end - start)
            held_bytes = max(held_bytes, tracemalloc.get_traced_memory()[0])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert written == len(raw)
    assert most_kept < 8
    # The read itself is forwarded, and none of it is held.
    assert held_bytes < 64 << 10
    assert peak_bytes < read_bytes + (72 << 10)


END = {key: tail(key, array(endpoint(1, "H" * 40, 9092))) for key in (1, 78)}


def refusals(key: int, version: int, body: bytes, each_cut: bool) -> bytes:
    """The bytes that passed before a response was refused, however it arrives."""
    raw = framed(body)
    passed_bytes = b""
    for cuts in ((), range(len(raw)), range(0, len(raw), 11))[: 3 if each_cut else 1]:
        play = Play.new()
        play.ask((key, version, CORRELATION_ID))
        with pytest.raises((MalformedFrame, TruncatedFrame)):
            feed(play, raw, cuts)
        passed_bytes += play.to_client
    return passed_bytes


@pytest.mark.parametrize("end", [b"\0\0\1", b"\0\1\0", b"\1\0\0", b"\x80\0\0"])
def test_three_bytes_behind_the_records_are_zeros_or_refused(end: bytes) -> None:
    """There is no room for other fields: what passed before contains no address."""
    one, good = before_tail(1, partition(1, b"r" * 200))[:-2], b"\0\0\0"
    assert passed(1, 17, framed(one + good)) == framed(one + good)
    bad = framed(one + end)
    for first, cut, behind in product((0, 100), range(len(bad)), (b"", framed(one + good))):
        play = Play.new()
        play.ask(*[(1, 17, CORRELATION_ID)] * 2)
        with pytest.raises(TruncatedFrame):
            feed(play, bad + behind, [first, cut])
        assert bad.startswith(play.to_client)
    refusals(1, 17, one + end, each_cut=True)


@pytest.mark.parametrize("records", [None, b"r" * 200, b"r" * 20_000])
def test_responses_after_a_partial_one_are_scanned(records: bytes | None) -> None:
    usual = framed(before_tail(1, partition(1, records)) + b"\0")
    with_nodes = framed(before_tail(1, partition(1, b"r" * 9)) + tail(1, array(endpoint(1, "H" * 20, 9092))))
    unread = framed(b"\0" + b"v15" * 20)
    metadata = kio_samples.frame(kio_samples.make(3, 12, 1), CORRELATION_ID)
    request_versions = [(1, 17), (1, 15), (1, 17), (1, 17), (1, 17), (3, 12)]
    answers = [usual, unread, usual, with_nodes, usual, metadata]
    raw = b"".join(answers)
    expected = b"".join(
        passed(key, version, each) for (key, version), each in zip(request_versions, answers, strict=True)
    )
    assert expected.startswith(usual + unread + usual)
    assert len(passed(3, 12, metadata)) != len(metadata)
    begins = [sum(map(len, answers[:number])) for number in range(len(answers) + 1)]
    cuts = sorted({each + near for each in begins for near in range(-4, 82) if 0 <= each + near < len(raw)})
    for cut in cuts:
        for more in (len(raw), min(cut + 150, len(raw)), min(cut + 2, len(raw))):
            play = Play.new()
            play.ask(*[(key, version, CORRELATION_ID) for key, version in request_versions])
            feed(play, raw, [cut, more])
            assert bytes(play.to_client) == expected
            assert play.session.in_flight == 0


@pytest.mark.parametrize(("key", "version"), CASES)
def test_tail_with_wrong_lengths_is_refused(key: int, version: int) -> None:
    good = before_tail(key, partition(key, b"r" * 30, 2))
    for body in (good + END[key] + b"\0", good, good + END[key][:-3], good + END[key][:-1]):
        assert b"HH" not in refusals(key, version, body, each_cut=True)


@pytest.mark.parametrize(("key", "version"), CASES)
def test_wrong_counts_and_lengths_are_refused(key: int, version: int) -> None:
    """Refused at once if everything has arrived.

    In pieces, what the count takes for a partition has passed.
    """
    good, end = before_tail(key, partition(key, b"r" * 30, 2)), END[key]
    count_at = len(before_tail(key)) - 2
    records_at = good.index(b"\x1f" + b"r" * 30)
    for at, lie in (
        (count_at, b"\x05"),
        (count_at, b"\x01"),
        (count_at, b"\xff\xff\xff\xff\x07"),
        (count_at, b"\xff" * 9),
        (records_at, b"\xff\x7f"),
        (records_at, b"\xff\xff\xff\xff\x07"),
        (records_at, bytes([len(good) + len(end) - records_at])),
        (records_at, b"\xff" * 9),
    ):
        body = good[:at] + lie + good[at + 1 :] + end
        assert b"HH" not in refusals(key, version, body, each_cut=False)
        refusals(key, version, body, each_cut=True)


@pytest.mark.parametrize(("key", "version"), CASES)
@settings(max_examples=examples(60), deadline=None)
@given(
    damage=st.dictionaries(st.integers(8, 400), st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]), max_size=4),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    missing=st.integers(0, 40),
)
def test_the_verdict_does_not_depend_on_how_bytes_arrive(
    key: int, version: int, damage: dict[int, int], cuts: list[int], missing: int
) -> None:
    raw = bytearray(framed(before_tail(key, partition(key, b"r" * 40, 2), partition(key, None)) + END[key]))
    for at, value in damage.items():
        raw[8 + at % (len(raw) - 8)] = value
    short = struct.pack(">i", len(raw) - missing - 4) + raw[4 : len(raw) - missing]
    outcomes = []
    for each in ((), cuts, range(len(short))):
        play = Play.new()
        play.ask((key, version, CORRELATION_ID))
        try:
            feed(play, short, each)
            assert len(play.to_client) == len(short)
            outcomes.append(bytes(play.to_client))
        except (MalformedFrame, TruncatedFrame):
            outcomes.append(b"refused")
    assert outcomes == outcomes[:1] * 3
