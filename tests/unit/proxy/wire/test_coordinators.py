"""A coordinator that has moved and kept its id: librdkafka gets one answer without a coordinator."""

from __future__ import annotations

import importlib
import struct
from dataclasses import replace

import pytest
from kio.serial import entity_reader

from fleet.proxy.wire.api_versions import read_software_name
from fleet.proxy.wire.coordinators import COORDINATOR_NOT_AVAILABLE
from fleet.proxy.wire.primitives import encode_varint
from tests.property.wire_fleet import DIRECTORY, Play, advertised, request

HOST = b"127.77.3.3"
VERSIONS = [0, 1, 2, 3]
LIBRDKAFKA = b"librdkafka"
MOVED = (0, 1, advertised(2)[0], advertised(2)[1] - 1)
"""The address that a client gets for identity 1 after its move."""


def found(version: int, correlation_id: int, broker_id: int, error_code: int = 0) -> bytes:
    """A broker's answer; a flexible one in v3."""
    body = struct.pack(">i", correlation_id)
    if version == 3:
        body += b"\0" + struct.pack(">ihB", 7, error_code, 0) + struct.pack(">iB", broker_id, len(HOST) + 1)
        body += HOST + struct.pack(">i", 9092) + b"\0"
    else:
        body += b"" if version == 0 else struct.pack(">i", 7)
        body += struct.pack(">h", error_code) + (b"" if version == 0 else struct.pack(">h3s", 3, b"why"))
        body += struct.pack(">ih", broker_id, len(HOST)) + HOST + struct.pack(">i", 9092)
    return struct.pack(">i", len(body)) + body


def ask(
    play: Play, version: int, broker_id: int, error_code: int = 0, step: int = 1000
) -> tuple[int, int, str, int]:
    """Return the parsed response: error code, node id, host, port."""
    play.to_client.clear()
    play.ask((10, version, 9))
    answer = found(version, 9, broker_id, error_code)
    for at in range(0, len(answer), step):
        play.broker(answer[at : at + step])
    assert play.session.in_flight == 0
    module = importlib.import_module(f"kio.schema.find_coordinator.v{version}.response")
    kind = module.FindCoordinatorResponse
    raw = bytes(play.to_client)
    assert int.from_bytes(raw[:4], "big") == len(raw) - 4
    _, at = entity_reader(kind.__header_schema__)(raw, 4)
    body, read = entity_reader(kind)(raw, 4 + at)
    assert 4 + at + read == len(raw)
    return body.error_code.value, body.node_id, body.host, body.port


def compact(text: bytes) -> bytes:
    return encode_varint(len(text) + 1) + text


def question(version: int, name: bytes) -> bytes:
    """An ApiVersions request of version 3 or above."""
    return request(18, version, 1, b"\0" + compact(name) + compact(b"1.0") + b"\0")


def moved_play(name: bytes | None = LIBRDKAFKA) -> Play:
    """A session that began before identity 1 moved from p1 to p2; its client may have sent a software
    name."""
    play = Play.new(DIRECTORY)
    if name is not None:
        play.client(question(3, name))
        play.broker(struct.pack(">iihii", 14, 1, 0, 0, 0))  # version 0: no range is listed
    moved = {**DIRECTORY.advertised, 1: ("p2",)}
    play.source.update(replace(DIRECTORY, generation=2, revision=2, advertised=moved))
    return play


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("version", VERSIONS)
def test_librdkafka_gets_no_coordinator_once(version: int, step: int) -> None:
    """Found with a librdkafka consumer that dialed a dead proxy until its session had expired."""
    play = moved_play()
    if version <= 2:
        assert ask(play, version, 1, step=step) == (COORDINATOR_NOT_AVAILABLE, -1, "", -1)
    assert ask(play, version, 1, step=step) == MOVED


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [None, b"", b"sarama", b"apache-kafka-java", b"kafka"])
def test_other_libraries_get_the_answer_at_once(name: bytes | None, version: int) -> None:
    """Found with kafka-go, which opens a connection for each request, and got no coordinator for ten
    minutes."""
    assert ask(moved_play(name), version, 1) == MOVED


@pytest.mark.parametrize("name", [b"confluent-kafka-python", b"confluent-kafka-go", b"rust-rdkafka"])
def test_libraries_with_librdkafka_are_recognized(name: bytes) -> None:
    assert ask(moved_play(name), 2, 1)[0] == COORDINATOR_NOT_AVAILABLE


def test_librdkafka_is_recognized_in_an_unknown_version() -> None:
    play = moved_play(None)
    frame = question(300, LIBRDKAFKA)
    for at in range(len(frame)):
        play.client(frame[at : at + 1])
    assert ask(play, 2, 1)[0] == COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("cut", range(14, len(question(3, LIBRDKAFKA)) - 7))
def test_truncated_name_is_empty(cut: int) -> None:
    assert LIBRDKAFKA not in read_software_name(memoryview(question(3, LIBRDKAFKA)[:cut]))


@pytest.mark.parametrize("version", VERSIONS)
def test_unmoved_identity_and_errors_pass_unchanged(version: int) -> None:
    play = moved_play()
    assert ask(play, version, 2) == (0, 2, *advertised(2))
    error = ask(play, version, -1, error_code=16)
    assert error[:2] == (16, -1)
    assert ask(play, version, 1, error_code=16)[0] == 16
