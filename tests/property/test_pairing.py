"""Every answer is paired with its request, whatever the client sends and whichever Kafka answers.

A client chooses all bytes of its requests, including correlation ids, and many bytes of the answers. If a
client
made the session pair an answer with another request, real addresses would reach the client, or the session
would take addresses that the client invented for those of brokers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.property import kio_samples, model_broker
from tests.property.conversation import ALL_BYTES, Conversation
from tests.property.kafka_requests import NO_TAGS, SOFTWARE, ask, authenticate, handshake, produce, token
from tests.property.model_broker import (
    API_VERSIONS,
    PRODUCE,
    TOKENS_OF_MECHANISM,
    UNKNOWN_API,
    VALID_TOKEN_PART,
    Answer,
    ModelBroker,
    Setup,
    versions_of,
)

thorough = settings(max_examples=examples(1_000), deadline=None, suppress_health_check=[HealthCheck.too_slow])

SHARED_CORRELATION_ID: Final = 0x41424344
"""The correlation id of all requests of a client."""
EVIL_HOST: Final = b"evil.example"
EVIL_BROKER: Final = struct.pack(">ihh", 1, 1, len(EVIL_HOST)) + EVIL_HOST + struct.pack(">i", 9220)
"""A Metadata response, and the end of other responses, with a broker at the client's own address."""
METADATA, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 3, 10, 11, 12, 14
DESCRIBE_GROUPS, LIST_GROUPS, OFFSET_FETCH, DELETE_GROUPS = 15, 16, 9, 42
ECHOING_APIS: Final = (
    OFFSET_FETCH,
    JOIN_GROUP,
    HEARTBEAT,
    SYNC_GROUP,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    DELETE_GROUPS,
)
"""APIs without addresses, whose responses repeat bytes of the client."""


@dataclass(frozen=True)
class Step:
    """A step: the name of a method of ``Conversation``, and its arguments."""

    name: str
    argument: bytes | int | None = None

    def take(self, conversation: Conversation) -> None:
        arguments = () if self.argument is None else (self.argument,)
        getattr(conversation, self.name)(*arguments)


# The bytes that clients may send

int16s = st.integers(-(2**15), 2**15 - 1)
correlation_ids = st.sampled_from(
    (SHARED_CORRELATION_ID, SHARED_CORRELATION_ID, SHARED_CORRELATION_ID, 0, -1, 2**31 - 1)
) | st.integers(-(2**31), 2**31 - 1)
client_ids = st.sampled_from((b"tester", b"tester", None, b"", b"x" * 300))
TAG_SECTIONS: Final = (
    NO_TAGS,
    b"\x01\x05\x02ab",
    b"\x01\0\0",
    b"\x80\0",  # a longer way to write 0
    b"\x82\x80\0\0\0\1\0",
    b"\x11" + b"\1\0" * 17,
    b"\xff\xff\xff\xff\x0f",  # -1 fields, which Kafka takes for none
    b"\x81\x80\x80\x80\x10\0\0",  # 2**32 + 1 fields, which is 1
)
tag_sections = st.sampled_from((NO_TAGS, *TAG_SECTIONS))
bodies = st.sampled_from((b"", EVIL_BROKER, EVIL_BROKER * 20, b"g" * 70)) | st.binary(max_size=40)
tokens = st.sampled_from(
    (VALID_TOKEN_PART, b"bad", VALID_TOKEN_PART + EVIL_BROKER, b"\0\x0c\0\1ABCD" + VALID_TOKEN_PART)
)
mechanisms = st.sampled_from((*map(str.encode, TOKENS_OF_MECHANISM), b"GSSAPI", b"NONE", b""))
api_versions_versions = (
    st.sampled_from((0, 2, 3, 4, 5, 6, 7, 255, 256, 257, 300, 2**15 - 1, -1, -256, -(2**15))) | int16s
)
TRANSACTIONAL_IDS: Final = (
    b"",  # null, as the version has it
    b"\0",
    b"\1",
    b"\3tx",
    b"\xff\xff",
    b"\0\0",
    b"\0\2tx",
    b"\x80\0",
    b"\x81\0",
    b"\xac\2" + b"t" * 299,
    b"\x83\x80\x80\x80\x10tx",  # 2**32 + 3, which is 3
    b"\xff\xfe",  # a negative length, which is null
)
"""Encoded in the classic or in the compact form."""
transactional_ids = st.sampled_from((b"", *TRANSACTIONAL_IDS))
acks = st.sampled_from((0, 0, 1, -1, 256, -256)) | int16s
carrying = st.sampled_from(kio_samples.CASES).filter(lambda case: case[0] != PRODUCE)
anything = st.tuples(st.sampled_from(range(96)) | int16s, st.integers(-1, 20) | int16s)
echoing = st.sampled_from([(key, version) for key in ECHOING_APIS for version in versions_of(key)])
later = st.sampled_from([(key, versions_of(key)[-1] + more) for key in (3, 10, 60, 12) for more in (1, 2)])


def ask_api(api: tuple[int, int], *rest: object) -> bytes:
    return ask(*api, *rest)  # type: ignore[arg-type]


requests = st.one_of(
    st.builds(ask_api, carrying, correlation_ids, bodies),
    st.builds(ask_api, echoing, correlation_ids, bodies),
    st.builds(ask_api, carrying | echoing, correlation_ids, bodies, tag_sections, client_ids),
    st.builds(ask_api, anything | later | st.just((UNKNOWN_API, 0)), correlation_ids, bodies),
    st.builds(
        ask,
        st.just(API_VERSIONS),
        api_versions_versions,
        correlation_ids,
        st.sampled_from((SOFTWARE, SOFTWARE, b"\1\1\0", b"")),
        tag_sections,
        client_ids,
    ),
    st.builds(
        produce, st.integers(-1, 15), correlation_ids, acks, transactional_ids, tag_sections, client_ids
    ),
    st.builds(handshake, st.sampled_from((1, 1, 1, 0, 2)), correlation_ids, mechanisms),
    st.builds(authenticate, st.sampled_from((0, 1, 2, 3)), correlation_ids, tokens),
    st.builds(token, tokens),
    st.builds(lambda size, rest: struct.pack(">i", size) + rest, st.integers(-1, 40), st.binary(max_size=30)),
)
sizes = st.just(ALL_BYTES) | st.integers(0, 60)
steps = st.one_of(
    st.builds(Step, st.just("ask"), requests),
    st.builds(Step, st.just("ask"), requests),
    st.builds(Step, st.just("ask"), requests),
    st.builds(Step, st.just("deliver"), sizes),
    st.builds(Step, st.just("handle"), st.just(ALL_BYTES) | st.integers(1, 2)),
    st.builds(Step, st.just("respond"), sizes),
    st.sampled_from((Step("redirect"), Step("drain"), Step("finish"), Step("finish"))),
)
setups = st.builds(
    Setup,
    sasl=st.booleans(),
    gssapi=st.booleans(),
    reauthenticates=st.booleans(),
    newest_api_versions=st.sampled_from((0, 3, 4, 5, 7)),
    is_later=st.booleans(),
)


def ask_in_turn(*frames: bytes) -> list[Step]:
    """Send one request after the other, each answered before the next."""
    return [step for frame in frames for step in (Step("ask", frame), Step("finish"))]


GREETING: Final = ask(API_VERSIONS, 3, 0, SOFTWARE)
FAKE: Final = ask(API_VERSIONS, 300, SHARED_CORRELATION_ID)
"""Looks like a token if the version is taken for a part of it."""
SCRAM: Final = "SCRAM-SHA-256"
BEGINNINGS: Final[Sequence[tuple[Setup, list[Step]]]] = (
    *((Setup(sasl=False, is_later=is_later), []) for is_later in (False, True)),
    (Setup(sasl=True), ask_in_turn(GREETING)),
    (Setup(sasl=True), ask_in_turn(GREETING, handshake(1, 1, b"PLAIN"))),
    (Setup(sasl=True), ask_in_turn(GREETING, handshake(1, 1, b"PLAIN"), authenticate(2, 2))),
    (Setup(sasl=True), ask_in_turn(handshake(1, 1, SCRAM.encode()), authenticate(0, 2))),
    (
        Setup(sasl=True, reauthenticates=True),
        ask_in_turn(handshake(1, 1, b"PLAIN"), authenticate(1, 2), handshake(1, 3, b"PLAIN")),
    ),
    (Setup(sasl=True, reauthenticates=True), ask_in_turn(handshake(1, 1, b"PLAIN"), authenticate(1, 2))),
)
"""The states in which a client may start to send arbitrary bytes."""


def play(broker: ModelBroker, script: Sequence[Step]) -> Conversation:
    conversation = Conversation(broker)
    for step in script:
        step.take(conversation)
    conversation.finish()
    return conversation


def received_beyond_echoes(conversation: Conversation) -> bytes:
    """All bytes that have reached the client, without its own ones."""
    return bytes(conversation.play.to_client).replace(EVIL_BROKER, b"")


SHIFT: Final = [
    Step("ask", frame)
    for frame in (
        handshake(0, 1, b"GSSAPI"),
        FAKE,
        ask(HEARTBEAT, 1, SHARED_CORRELATION_ID),
        ask(METADATA, 1, SHARED_CORRELATION_ID),
        ask(LIST_GROUPS, 0, SHARED_CORRELATION_ID),
    )
]
"""Once made a session pair the answer to ``FAKE`` with the next request: Metadata passed unread."""
SHIFT_WITHOUT_HANDSHAKE: Final = SHIFT[1:]
SHIFT_AFTER_HANDSHAKE: Final = [Step("ask", handshake(1, SHARED_CORRELATION_ID, b"GSSAPI")), *SHIFT[1:]]
POISON: Final = [
    *SHIFT[:2],
    Step("ask", ask(DELETE_GROUPS, 0, SHARED_CORRELATION_ID, EVIL_BROKER.ljust(256, b"x"))),
    Step("ask", ask(FIND_COORDINATOR, 1, SHARED_CORRELATION_ID)),
]
"""Once made a session read the client's bytes as the address of a broker."""
POISON_BY_ASSIGNMENT: Final = [
    *SHIFT[:2],
    Step("ask", ask(SYNC_GROUP, 0, SHARED_CORRELATION_ID, EVIL_BROKER.ljust(65_536, b"\0"))),
    Step("ask", ask(METADATA, 0, SHARED_CORRELATION_ID)),
]
SIGNATURE: Final = VALID_TOKEN_PART + b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="
SHIFT_BY_SIGNATURE: Final = [
    *ask_in_turn(handshake(0, 1, SCRAM.encode()), token(VALID_TOKEN_PART)),
    Step("ask", token(SIGNATURE)),
    *(
        Step("ask", ask(key, version, int.from_bytes(SIGNATURE[:4], "big")))
        for key, version in ((HEARTBEAT, 1), (METADATA, 1), (LIST_GROUPS, 0))
    ),
]
"""Once made a session take a SASL token for the answer to a request, by its first bytes."""

EVIL_METADATA: Final = (
    struct.pack(">iih", 1, 1, len(EVIL_HOST))
    + EVIL_HOST
    + struct.pack(">ih", 9220, -1)
    + struct.pack(">ii", 1, 0)
)
POISON_BY_TOKEN: Final = [
    *ask_in_turn(handshake(0, 1, SCRAM.encode())),
    Step(
        "ask",
        ask(
            METADATA,
            1,
            SHARED_CORRELATION_ID,
            VALID_TOKEN_PART + struct.pack(">i", SHARED_CORRELATION_ID) + EVIL_METADATA,
        ),
    ),
]
"""A token that looks like a request, and whose answer looks like a response."""
BEAT: Final = ask(HEARTBEAT, 1, SHARED_CORRELATION_ID)
HEARTBEAT_ALONE: Final = [*ask_in_turn(BEAT), Step("redirect"), Step("ask", BEAT), Step("deliver")]
HEARTBEAT_BEHIND_OTHERS: Final = [
    *ask_in_turn(BEAT),
    *(Step("ask", ask(METADATA, 1, SHARED_CORRELATION_ID)), Step("deliver"), Step("redirect")),
    *(Step("ask", ask(HEARTBEAT, 1, SHARED_CORRELATION_ID)), Step("deliver")),
]
"""The fleet may answer a heartbeat itself, but not before an earlier answer."""

UNKNOWN_VERSIONS: Final = [
    Step("ask", frame)
    for frame in (
        ask(HEARTBEAT, 1, SHARED_CORRELATION_ID),  # otherwise the fleet answers these requests itself
        *(ask(API_VERSIONS, version, SHARED_CORRELATION_ID) for version in (-1, 255, 256, 300)),
    )
]
"""The broker answers each, and lists more than the fleet offers."""


@thorough
@given(setup=setups, script=st.lists(steps, max_size=24))
@example(setup=Setup(), script=SHIFT)
@example(setup=Setup(), script=SHIFT_WITHOUT_HANDSHAKE)
@example(setup=Setup(), script=SHIFT_AFTER_HANDSHAKE)
@example(setup=Setup(), script=POISON)
@example(setup=Setup(), script=POISON_BY_ASSIGNMENT)
@example(setup=Setup(sasl=True), script=SHIFT_BY_SIGNATURE)
@example(setup=Setup(sasl=True), script=POISON_BY_TOKEN)
@example(setup=Setup(newest_api_versions=7), script=UNKNOWN_VERSIONS)
@example(setup=Setup(), script=HEARTBEAT_BEHIND_OTHERS)
@example(setup=Setup(), script=HEARTBEAT_ALONE)
def test_every_answer_is_treated_as_the_answer_to_its_request(setup: Setup, script: list[Step]) -> None:
    """``Conversation`` compares the output after each step."""
    conversation = play(ModelBroker(setup), script)
    assert b"real-broker" not in received_beyond_echoes(conversation)
    assert all(b"evil" not in each.host.encode() for each in conversation.play.seen)


@thorough
@given(beginning=st.sampled_from(BEGINNINGS), script=st.lists(steps, max_size=16))
def test_no_connection_state_leaks_a_broker_address(
    beginning: tuple[Setup, list[Step]], script: list[Step]
) -> None:
    setup, first = beginning
    conversation = play(ModelBroker(setup), [*first, *script])
    assert b"real-broker" not in received_beyond_echoes(conversation)


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("acks", [0, 1, 256])
def test_acks_are_read_as_kafka_reads_them(version: int, acks: int) -> None:
    """A header that Kafka and the fleet would read differently must not pass."""
    for tags, transactional_id, client_id in product(TAG_SECTIONS, TRANSACTIONAL_IDS, (b"tester", b"", None)):
        sent = produce(version, SHARED_CORRELATION_ID, acks, transactional_id, tags, client_id)
        play(
            ModelBroker(),
            [Step("ask", sent), Step("ask", ask(METADATA, 1, SHARED_CORRELATION_ID)), Step("finish")],
        )


# Well-behaved clients

honest_requests = st.one_of(
    st.builds(ask_api, carrying, correlation_ids, bodies),
    st.builds(ask_api, echoing, correlation_ids, bodies),
    st.builds(ask, st.just(API_VERSIONS), st.integers(0, 5), correlation_ids, st.just(SOFTWARE)),
    st.builds(produce, st.integers(3, 13), correlation_ids, st.sampled_from((0, 1, -1))),
)


@thorough
@given(
    setup=setups,
    mechanism=st.sampled_from(sorted(TOKENS_OF_MECHANISM)),
    probes=st.integers(0, 2),
    work=st.lists(st.lists(honest_requests, min_size=1, max_size=8), max_size=4),
    cuts=st.lists(st.integers(1, 200), max_size=4),
)
def test_correct_clients_are_never_refused(
    setup: Setup, mechanism: str, probes: int, work: list[list[bytes]], cuts: list[int]
) -> None:
    """Clients request versions, authenticate, send several requests at a time, and authenticate again if
    necessary."""
    conversation = Conversation(ModelBroker(setup))

    def exchange(*frames: bytes) -> None:
        conversation.ask(*frames)
        for size in cuts:
            conversation.deliver(size)
            conversation.handle(1)
            conversation.respond(size)
        conversation.finish()
        assert conversation.fault is None
        assert not conversation.broker.closed
        assert conversation.is_idle
        assert conversation.play.session.in_flight == 0

    for number in range(probes):
        exchange(ask(API_VERSIONS, 2**15 - 1, number, SOFTWARE))
    exchange(ask(API_VERSIONS, min(setup.newest_api_versions, 5), SHARED_CORRELATION_ID, SOFTWARE))
    for batch in work or [[]]:
        if setup.sasl and (setup.reauthenticates or not work or batch is work[0]):
            exchange(handshake(1, SHARED_CORRELATION_ID, mechanism.encode()))
            for _ in range(TOKENS_OF_MECHANISM[mechanism]):
                exchange(authenticate(2, SHARED_CORRELATION_ID))
        exchange(*batch)


# The oracle


class SilentBroker(ModelBroker):
    """Does not answer ApiVersions from version 256 on."""

    def answer_frame(self, frame: bytes) -> Answer | None:
        answer = super().answer_frame(frame)
        key, version = struct.unpack_from(">hh", frame)
        return None if key == API_VERSIONS and version >= 256 else answer


class TalkativeBroker(ModelBroker):
    """Answers requests without a response: Produce with acks=0."""

    def answer_frame(self, frame: bytes) -> Answer | None:
        answer = super().answer_frame(frame)
        if answer is None:
            header = model_broker.read_header(frame)
            return self._answer(header, frame, model_broker.NO_ERROR)
        return answer


@pytest.mark.parametrize(
    ("broker", "frames"),
    [
        (
            SilentBroker,
            [
                ask(HEARTBEAT, 1, SHARED_CORRELATION_ID),
                FAKE,
                ask(HEARTBEAT, 1, SHARED_CORRELATION_ID),
                ask(METADATA, 1, SHARED_CORRELATION_ID),
            ],
        ),
        (
            TalkativeBroker,
            [
                produce(9, SHARED_CORRELATION_ID, 0),
                ask(METADATA, 1, SHARED_CORRELATION_ID),
                ask(HEARTBEAT, 1, SHARED_CORRELATION_ID),
            ],
        ),
    ],
)
def test_extra_or_missing_answer_is_found(broker: type[ModelBroker], frames: list[bytes]) -> None:
    script = [Step("ask", frame) for frame in frames]
    assert play(ModelBroker(), script).fault is None
    with pytest.raises(AssertionError):
        play(broker(), script)
