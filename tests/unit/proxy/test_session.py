"""Sessions, as plays of the bytes from client and broker."""

from __future__ import annotations

import struct

import pytest
from kio.schema.api_versions.v0 import response as api_versions_v0
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from fleet.core.errors import (
    MalformedFrame,
    OversizeFrame,
    TruncatedFrame,
    UnknownResponse,
    UnsupportedVersion,
)
from fleet.core.model import Directory
from fleet.proxy.frame_limits import HEADER_LIMIT_BYTES
from fleet.proxy.session import MAX_REPORTED_CLIENT_ID_BYTES, Session
from fleet.proxy.wire.heartbeats import build_not_coordinator
from fleet.proxy.wire.primitives import encode_varint
from tests.property.wire_fleet import Limits, Play, advertised, member, produce, request

HEARTBEAT, LIST_OFFSETS, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 12, 2, 17, 18, 36
UNKNOWN_MEMBER_ID, ILLEGAL_SASL_STATE, UNSUPPORTED_VERSION = 25, 34, 35


def response(correlation_id: int, body: bytes = b"\0\0") -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def token(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def handshake(correlation_id: int, mechanism: bytes, version: int = 1) -> bytes:
    body = struct.pack(">h", len(mechanism)) + mechanism
    return request(SASL_HANDSHAKE, version, correlation_id, body)


def metadata_frame(
    correlation_id: int, broker_id: int = 3, host: str = "kafka-3.hidden", tail: bytes = b""
) -> bytes:
    """A Metadata v12 response with one broker, followed by other bytes."""
    name = host.encode()
    broker = (
        struct.pack(">i", broker_id) + bytes([len(name) + 1]) + name + struct.pack(">i", 9092) + b"\x02r\0"
    )
    return response(correlation_id, b"\0" + bytes(4) + b"\x02" + broker + tail)


# Frames that pass


def test_requests_and_responses_pass_unchanged() -> None:
    play = Play.new()
    sent = [request(HEARTBEAT, 3, 1, b"x" * 50), produce(9, 2, -1, b"r" * 500), request(LIST_OFFSETS, 5, 3)]
    answers = [response(1), response(2, b"p" * 60), response(3)]
    play.client(b"".join(sent))
    assert play.session.in_flight == 3
    play.broker(b"".join(answers))
    assert bytes(play.to_broker) == b"".join(sent)
    assert bytes(play.to_client) == b"".join(answers)
    assert play.session.in_flight == 0
    assert [play.counters.requests[key] for key in (0, LIST_OFFSETS, HEARTBEAT)] == [1, 1, 1]
    assert sum(play.counters.requests) == 3


@pytest.mark.parametrize("client_id", [None, b"", b"c" * 32_767])
def test_client_ids_of_any_length_pass(client_id: bytes | None) -> None:
    play = Play.new()
    sent = request(HEARTBEAT, 4, 1, b"\0rest", client_id)
    play.client(sent)
    assert bytes(play.to_broker) == sent


def test_incomplete_body_passes() -> None:
    play = Play.new()
    sent = produce(9, 1, 1, b"r" * 100_000)
    play.client(sent[:1_000])
    assert len(play.to_broker) == 1_000
    assert not play.session.is_drained
    play.client(sent[1_000:])
    assert bytes(play.to_broker) == sent
    big = response(1, b"f" * 100_000)
    play.broker(big[:500])
    assert play.session.in_flight == 1
    assert bytes(play.to_client) == big[:500]
    play.broker(big[500:])
    assert bytes(play.to_client) == big
    assert play.session.in_flight == 0


def test_fetch_response_of_any_size_passes_at_once() -> None:
    play = Play.new(limits=Limits(max_patched_response_bytes=1_000))
    play.ask((1, 15, 1))
    play.broker(struct.pack(">ii", 2**31 - 1, 1) + b"f" * 70_000)
    assert len(play.to_client) == 70_008
    assert play.session.in_flight == 1


# Produce


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("transactional_id", [None, "", "tx-1"])
def test_acks_0_has_no_response(version: int, transactional_id: str | None) -> None:
    play = Play.new()
    play.client(produce(version, 1, 0, b"r" * 30, transactional_id))
    assert play.session.in_flight == 0
    play.client(produce(version, 2, 1, b"r" * 30, transactional_id))
    play.client(produce(version, 3, -1, b"r" * 30, transactional_id))
    assert play.session.in_flight == 2
    play.broker(response(2, b"\0\x01\0\0\0\0\0"))
    play.broker(response(3, b"\0\x01\0\0\0\0\0"))
    assert play.session.in_flight == 0


def test_acks_is_found_behind_header_tags_and_long_ids() -> None:
    tags = b"\x02" + b"\x07\x03abc" + b"\x08\0"
    long_id = b"\xac\x02" + b"t" * 299
    for acks, in_flight in ((0, 0), (1, 1)):
        play = Play.new()
        play.client(request(0, 11, 1, tags + long_id + struct.pack(">hi", acks, 1_000) + b"records"))
        assert play.session.in_flight == in_flight


@pytest.mark.parametrize("count", [17, 36_000])
def test_header_full_of_tagged_fields_is_refused_at_their_count(count: int) -> None:
    """Found: each arriving byte made the session read up to 36,000 fields again, in 30 ms of CPU."""
    play = Play.new()
    with pytest.raises(MalformedFrame, match=f"{count} tagged fields in a request header") as caught:
        play.client(request(0, 11, 1, encode_varint(count)))
    assert caught.value.peer == "client"


def test_header_with_allowed_tagged_fields_passes_bytewise() -> None:
    sent = request(0, 11, 1, b"\x10" + b"\x01\0" * 16 + b"\0" + struct.pack(">hi", 1, 1_000))
    play = Play.new()
    for at in range(len(sent)):
        play.client(sent[at : at + 1])
    assert bytes(play.to_broker) == sent
    assert play.session.in_flight == 1


def test_header_full_of_tagged_fields_ends_a_drain_too() -> None:
    play = Play.new()
    play.session.drain()
    with pytest.raises(MalformedFrame):
        play.client(request(0, 11, 1, encode_varint(36_000)))


def test_produce_with_acks_beyond_the_limit_is_refused() -> None:
    tags = b"\x01\x07" + b"\x80\x80\x06" + b"x" * (3 << 15)
    play = Play.new()
    with pytest.raises(OversizeFrame) as caught:
        play.client(request(0, 11, 1, tags + b"\0" + struct.pack(">hi", 1, 1_000)))
    assert caught.value.peer == "client"
    assert play.session.in_flight == 0


def test_unconsumed_bytes_are_bounded() -> None:
    tags = b"\x01\x07" + b"\x80\x80\x06" + b"x" * (3 << 15)
    sent = request(0, 11, 1, tags)
    play = Play.new()
    for at in range(0, HEADER_LIMIT_BYTES - 4_096, 4_096):
        play.client(sent[at : at + 4_096])
    with pytest.raises(OversizeFrame):
        play.client(sent[at + 4_096 : at + 8_192])
    assert 30_000 < play.most_kept_bytes < HEADER_LIMIT_BYTES


def test_produce_that_ends_before_its_acks_is_refused() -> None:
    for version in (3, 9):
        play = Play.new()
        with pytest.raises(TruncatedFrame):
            play.client(request(0, version, 1, b"\0"))


# Invalid requests


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 9])
def test_sizes_below_a_header_are_refused(size: int) -> None:
    play = Play.new()
    with pytest.raises(MalformedFrame):
        play.client(struct.pack(">ihhih", size, HEARTBEAT, 4, 1, -1))


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\n", bytes.fromhex("16030100f8010000f40303ab12cd")])
def test_another_protocol_is_refused_at_its_first_bytes(greeting: bytes) -> None:
    # Found: the session waited for a "client id" beyond the received bytes before it checked the size, so an
    # HTTP client hung until its time-out.
    play = Play.new()
    with pytest.raises(OversizeFrame):
        play.client(greeting)


def test_requests_above_the_limit_are_refused_at_their_header() -> None:
    limit = Limits().max_request_bytes
    Play.new().client(struct.pack(">ihhih", limit, HEARTBEAT, 4, 1, -1))
    with pytest.raises(OversizeFrame):
        Play.new().client(struct.pack(">ihhih", limit + 1, HEARTBEAT, 4, 1, -1))


@pytest.mark.parametrize("length", [-2, -(2**15), 1, 2**15 - 1])
def test_client_id_longer_than_its_request_is_refused(length: int) -> None:
    with pytest.raises(MalformedFrame):
        Play.new().client(struct.pack(">ihhih", 10, HEARTBEAT, 4, 1, length))


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (0, 2),
        (0, 14),
        (1, 3),
        (1, 19),
        (3, 14),
        (3, -1),
        (55, 3),
        (4, 0),
        (52, 0),
        (95, 0),
        (-1, 0),
        (32_767, 0),
    ],
)
def test_unoffered_api_or_version_is_refused(key: int, version: int) -> None:
    play = Play.new()
    with pytest.raises(UnsupportedVersion) as caught:
        play.client(request(key, version, 1, b"\0" * 40))
    assert caught.value.peer == "client"
    assert not play.to_broker


# Responses


@pytest.mark.parametrize("correlation_id", [0, 2, 3, -1])
def test_response_out_of_turn_is_refused(correlation_id: int) -> None:
    play = Play.new()
    play.ask((HEARTBEAT, 4, 1), (3, 12, 2))
    with pytest.raises(UnknownResponse):
        play.broker(response(correlation_id))


def test_patched_response_out_of_turn_is_refused() -> None:
    play = Play.new()
    play.ask((3, 12, 2), (HEARTBEAT, 4, 1))
    with pytest.raises(UnknownResponse):
        play.broker(response(1))


def test_response_to_nothing_is_refused() -> None:
    with pytest.raises(UnknownResponse):
        Play.new().broker(response(0))


@pytest.mark.parametrize("size", [3, 0, -1, -(2**31)])
def test_responses_without_a_header_are_refused(size: int) -> None:
    play = Play.new()
    play.ask((HEARTBEAT, 4, 1))
    with pytest.raises(MalformedFrame):
        play.broker(struct.pack(">ii", size, 1))


def test_correlation_ids_use_all_their_bits() -> None:
    play = Play.new()
    for correlation_id in (-1, -(2**31), 2**31 - 1, 0):
        play.ask((3, 12, correlation_id), (HEARTBEAT, 4, correlation_id))
        play.broker(metadata_frame(correlation_id) + response(correlation_id))
    assert play.session.in_flight == 0
    assert play.to_client.count(b"proxy-") == 0
    assert play.to_client.count("é".encode()) == 4


def test_patched_response_keeps_its_order() -> None:
    play = Play.new()
    play.ask((HEARTBEAT, 4, 1), (3, 12, 2), (HEARTBEAT, 4, 3))
    tail = b"t" * 300
    play.broker(response(1, b"before") + metadata_frame(2, tail=tail) + response(3, b"after"))
    host, port = advertised(3)
    name = host.encode()
    ours = struct.pack(">i", 3) + bytes([len(name) + 1]) + name + struct.pack(">i", port) + b"\x02r\0"
    expected = (
        response(1, b"before") + response(2, b"\0" + bytes(4) + b"\x02" + ours + tail) + response(3, b"after")
    )
    assert bytes(play.to_client) == expected


def test_metadata_tail_is_forwarded_before_it_is_complete() -> None:
    play = Play.new()
    play.ask((3, 12, 2))
    frame = metadata_frame(2, tail=b"t" * 100_000)
    play.broker(frame[:1_000])
    assert 900 < len(play.to_client) < 1_000
    play.broker(frame[1_000:60_000])
    assert len(play.to_client) > 59_900
    assert play.session.in_flight == 1
    play.broker(frame[60_000:])
    assert play.session.in_flight == 0
    assert play.to_client.endswith(b"t" * 100_000)


def test_new_directory_counts_from_the_next_response_on() -> None:
    play = Play.new()
    play.ask((3, 12, 1), (3, 12, 2))
    play.broker(metadata_frame(1))
    other = Directory(advertised={3: ("p9",)}, members={"p9": member("p9", "newcomer")})
    play.source.update(other)
    assert b"newcomer" not in play.to_client
    play.broker(metadata_frame(2))
    assert b"newcomer" in play.to_client
    assert b"hidden" not in play.to_client


def test_responses_that_must_be_whole_are_limited() -> None:
    play = Play.new(limits=Limits(max_patched_response_bytes=1_000))
    play.ask((79, 2, 1))
    play.broker(response(1, b"\0" * 992)[:30])
    assert not play.to_client
    play = Play.new(limits=Limits(max_patched_response_bytes=1_000))
    play.ask((79, 2, 1))
    with pytest.raises(OversizeFrame) as caught:
        play.broker(response(1, b"\0" * 993)[:30])
    assert caught.value.peer == "broker"
    assert "raise limits.max_patched_response_bytes" in str(caught.value)


def test_head_of_metadata_is_limited() -> None:
    play = Play.new()
    play.ask((3, 12, 1))
    brokers = (struct.pack(">i", -1) + b"\x01" + struct.pack(">i", -1) + b"\0\0") * 100_000
    play.broker(struct.pack(">ii", 2**31 - 1, 1) + b"\0" + bytes(4) + b"\xff\xff\xff\x7f")
    play.broker(brokers)
    play.broker(brokers)
    with pytest.raises(OversizeFrame):
        play.broker(brokers * 2)
    assert not play.to_client


def test_records_before_addresses_pass_at_once() -> None:
    """The records are copied once, for the client; only the bytes behind them are held."""
    records = bytes(range(256)) * 400
    endpoint = struct.pack(">i", 3) + b"\x06kafka" + struct.pack(">i", 9092) + b"\0\0"
    partition = bytes(4) + b"\0\0\0" + b"\0\0\0" + bytes(8) + b"\0" + b"\x81\xa0\x06" + records + b"\x01\0"
    body = (
        b"\0"
        + bytes(4)
        + b"\0\0\0"
        + bytes(4)
        + b"\x02"
        + bytes(16)
        + b"\x02"
        + partition
        + b"\0"
        + b"\x02"
        + endpoint
    )
    frame = response(7, body + b"\0")
    play = Play.new()
    play.ask((78, 2, 7))
    written: list[bytes | memoryview] = []
    assert play.session.receive_from_broker(frame[:50_000], written.append) == 50_000
    assert b"".join(written) == frame[:50_000]
    rest = frame[50_000:]
    assert play.session.receive_from_broker(rest, written.append) == len(rest)
    whole = b"".join(written)
    assert len(written) == 2
    assert len(whole) == len(frame)
    assert records in whole
    assert b"kafka" not in whole
    assert play.session.in_flight == 0


def test_rewriting_is_timed() -> None:
    took_s: list[float] = []
    now_s = iter([5.0, 5.5, 7.0, 7.25])
    plain = Play.new()
    session = Session(
        plain.source, Limits(), plain.counters, clock=lambda: next(now_s), observe_rewrite=took_s.append
    )
    play = Play(session, plain.source, plain.counters, [])
    play.ask((3, 12, 1), (HEARTBEAT, 4, 2), (3, 12, 3))
    play.broker(metadata_frame(1) + response(2) + metadata_frame(3))
    assert took_s == [0.5, 0.25]


def test_answer_to_a_sampled_request_is_timed() -> None:
    """Every second read is sampled: the first request that begins in it, if none is timed yet."""
    play = Play.new()
    metadata, offsets = request(3, 12, 7, b"m" * 30), request(LIST_OFFSETS, 5, 8)
    play.client(request(HEARTBEAT, 4, 1) + metadata[:30])
    play.client(metadata[30:] + offsets[:30])
    play.client(offsets[30:])
    play.client(request(HEARTBEAT, 4, 9))  # no effect: an answer is still awaited
    answer = metadata_frame(7)
    play.broker(response(1) + answer[:9])
    assert play.timed == []
    play.broker(answer[9:] + response(8, b"o" * 100)[:8])
    assert play.timed == [(LIST_OFFSETS, len(offsets), 108, 0.25)]
    play.broker(response(8, b"o" * 100)[8:] + response(9))
    play.client(request(HEARTBEAT, 4, 10))
    play.client(metadata)
    play.broker(response(10) + answer)
    assert play.timed[1:] == [(3, len(metadata), len(answer), 0.25)]
    assert play.session.in_flight == 0
    assert play.session.client_id == "tester"


def test_long_client_id_is_reported_in_part() -> None:
    """Found by the cost fuzzer: each connection left 98 KB, until the next message to control."""
    play = Play.new()
    play.client(request(HEARTBEAT, 4, 1, b"\0rest", b"c" * 32_767))
    assert play.session.client_id == "c" * MAX_REPORTED_CLIENT_ID_BYTES


def test_request_without_a_response_is_not_timed() -> None:
    """Found by the model broker: both requests had the same correlation id, and the second was timed."""
    play = Play.new()
    play.client(request(LIST_OFFSETS, 5, 8))
    play.broker(response(8))
    play.client(produce(9, 7, 0) + request(HEARTBEAT, 4, 7))  # sampled
    play.broker(response(7))
    assert play.timed == []


def test_usual_sampled_response_needs_no_address_book() -> None:
    """Found by review: the sample changed the entry, so the response was rewritten to the same bytes."""
    play = Play.new()
    sampled = 2
    partition = bytes(4 + 2 + 8) + b"\xff" * 8 + bytes(8) + b"\1\0\0\0"
    for correlation_id in range(2 * sampled):
        play.client(produce(11, correlation_id, 1))
        play.broker(response(correlation_id, b"\0\2\7events\2" + partition + bytes(5)))
    assert len(play.timed) == sampled
    assert play.session.rewriter.book is None


# ApiVersions


def test_unknown_api_versions_is_answered_without_a_broker() -> None:
    """The fleet's probe, and the way in which clients newer than the fleet find a version."""
    play = Play.new()
    probe = request(API_VERSIONS, 32_767, 41, b"\0" * 30)
    for at in range(len(probe)):
        assert not play.to_client
        play.client(probe[at : at + 1])
    answer = bytes(play.to_client)
    entity, read = entity_reader(api_versions_v0.ApiVersionsResponse)(memoryview(answer), 8)
    assert struct.unpack_from(">ii", answer) == (len(answer) - 4, 41)
    assert read + 8 == len(answer)
    assert entity.error_code is ErrorCode.unsupported_version
    assert [(key.api_key, key.min_version, key.max_version) for key in entity.api_keys] == [(18, 0, 5)]
    assert not play.to_broker
    assert play.session.in_flight == 0
    assert play.counters.local_replies == 1


@pytest.mark.parametrize("correlation_id", [-1, -68, -(1 << 31), (1 << 31) - 1])
def test_unknown_api_versions_is_answered_with_any_id(correlation_id: int) -> None:
    """Found by fuzzing: a negative id ended the connection with an unexpected error."""
    play = Play.new()
    play.client(request(API_VERSIONS, 32_767, correlation_id, b"\0" * 30))
    assert struct.unpack_from(">i", play.to_client, 4) == (correlation_id,)


def test_client_continues_with_an_offered_version() -> None:
    play = Play.new()
    good = request(API_VERSIONS, 0, 3)
    play.client(request(API_VERSIONS, 6, 1, b"\0abc") + request(API_VERSIONS, 7, 2, b"\0") + good)
    assert [struct.unpack_from(">i", play.to_client, at)[0] for at in (4, 24)] == [1, 2]
    assert bytes(play.to_broker) == good
    assert play.session.in_flight == 1


def test_broker_answers_later_unknown_api_versions_in_order() -> None:
    refused = struct.pack(">hihhh", 35, 1, API_VERSIONS, 0, 9)
    play = Play.new()
    play.ask((HEARTBEAT, 4, 1), (API_VERSIONS, 300, 2))
    assert play.session.in_flight == 2
    play.broker(response(1) + response(2, refused))
    assert bytes(play.to_client) == response(1) + response(
        2, struct.pack(">hihhh", 35, 1, API_VERSIONS, 0, 5)
    )
    play.ask((API_VERSIONS, 300, 3))
    with pytest.raises(UnsupportedVersion):
        play.broker(response(3, struct.pack(">hihhh", 0, 1, API_VERSIONS, 0, 9)))


def test_api_versions_is_read_whole() -> None:
    sent = request(API_VERSIONS, 4, 1, b"\0\x05kcat\x041.7\0")
    play = Play.new()
    play.client(sent[:-1])
    assert not play.to_broker
    play.client(sent[-1:])
    assert bytes(play.to_broker) == sent
    assert play.session.in_flight == 1


def test_api_versions_must_fit_the_reserve() -> None:
    with pytest.raises(OversizeFrame):
        Play.new().client(request(API_VERSIONS, 4, 1, b"\0" * HEADER_LIMIT_BYTES))


# SASL, and the pairing of responses with requests


@pytest.mark.parametrize("mechanism", [b"PLAIN", b"SCRAM-SHA-256", b"OAUTHBEARER", b"GSSAPI", b""])
def test_sasl_handshake_v0_is_refused_for_every_mechanism(mechanism: bytes) -> None:
    play = Play.new()
    with pytest.raises(UnsupportedVersion, match="no header; use v1") as caught:
        play.client(handshake(1, mechanism, version=0))
    assert caught.value.peer == "client"
    assert not play.to_broker


def test_sasl_handshake_v1_is_an_ordinary_request() -> None:
    sent = handshake(1, b"PLAIN") + request(SASL_AUTHENTICATE, 2, 2, b"\0\6token\0")
    play = Play.new()
    play.client(sent)
    assert bytes(play.to_broker) == sent
    assert play.session.in_flight == 2
    play.broker(response(1, b"\0\0\0\0\0\0") + response(2))
    assert play.session.in_flight == 0


def test_sasl_token_without_a_header_is_refused() -> None:
    play = Play.new()
    play.client(handshake(1, b"PLAIN"))
    with pytest.raises(MalformedFrame):
        play.client(token(b"tok") + b"\0" * 20)


@pytest.mark.parametrize("version", [6, 255, 256, 300, 0x7FFF, -1, -0x8000])
def test_api_versions_of_any_version_is_a_request(version: int) -> None:
    """After a handshake, too: all correlation ids are the same, so order alone pairs the responses."""
    play, same = Play.new(), 0x41424344
    play.client(handshake(same, b"GSSAPI") + request(API_VERSIONS, version, same, b"\0"))
    play.ask((HEARTBEAT, 1, same), (3, 12, same), (16, 0, same))
    play.broker(response(same, struct.pack(">hi", ILLEGAL_SASL_STATE, 0)))
    play.broker(response(same, struct.pack(">hihhh", UNSUPPORTED_VERSION, 1, API_VERSIONS, 0, 4)))
    play.broker(response(same, struct.pack(">ih", 0, UNKNOWN_MEMBER_ID)))
    play.broker(metadata_frame(same))
    play.broker(response(same))
    assert b"hidden" not in play.to_client
    assert advertised(3)[0].encode() in play.to_client
    assert play.session.in_flight == 0


def test_correlation_id_never_finds_a_response() -> None:
    """A client can compute the beginning of SCRAM's server signature, and choose it as a correlation id."""
    signature = b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="
    chosen = int.from_bytes(signature[:4], "big")
    play = Play.new()
    play.client(handshake(1, b"SCRAM-SHA-256") + request(SASL_AUTHENTICATE, 0, 2, b"\0\0\0\1x"))
    play.ask((HEARTBEAT, 1, chosen), (3, 12, chosen), (16, 0, chosen))
    play.broker(response(1, b"\0\0\0\0\0\0"))
    with pytest.raises(UnknownResponse):
        play.broker(token(signature))
    assert b"hidden" not in play.to_client


def test_bytes_of_a_clients_choice_are_never_read_as_addresses() -> None:
    """A SyncGroup response contains bytes of the client: here they look like Metadata with a broker."""
    evil = b"evil.example"
    blob = struct.pack(">ihh", 1, 1, len(evil)) + evil + struct.pack(">i", 9220)
    play, same = Play.new(), 7
    play.client(handshake(same, b"PLAIN") + request(API_VERSIONS, 300, same, b"\0"))
    play.ask((14, 0, same), (3, 12, same))
    play.broker(response(same, struct.pack(">hi", ILLEGAL_SASL_STATE, 0)))
    play.broker(response(same, struct.pack(">hihhh", UNSUPPORTED_VERSION, 1, API_VERSIONS, 0, 4)))
    play.broker(response(same, struct.pack(">hi", 0, len(blob)) + blob))
    assert play.to_client.endswith(blob)
    assert play.seen == []


# Drain


def test_drain_lets_answers_through_and_no_further_request() -> None:
    play = Play.new()
    play.ask((HEARTBEAT, 4, 1))
    play.session.drain()
    assert not play.session.is_drained
    later = request(HEARTBEAT, 4, 2)
    play.client(later)
    assert play.client_rest == later
    assert play.session.in_flight == 1
    answer = response(1, b"y" * 100)
    play.broker(answer[:50])
    assert not play.session.is_drained
    play.broker(answer[50:])
    assert play.session.is_drained
    assert play.to_client == answer


@pytest.mark.parametrize("size", [3, 20, 1_000])
def test_withheld_client_forwards_no_produce_with_a_response(size: int) -> None:
    play = Play.new()
    play.session.withhold_produce()
    passes = request(HEARTBEAT, 4, 2) + produce(9, 3, 0, b"r" * 50) + request(HEARTBEAT, 4, 4)
    sent = passes + produce(9, 5, 1, b"r" * 50) + request(HEARTBEAT, 4, 6)
    for at in range(0, len(sent), size):
        play.client(sent[at : at + size])
    assert bytes(play.to_broker) == passes
    play.session.drain()
    play.client(b"")
    assert bytes(play.to_broker) == passes
    for correlation_id in (2, 4):
        assert not play.session.is_drained
        play.broker(response(correlation_id))
    assert play.session.is_drained


def test_drain_finishes_the_request_that_was_begun() -> None:
    play = Play.new()
    sent = produce(9, 1, 0, b"r" * 1_000)
    play.client(sent[:100])
    play.session.drain()
    assert not play.session.is_drained
    play.client(sent[100:] + request(HEARTBEAT, 4, 2))
    assert bytes(play.to_broker) == sent
    assert play.session.is_drained


def test_drain_forwards_requests_without_a_response() -> None:
    """A producer with acks=0 counts sent records as delivered."""
    play = Play.new()
    play.ask((HEARTBEAT, 4, 1))
    play.broker(response(1))
    play.session.drain()
    silent, loud = produce(9, 2, 0, b"r" * 50), produce(9, 3, 1, b"r" * 50)
    play.client(silent + silent + loud + silent)
    assert play.to_broker.endswith(silent + silent)
    assert play.client_rest == loud + silent
    assert play.session.is_drained
    assert play.session.is_refusing


def test_drain_waits_for_an_incomplete_header() -> None:
    play = Play.new()
    play.ask((HEARTBEAT, 4, 1))
    play.broker(response(1))
    play.session.drain()
    silent = produce(9, 2, 0, b"r" * 50)
    for end in range(1, len(silent)):
        play.client(silent[end - 1 : end])
        assert not play.session.is_refusing
    play.client(silent[-1:] + request(HEARTBEAT, 4, 3)[:13])
    assert play.to_broker.endswith(silent)
    assert not play.session.is_refusing
    play.client(request(HEARTBEAT, 4, 3)[13:])
    assert play.session.is_refusing


def test_new_session_is_drained_at_once() -> None:
    play = Play.new()
    assert not play.session.is_drained
    play.session.drain()
    assert play.session.is_drained
    assert play.session.receive_from_client(request(HEARTBEAT, 4, 1)) == 0


# Groups


@pytest.mark.parametrize("key", [12, 68, 76])
def test_heartbeat_is_redirected_when_nothing_is_in_flight(key: int) -> None:
    play = Play.new()
    play.ask((key, 1, 1))
    assert play.session.is_group_member
    play.session.redirect()
    play.ask((key, 1, 2))
    assert not play.session.is_redirected, "something was in flight"
    play.broker(response(1) + response(2))
    forwarded, answered = bytes(play.to_broker), bytes(play.to_client)
    heartbeat = request(key, 1, 3, b"x" * 50)
    play.client(heartbeat[:30])
    assert not play.session.is_redirected
    play.client(heartbeat[30:])
    assert play.session.is_redirected
    assert play.to_broker == forwarded
    assert play.to_client == answered + build_not_coordinator(key, 1, 3)
    play.client(request(key, 1, 4))
    assert play.session.in_flight == 1, "once is enough"


def test_first_request_is_checked_in_every_mode() -> None:
    play = Play.new()
    play.session.redirect()
    play.client(request(API_VERSIONS, 32_767, 1))
    assert play.to_client[4:8] == (1).to_bytes(4, "big")
    assert not play.to_broker


def test_other_requests_pass_before_a_redirected_heartbeat() -> None:
    play = Play.new()
    play.session.redirect()
    play.ask((3, 12, 1), (8, 2, 2))
    assert play.session.in_flight == 2
    assert not play.session.is_group_member
    assert not play.session.is_redirected
