"""A client's answer about the brokers is reused for the next client without a second look at each broker."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.proxy.addresses import AddressSource
from fleet.proxy.rewriter import DESCRIBE_CLUSTER, METADATA
from fleet.proxy.session import Session
from fleet.proxy.wire.counters import WireCounters
from tests.examples import examples
from tests.property import kio_samples
from tests.property.wire_fleet import ADVERTISED, DIRECTORY, MEMBERS, Limits, Play, blanks, pieces, request

CASES = [case for case in kio_samples.CASES if case[0] in (METADATA, DESCRIBE_CLUSTER)]
OWNERS = {broker_id: owners[:1] for broker_id, owners in ADVERTISED.items()}
ONE_OWNER_EACH = replace(DIRECTORY, advertised=OWNERS)


def advertised(broker_id: int, host: str = "", port: int = 0) -> tuple[str, int]:
    (owner,) = OWNERS.get(broker_id, ("p1",))
    listener = MEMBERS[owner].listeners[1]
    return listener.host, listener.first_port + broker_id if 0 <= broker_id < 17 else 0


@pytest.mark.parametrize(("key", "version"), CASES)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seeds=st.lists(st.integers(0, 3), min_size=2, max_size=6),
    base=st.integers(0, 2**32),
    cuts=st.lists(st.integers(0, 3_000), max_size=8),
)
def test_answers_with_equal_heads_are_rewritten_as_by_the_oracle(
    key: int, version: int, seeds: list[int], base: int, cuts: list[int]
) -> None:
    play = Play.new(ONE_OWNER_EACH)
    sent, expected = b"", b""
    for correlation_id, seed in enumerate(seeds):
        entity = kio_samples.make(key, version, base + seed)
        play.ask((key, version, correlation_id))
        sent += kio_samples.frame(entity, correlation_id)
        expected += kio_samples.for_client(key, entity, correlation_id, advertised, blanks)
    for piece in pieces(sent, cuts):
        play.broker(piece)
    assert bytes(play.to_client) == expected
    assert play.session.in_flight == 0


@pytest.mark.parametrize(("key", "version"), CASES)
def test_every_answer_is_counted_and_each_unserved_one(key: int, version: int) -> None:
    play, answers = Play.new(ONE_OWNER_EACH), 3
    for seed in range(20):
        entity = kio_samples.make(key, version, seed)
        rewritten, unserved = play.counters.rewritten[key], play.counters.unserved
        unknown = sum(
            1 for each, host, _ in kio_samples.addresses(entity) if host and each != -1 and not 0 <= each < 17
        )
        for correlation_id in range(answers):
            play.ask((key, version, correlation_id))
            play.broker(kio_samples.frame(entity, correlation_id))
        assert play.counters.unserved - unserved == answers * unknown
        known = any(host and each != -1 for each, host, _ in kio_samples.addresses(entity))
        assert play.counters.rewritten[key] - rewritten == answers * known
        named = list(kio_samples.addresses(entity))
        complete = len(named) == len(entity.brokers)  # type: ignore[attr-defined]  # of both
        if known and complete and not unknown:
            assert any(
                head.original in kio_samples.frame(entity, 0) for head in play.source.book.heads.values()
            )


def _metadata(brokers: list[tuple[int, bytes]]) -> bytes:
    """A response of Metadata v8 without a topic. Source: MetadataResponse.json"""
    listed = b"".join(
        struct.pack(">ih", broker_id, len(host)) + host + struct.pack(">ih", 9092, -1)
        for broker_id, host in brokers
    )
    body = struct.pack(">iii", 1, 0, len(brokers)) + listed + struct.pack(">hiii", -1, 1, 0, 0)
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("left_out", [(-1, b"real-1"), (2, b""), (99, b"real-99")])
def test_broker_behind_one_that_was_left_out_is_rewritten(left_out: tuple[int, bytes]) -> None:
    """Regression: a client received a real address, because the answer before began with the same bytes."""
    source, output = AddressSource(ONE_OWNER_EACH, "external", "p1", counters=WireCounters()), bytearray()
    for second in (left_out, (2, b"real-2")):
        session = Session(source, Limits(), WireCounters(), "192.0.2.7")
        session.receive_from_client(request(METADATA, 8, 1, bytes(7)))
        session.receive_from_broker(_metadata([(1, b"real-1"), second]), output.extend)
    assert b"real-2" not in output
