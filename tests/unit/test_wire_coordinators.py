"""A coordinator that has moved and kept its id: clients of old versions are told once that there is none."""

from __future__ import annotations

import importlib
import struct
from dataclasses import replace

import pytest
from kio.serial import entity_reader

from fleet.proxy.wire.coordinators import COORDINATOR_NOT_AVAILABLE
from tests.property.wire_fleet import DIRECTORY, Play, advertised

HOST = b"127.77.3.3"
VERSIONS = [0, 1, 2, 3]


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
    """What the client reads: error code, node id, host, port."""
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


def moved_play() -> Play:
    """A session that began before identity 1 moved from p1 to p2."""
    play = Play.new(DIRECTORY)
    moved = {**DIRECTORY.advertised, 1: ("p2",)}
    play.source.update(replace(DIRECTORY, generation=2, revision=2, advertised=moved))
    return play


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_of_an_old_version_is_told_once_that_there_is_no_coordinator(
    version: int, step: int
) -> None:
    """Found by a consumer of librdkafka that dialled a dead proxy until its session had expired."""
    play = moved_play()
    if version <= 2:
        assert ask(play, version, 1, step=step) == (COORDINATOR_NOT_AVAILABLE, -1, "", -1)
    host, port = advertised(2)
    assert ask(play, version, 1, step=step) == (0, 1, host, port - 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_identity_that_has_not_moved_and_an_error_pass_as_ever(version: int) -> None:
    play = moved_play()
    assert ask(play, version, 2) == (0, 2, *advertised(2))
    error = ask(play, version, -1, error_code=16)
    assert error[:2] == (16, -1)
    assert ask(play, version, 1, error_code=16)[0] == 16
