"""The model broker answers as real brokers do: both get the same requests, one after the other."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from fleet.core.model import Endpoint
from fleet.drills.cluster.kafka import KafkaCluster
from tests.integration.wire import Connection
from tests.property.kafka_requests import NO_TAGS, SOFTWARE, ask, handshake, token
from tests.property.model_broker import (
    API_VERSIONS,
    PRODUCE,
    SASL_AUTHENTICATE,
    UNKNOWN_API,
    VALID_TOKEN_PART,
    Answer,
    ModelBroker,
    Setup,
    Versions,
    frame_response,
    has_form_0,
)

pytestmark = [pytest.mark.size("test-all"), pytest.mark.timeout(600)]

CREDENTIALS = b"\0" + VALID_TOKEN_PART + b"\0secret"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
METADATA, HEARTBEAT = 3, 12
NO_TOPICS = bytes(4)
NO_TOPICS_COMPACT = b"\1"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One broker that requires SASL PLAIN on one listener, and nothing on the other."""
    properties = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": (
            f'{LOGIN} required user_{VALID_TOKEN_PART.decode()}="secret";'
        ),
    }
    folder = tmp_path_factory.mktemp("pairing")
    with KafkaCluster(1, folder, secured={"sasl": "SASL_PLAINTEXT"}, properties=properties) as cluster:
        yield cluster


def metadata(correlation_id: int) -> bytes:
    return ask(METADATA, 1, correlation_id, NO_TOPICS)


def authenticate(correlation_id: int, secret: bytes = CREDENTIALS) -> bytes:
    return ask(SASL_AUTHENTICATE, 1, correlation_id, struct.pack(">i", len(secret)) + secret)


def produce(correlation_id: int, acks: int, tags: bytes = NO_TAGS, transactional_id: bytes = b"\0") -> bytes:
    """Version 9, the first flexible one, for no topic."""
    body = transactional_id + struct.pack(">hi", acks, 30_000) + NO_TOPICS_COMPACT + NO_TAGS
    return ask(PRODUCE, 9, correlation_id, body, tags)


def versions(version: int, correlation_id: int) -> bytes:
    return ask(API_VERSIONS, version, correlation_id, SOFTWARE if version >= 3 else b"")


ANYWHERE = {
    "unknown-versions": [versions(number, 7) for number in (32767, 300, 256, 255, -1, -32768)],
    "unknown-version-with-a-broken-header": [ask(API_VERSIONS, 300, 7, b"", b"\x05")],
    "known-version-with-a-broken-body": [ask(API_VERSIONS, 3, 7, b"")],
    "unknown-api": [ask(UNKNOWN_API, 0, 7)],
    "unknown-version-of-another-api": [ask(METADATA, 99, 7)],
}
WITHOUT_SASL = {
    "known-versions": [versions(number, 7) for number in (0, 1, 2, 3, 4, 3)],
    "handshakes": [handshake(1, 7, b"PLAIN"), handshake(0, 8, b"PLAIN"), metadata(9)],
    "authentication": [handshake(1, 7, b"PLAIN"), authenticate(8), versions(300, 9)],
    "acks": [produce(7, 0), metadata(7), produce(7, 1), produce(7, 0), metadata(8)],
    "acks-of-256": [produce(7, 256), metadata(8)],
    "other-ways-to-write-a-produce-header": [
        produce(7, 0, b"\1\5\2ab"),
        produce(7, 0, b"\x80\0"),
        produce(7, 0, NO_TAGS, b"\x80\0"),
        produce(7, 0, NO_TAGS, b"\1"),
        metadata(8),
    ],
    "negative-number-of-tags": [produce(7, 1, b"\xff\xff\xff\xff\x0f"), metadata(8)],
}
IN_PLACE_OF_A_TOKEN = {
    "known-versions": versions(3, 8),
    "unknown-versions": versions(300, 8),
    "negative-versions": versions(-1, 8),
    "metadata": metadata(8),
    "heartbeat": ask(HEARTBEAT, 0, 8, b"\0\1g" + bytes(4) + b"\0\1m"),
    "produce": produce(8, 1),
    "produce-without-an-answer": produce(8, 0),
    "handshake": handshake(1, 8, b"PLAIN"),
}
WITH_SASL = {
    "versions-twice": [versions(300, 7), versions(300, 7), versions(3, 7), versions(3, 7)],
    "work-first": [metadata(7)],
    "work-without-an-answer-first": [produce(7, 0)],
    "authentication-first": [authenticate(7)],
    "unknown-mechanism": [handshake(1, 7, b"GSSAPI")],
    **{
        f"in-place-of-a-token-{name}": [handshake(1, 7, b"PLAIN"), frame]
        for name, frame in IN_PLACE_OF_A_TOKEN.items()
    },
    "wrong-password": [handshake(1, 7, b"PLAIN"), authenticate(8, b"\0bad\0bad")],
    "work": [
        *(handshake(1, 7, b"PLAIN"), authenticate(8), metadata(9), produce(9, 0)),
        *(handshake(1, 10, b"PLAIN"), handshake(0, 10, b"PLAIN"), authenticate(11)),
        *(versions(300, 12), versions(3, 12), metadata(13)),
    ],
    "tokens-without-headers": [handshake(0, 7, b"PLAIN"), token(CREDENTIALS), metadata(9)],
    "versions-in-place-of-a-bare-token": [handshake(0, 7, b"PLAIN"), versions(300, 8)],
}


@pytest.mark.parametrize("name", [*ANYWHERE, *WITHOUT_SASL])
def test_model_answers_as_a_broker_without_sasl(secured: KafkaCluster, name: str) -> None:
    model = ModelBroker(Setup(newest_api_versions=newest_api_versions(secured)))
    compare(secured.endpoints[0], model, (ANYWHERE | WITHOUT_SASL)[name])


@pytest.mark.parametrize("name", [*ANYWHERE, *WITH_SASL])
def test_model_answers_as_a_broker_with_sasl(secured: KafkaCluster, name: str) -> None:
    newest = newest_api_versions(secured)
    model = ModelBroker(Setup(sasl=True, mechanisms=frozenset({"PLAIN"}), newest_api_versions=newest))
    compare(secured.listener("sasl", 1), model, (ANYWHERE | WITH_SASL)[name])


def newest_api_versions(cluster: KafkaCluster) -> int:
    """The newest version of ApiVersions that a broker lists."""
    with Connection(cluster.endpoints[0]) as connection:
        body = connection.ask(versions(0, 1))
    ranges = {key: high for key, _, high in struct.iter_unpack(">hhh", body[6:])}
    return int(ranges[API_VERSIONS])


def compare(endpoint: Endpoint, model: ModelBroker, frames: list[bytes]) -> None:
    """Send one request after the other.

    A missing answer shows at the next request, or at the connection's end.
    """
    with Connection(endpoint) as connection:
        for frame in frames:
            assert not model.closed, "the rest is for nobody"
            answer = model.handle(frame[4:])
            connection.send(frame)
            if answer is not None:
                expect(connection, answer)
        if model.closed:
            assert connection.ends()
        elif model.is_authenticated:
            assert connection.ask(versions(32767, 99)), "the broker has closed what the model keeps open"


def expect(connection: Connection, answer: Answer) -> None:
    """Receive the answer that the model predicts."""
    if answer.key is None:
        assert connection.receive_bare() == b""  # the mechanism's last message is empty
        return
    correlation_id, body = connection.receive()
    assert correlation_id == answer.correlation_id
    if answer.error is not None:
        assert struct.unpack_from(">h", body)[0] == answer.error
    if isinstance(answer.content, Versions):
        assert has_form_0(frame_response(correlation_id, body)) == has_form_0(answer.frame)
