"""Whatever a client and a broker send, the output does not depend on how the bytes arrive."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.core.errors import WireError
from tests.examples import examples
from tests.property import kio_samples
from tests.property.wire_fleet import Limits, Play, advertised, blanks, pieces, produce, request

thorough = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
PASSING = ((2, 8), (12, 3), (1, 12), (9, 1), (55, 0))


@dataclass
class Script:
    """The bytes that both sides send, and the required output."""

    to_proxy: bytes
    from_broker: bytes
    to_client: bytes
    to_broker: bytes


def write_script(seed: int, length: int) -> Script:
    """Make a conversation: probes first, then requests of all kinds, answered in order."""
    rng = random.Random(seed)
    probes = [
        request(18, rng.choice((6, 32_767)), number, rng.randbytes(rng.choice((0, 1, 40))))
        for number in range(rng.choice((0, 0, 1, 3)))
    ]
    sent, answers, expected = [], [], []
    for _ in range(length):
        correlation_id = rng.randint(-(2**31), 2**31 - 1)
        kind = rng.random()
        if kind < 0.2:
            sent.append(
                produce(rng.choice((3, 8, 9, 13)), correlation_id, 0, rng.randbytes(rng.choice((0, 5, 900))))
            )
            continue
        if kind < 0.6:
            key, version = rng.choice(kio_samples.CASES)
            entity = kio_samples.make(key, version, rng.randint(0, 500))
            answer = kio_samples.frame(entity, correlation_id)
            expected.append(
                kio_samples.for_client(
                    key, entity, correlation_id, lambda broker_id, _host, _port: advertised(broker_id), blanks
                )
            )
        else:
            key, version = rng.choice(PASSING)
            body = rng.randbytes(rng.choice((0, 1, 30, 3_000)))
            answer = struct.pack(">ii", len(body) + 4, correlation_id) + body
            expected.append(answer)
        answers.append(answer)
        if key == 0:
            sent.append(produce(version, correlation_id, rng.choice((-1, 1)), rng.randbytes(20)))
        else:
            sent.append(request(key, version, correlation_id, rng.randbytes(rng.choice((0, 1, 700)))))
    local = b"".join(struct.pack(">iIhihhh", 16, number, 35, 1, 18, 0, 5) for number in range(len(probes)))
    return Script(
        to_proxy=b"".join(probes + sent),
        from_broker=b"".join(answers),
        to_client=local + b"".join(expected),
        to_broker=b"".join(sent),
    )


@thorough
@given(
    seed=st.integers(0, 2**32),
    length=st.integers(1, 8),
    client_cuts=st.lists(st.integers(0, 6_000), max_size=20),
    broker_cuts=st.lists(st.integers(0, 30_000), max_size=20),
)
def test_result_is_independent_of_pieces(
    seed: int, length: int, client_cuts: list[int], broker_cuts: list[int]
) -> None:
    script = write_script(seed, length)
    play = Play.new()
    for piece in pieces(script.to_proxy, client_cuts):
        play.client(piece)
    for piece in pieces(script.from_broker, broker_cuts):
        play.broker(piece)
    assert bytes(play.to_broker) == script.to_broker
    assert bytes(play.to_client) == script.to_client
    assert play.session.in_flight == 0
    assert not play.client_rest
    assert not play.broker_rest


@settings(thorough, max_examples=examples(15))
@given(seed=st.integers(0, 2**32))
def test_frames_pass_byte_by_byte(seed: int) -> None:
    script = write_script(seed, 3)
    play = Play.new()
    for at in range(len(script.to_proxy)):
        play.client(script.to_proxy[at : at + 1])
    for at in range(len(script.from_broker)):
        play.broker(script.from_broker[at : at + 1])
    assert bytes(play.to_broker) == script.to_broker
    assert bytes(play.to_client) == script.to_client


@thorough
@given(seed=st.integers(0, 2**32), turns=st.lists(st.integers(1, 3_000), min_size=1, max_size=30))
def test_answers_before_the_end_of_requests_pass(seed: int, turns: list[int]) -> None:
    """The broker answers as soon as it has a request, however much the client has sent since."""
    script = write_script(seed, 6)
    play = Play.new()
    answered = 0
    sent = 0
    for turn in [*turns, len(script.to_proxy)]:
        play.client(script.to_proxy[sent : sent + turn])
        sent += turn
        while play.session.in_flight and answered < len(script.from_broker):
            # At most the frame of the oldest request: the client may not have sent the next one.
            (size,) = struct.unpack_from(">i", script.from_broker, answered)
            play.broker(script.from_broker[answered : answered + 4 + size])
            answered += 4 + size
    assert bytes(play.to_client) == script.to_client
    assert bytes(play.to_broker) == script.to_broker


@thorough
@given(seed=st.integers(0, 2**32), length=st.integers(1, 8), at=st.integers(0, 6_000))
def test_a_drain_never_cuts_a_frame_or_an_answer(seed: int, length: int, at: int) -> None:
    script = write_script(seed, length)
    play = Play.new()
    play.client(script.to_proxy[:at])
    play.session.drain()
    play.client(script.to_proxy[at:])
    assert script.to_broker.startswith(play.to_broker)
    frames = 0
    while frames < len(play.to_broker):
        frames += 4 + struct.unpack_from(">i", play.to_broker, frames)[0]
    assert frames == len(play.to_broker), "a request was cut off"
    answered = 0
    while not play.session.is_drained:
        (size,) = struct.unpack_from(">i", script.from_broker, answered)
        play.broker(script.from_broker[answered : answered + 4 + size])
        answered += 4 + size
    assert script.to_client.startswith(play.to_client)


@thorough
@given(data=st.lists(st.binary(max_size=60), max_size=10))
def test_client_garbage_raises_only_wire_errors(data: list[bytes]) -> None:
    """Nothing but a WireError is raised, and every byte is forwarded, kept or discarded."""
    play = Play.new()
    given_bytes = 0
    try:
        for piece in data:
            given_bytes += len(piece)
            play.client(piece)
    except WireError:
        return
    if not play.to_client:
        assert len(play.to_broker) + len(play.client_rest) == given_bytes


@thorough
@given(
    seed=st.integers(0, 2**32),
    damage=st.lists(st.tuples(st.integers(0, 800), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_damaged_requests_give_equal_results_at_any_split(seed: int, damage: list[tuple[int, int]]) -> None:
    stream = bytearray(write_script(seed, 5).to_proxy)
    for at, value in damage:
        stream[at % len(stream)] = value
    outcomes = []
    for cuts in ((), range(0, len(stream), 7)):
        play = Play.new(limits=Limits(max_request_bytes=1 << 16))
        outcome = "passed"
        try:
            for piece in pieces(bytes(stream), cuts):
                play.client(piece)
        except WireError as error:
            outcome = f"{error.peer}: {error.reason}"
        outcomes.append(
            (outcome, play.session.in_flight, bytes(play.to_client) if outcome == "passed" else b"")
        )
    assert outcomes[0] == outcomes[1], "the verdict depends on how the bytes arrived"
    assert not outcomes[0][0].startswith("broker")
