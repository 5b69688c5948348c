"""The threads that talk to brokers survive errors of brokers and addresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from fleet.core.model import Endpoint
from fleet.events import publisher, weights
from fleet.events.publisher import Publisher
from fleet.events.spool import Record, Spool
from fleet.events.weights import WeightReader
from tests.conftest import PLAINTEXT

LIMIT_S = 30.0
NO_PORT = Endpoint("127.0.0.1", 2**31 - 1)
"""A broker may advertise such a port: Metadata has 32 bits for it."""
RECORD = Record("members", b"key", b"value")


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Servers:
    """Returns an unreachable broker address, and counts the calls."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls = 0
        self._error = error

    def __call__(self) -> Sequence[Endpoint]:
        self.calls += 1
        if self._error is not None:
            raise self._error
        return [NO_PORT]


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "BACKOFF_FIRST_S", 0.001)
    monkeypatch.setattr(weights, "BACKOFF_S", 0.001)


def make_publisher(servers: Servers, folder: Path) -> Publisher:
    return Publisher("test", servers, PLAINTEXT, "fleet.", folder / "spool", 1 << 20)


@pytest.mark.parametrize(
    "error", [None, ZeroDivisionError("of a library")], ids=["invalid port", "unexpected"]
)
def test_publisher_survives_failed_sending(error: Exception | None, tmp_path: Path) -> None:
    servers = Servers(error)
    sending = make_publisher(servers, tmp_path)
    sending.start()
    try:
        wait_until(lambda: servers.calls >= 3)
        sending.put([RECORD])
        wait_until(lambda: sending.progress.waiting == 1)
        assert ("KafkaConnection" if error is None else "ZeroDivision") in sending.progress.trouble
        assert sending.restarts == 0
    finally:
        sending.stop(LIMIT_S)


def test_publisher_survives_end_of_its_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, failures = Spool.append, [RuntimeError("of a library")]

    def fail_once(spool: Spool, records: Iterable[Record]) -> None:
        spool.dropped += 1
        if failures:
            raise failures.pop()
        append(spool, records)

    monkeypatch.setattr(Spool, "append", fail_once)
    sending = make_publisher(Servers(), tmp_path)
    sending.put([RECORD])
    sending.start()
    try:
        wait_until(lambda: sending.progress.waiting == 1)
        assert sending.restarts == 1
        assert sending.progress.dropped == 2  # including the record that the previous spool dropped
    finally:
        sending.stop(LIMIT_S)


@pytest.mark.parametrize(
    "error", [None, ZeroDivisionError("of a library")], ids=["invalid port", "unexpected"]
)
def test_weight_reader_connects_again_after_error(error: Exception | None) -> None:
    servers = Servers(error)
    reading = WeightReader(servers, PLAINTEXT, "fleet.", "demo", lambda _: None)
    reading.start()
    try:
        wait_until(lambda: servers.calls >= 2)
        assert (reading.restarts > 0) == (error is not None)
    finally:
        reading.stop(LIMIT_S)


def test_weight_reader_stops_at_any_time() -> None:
    for _ in range(20):
        reading = WeightReader(Servers(), PLAINTEXT, "fleet.", "demo", lambda _: None)
        reading.start()
        began_s = time.monotonic()
        reading.stop(LIMIT_S)
        assert time.monotonic() - began_s < LIMIT_S
