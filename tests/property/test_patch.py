"""Patched responses equal kio's result, byte for byte, however they arrive."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.core.errors import MalformedFrame, TruncatedFrame, WireError
from fleet.proxy.wire._tables import APIS, PATCHED
from fleet.proxy.wire.addresses import Address, Addresses, Parts, Streamed
from fleet.proxy.wire.primitives import OUT_OF_BYTES
from tests.examples import examples
from tests.property import kio_samples, wire_fleet
from tests.property.wire_fleet import Play, advertised, blanks

CASES = kio_samples.CASES
CORRELATION_ID = 0x7ABBCCDD
quick = settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32)


def sample(key: int, version: int, seed: int) -> tuple[bytes, bytes]:
    """A response as the broker sends it, and as the client must get it."""
    entity = kio_samples.make(key, version, seed)
    expected = kio_samples.for_client(
        key, entity, CORRELATION_ID, lambda broker_id, _host, _port: advertised(broker_id), blanks
    )
    return kio_samples.frame(entity, CORRELATION_ID), expected


def test_kio_knows_every_patched_version() -> None:
    covered = set(CASES)
    patched = {(key, version) for key, first, last, _ in PATCHED for version in range(first, last + 1)}
    assert patched == covered


@pytest.mark.parametrize(("key", "version"), CASES)
@quick
@given(seed=seeds)
def test_patched_response_equals_the_oracle(key: int, version: int, seed: int) -> None:
    raw, expected = sample(key, version, seed)
    play = Play.new()
    play.ask((key, version, CORRELATION_ID))
    play.broker(raw)
    assert bytes(play.to_client) == expected
    assert play.session.in_flight == 0
    if raw != expected:
        assert play.counters.rewritten[key] == 1


@pytest.mark.parametrize(("key", "version"), CASES)
@quick
@given(seed=seeds)
def test_no_real_address_is_left(key: int, version: int, seed: int) -> None:
    raw, _ = sample(key, version, seed)
    play = Play.new()
    play.ask((key, version, CORRELATION_ID))
    play.broker(raw)
    received = bytes(play.to_client)
    if key in kio_samples.ENDS_WITHOUT_ENDPOINTS:
        entity = kio_samples.make(key, version, seed)
        received = kio_samples.without_padding(key, received, kio_samples.tail_at(key, entity))
    entity = kio_samples.decode(key, version, received)
    for broker_id, host, port in kio_samples.addresses(entity):
        if broker_id != -1 and host:
            assert (host, port) == advertised(broker_id)
    same = kio_samples.convert(entity, lambda _, host, port: (host, port), lambda _: False)
    assert same == entity, "a controller's listener has an address"


@pytest.mark.parametrize(("key", "version"), CASES)
@quick
@given(seed=seeds, cuts=st.lists(st.integers(0, 6_000), max_size=12))
def test_patched_response_is_independent_of_pieces(
    key: int, version: int, seed: int, cuts: list[int]
) -> None:
    raw, expected = sample(key, version, seed)
    play = Play.new()
    play.ask((key, version, CORRELATION_ID))
    for piece in wire_fleet.pieces(raw, cuts):
        play.broker(piece)
    assert bytes(play.to_client) == expected
    assert play.session.in_flight == 0


@pytest.mark.parametrize(("key", "version"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_patched_response_is_equal_at_every_split(key: int, version: int, seed: int) -> None:
    raw, expected = sample(key, version, seed)
    cuts = range(len(raw)) if len(raw) < 600 else random.Random(seed).sample(range(len(raw)), 300)
    for cut in cuts:
        play = Play.new()
        play.ask((key, version, CORRELATION_ID))
        play.broker(raw[:cut])
        play.broker(raw[cut:])
        assert bytes(play.to_client) == expected
    play = Play.new()
    play.ask((key, version, CORRELATION_ID))
    for at in range(len(raw)):
        play.broker(raw[at : at + 1])
    assert bytes(play.to_client) == expected


class OneAddress(Addresses):
    """One address for every broker."""

    __slots__ = ()

    def __missing__(self, broker_id: int) -> Address:
        return Address(b"\x02h\0\0\0\1", b"\0\1h\0\0\0\1", b"", b"")


@pytest.mark.parametrize(("key", "version"), CASES)
def test_truncated_frame_is_refused_and_partial_one_waits(key: int, version: int) -> None:
    """A truncated frame is a WireError; a partly received frame waits for more, or gives the right bytes."""
    layout = next(layout for api, low, high, layout in PATCHED if api == key and low <= version <= high)
    for seed in range(4):
        raw, expected = sample(key, version, seed)
        cuts = range(8, len(raw)) if len(raw) < 600 else random.Random(seed).sample(range(8, len(raw)), 200)
        for cut in cuts:
            short = struct.pack(">i", cut - 4) + raw[4:cut]
            play = Play.new()
            play.ask((key, version, CORRELATION_ID))
            parts: Parts = []
            if isinstance(layout, Streamed):
                # The session also parses the last byte of such a response.
                with pytest.raises((TruncatedFrame, MalformedFrame)):
                    play.broker(short)
                continue
            try:
                mark = layout.patch(memoryview(raw)[:cut], OneAddress(), parts)
            except (*OUT_OF_BYTES, MalformedFrame):
                with pytest.raises((TruncatedFrame, MalformedFrame)):
                    play.broker(short)
            else:
                # All addresses are present: the missing part is one that the session does not parse.
                assert mark <= cut
                play.broker(short)
                assert play.to_client[4:] == expected[4 : len(expected) - len(raw) + cut]


@pytest.mark.parametrize(("key", "version"), CASES)
@quick
@given(seed=seeds, data=st.data())
def test_damaged_responses_raise_nothing_but_wire_errors(
    key: int, version: int, seed: int, data: st.DataObject
) -> None:
    raw, _ = sample(key, version, seed)
    damaged = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(8, max(8, min(len(raw), 400) - 1)))
        if at < len(damaged):
            damaged[at] = data.draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)))
    play = Play.new()
    play.ask((key, version, CORRELATION_ID))
    try:
        play.broker(bytes(damaged))
    except WireError as error:
        blamed = error.peer
    else:
        blamed = "broker"
        assert struct.unpack_from(">i", play.to_client)[0] + 4 == len(play.to_client)
    assert blamed == "broker"


@pytest.mark.parametrize(("key", "version"), CASES)
@quick
@given(garbage=st.binary(max_size=300), declared=st.integers(-(2**31), 2**31 - 1))
def test_garbage_raises_nothing_but_wire_errors(
    key: int, version: int, garbage: bytes, declared: int
) -> None:
    for size in (len(garbage) + 4, declared):
        play = Play.new()
        play.ask((key, version, CORRELATION_ID))
        with suppress(WireError):
            play.broker(struct.pack(">ii", size, CORRELATION_ID) + garbage)
        assert len(play.to_client) <= len(garbage) * 200 + 8


@pytest.mark.parametrize(("key", "version"), [(3, 12), (60, 2), (10, 4)])
def test_unknown_tags_are_kept(key: int, version: int) -> None:
    """Unknown tags, in the header and in every element, as a later Kafka may send them."""
    tag = b"\x01\x63\x03xyz"
    address = struct.pack(">i", 3) + b"\x08kafka-3" + struct.pack(">i", 9092)
    ours_host, ours_port = advertised(3)
    ours = (
        struct.pack(">i", 3)
        + bytes([len(ours_host.encode()) + 1])
        + ours_host.encode()
        + struct.pack(">i", ours_port)
    )
    around = {
        3: (tag + b"\0\0\0\0\x02", b"\x02r" + tag + b"the rest is not looked at"),
        60: (
            tag + b"\0\0\0\0" + b"\0\0\0" + b"\x01" + b"\x02c" + b"\0\0\0\1" + b"\x02",
            b"\0\x01" + tag + b"rest",
        ),
        10: (tag + b"\0\0\0\0\x02\x02g", b"\0\0\0" + tag + b"rest"),
    }
    before, after = around[key]

    def framed(middle: bytes) -> bytes:
        body = struct.pack(">i", CORRELATION_ID) + before + middle + after
        return struct.pack(">i", len(body)) + body

    play = Play.new()
    play.ask((key, version, CORRELATION_ID))
    play.broker(framed(address))
    assert bytes(play.to_client) == framed(ours)


@pytest.mark.parametrize("version", [v for k, v in CASES if k == 0])
def test_produce_endpoints_are_patched_among_other_tags(version: int) -> None:
    endpoint = struct.pack(">i", 1) + b"\x06kafka" + struct.pack(">i", 9092) + b"\0\0"
    unchanged = struct.pack(">i", -1) + b"\x01" + struct.pack(">i", -1) + b"\0\0"
    host, port = advertised(1)
    ours = struct.pack(">i", 1) + bytes([len(host) + 1]) + host.encode() + struct.pack(">i", port) + b"\0\0"

    def framed(first: bytes) -> bytes:
        value = b"\x03" + first + unchanged
        tags = b"\x03" + b"\0" + bytes([len(value)]) + value + b"\x05\x02ab" + b"\x7f\0"
        body = struct.pack(">i", CORRELATION_ID) + b"\0" + b"\x01" + b"\0\0\0\0" + tags
        return struct.pack(">i", len(body)) + body

    play = Play.new()
    play.ask((0, version, CORRELATION_ID))
    play.broker(framed(endpoint))
    assert bytes(play.to_client) == framed(ours)


def test_tag_of_another_length_than_stated_is_refused() -> None:
    value = b"\x02" + struct.pack(">i", 1) + b"\x06kafka" + struct.pack(">i", 9092) + b"\0\0"
    for size in (len(value) - 1, len(value) + 1):
        body = (
            struct.pack(">i", CORRELATION_ID)
            + b"\0\x01\0\0\0\0"
            + b"\x01\0"
            + bytes([size])
            + value
            + b"\0\0"
        )
        play = Play.new()
        play.ask((0, 10, CORRELATION_ID))
        with pytest.raises(MalformedFrame):
            play.broker(struct.pack(">i", len(body)) + body)


def test_only_lists_of_brokers_are_reported() -> None:
    """Metadata and DescribeCluster of brokers contain the real endpoints of brokers; controllers are not
    brokers."""
    for endpoint_type, reported in ((1, True), (2, False)):
        play = Play.new()
        play.ask((60, 1, CORRELATION_ID))
        host = b"\x08kafka-3" + struct.pack(">i", 9092)
        body = (
            struct.pack(">i", CORRELATION_ID)
            + b"\0"
            + bytes(7)
            + bytes([endpoint_type])
            + b"\x02c"
            + bytes(4)
        )
        body += b"\x02" + struct.pack(">i", 3) + host + b"\x02r\0" + bytes(5)
        play.broker(struct.pack(">i", len(body)) + body)
        assert bool(play.seen) is reported
        assert b"kafka-3" not in play.to_client


def test_versions_without_addresses_are_not_touched() -> None:
    """Produce up to v9 and Fetch up to v15 have no addresses: their responses pass byte for byte."""
    patched = {(key, version) for key, first, last, _ in PATCHED for version in range(first, last + 1)}
    for version in range(APIS[0].min_version, 10):
        assert (0, version) not in patched
    raw = struct.pack(">ii", 24, CORRELATION_ID) + b"\x02kafka-1.example.org"
    for key, version in ((0, 9), (1, 15), (55, 1)):
        play = Play.new()
        play.ask((key, version, CORRELATION_ID))
        play.broker(raw)
        assert bytes(play.to_client) == raw
