"""Parsing the lines of Kafka's verifiable clients; here a script prints the lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.core.errors import DemoError
from fleet.drills.workload.clients import WorkloadSpec
from fleet.drills.workload.history import NO_OFFSET, Event, HistoryReader, Record
from tests.chaos.harness import wait_for
from tests.chaos.seeded import client_kafka_tools
from tests.chaos.seeded.client_kafka_tools import Member, Producer, Tool

# Prints some lines, and at SIGTERM some more.
SCRIPT = """
import signal, sys
def end(*_):
    print({late!r}, end="", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print({lines!r}, end="", flush=True)
while {stays}:
    signal.pause()
"""
CLOSED = {"name": "shutdown_complete"}
Pretend = Callable[..., None]


@pytest.fixture
def spec(tmp_path: Path) -> WorkloadSpec:
    return WorkloadSpec("127.0.0.1:9", "t", str(tmp_path), partitions=2)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Sets the lines that a tool prints, and those at SIGTERM."""

    def printed(lines: list[dict[str, object]]) -> str:
        return "".join(
            json.dumps({"timestamp": time.time_ns() // 1_000_000, **each}) + "\n" for each in lines
        )

    def make(lines: list[dict[str, object]], late: list[dict[str, object]], stays: bool = True) -> None:
        script = SCRIPT.format(lines=printed(lines), late=printed(late), stays=stays)
        monkeypatch.setattr(client_kafka_tools, "java", lambda *_: [sys.executable, "-c", script])

    return make


def history(spec: WorkloadSpec, name: str) -> list[Event]:
    return list(HistoryReader(spec.path(name)).read())


def places(events: list[Event]) -> Iterator[tuple[int, Record, int]]:
    return ((each.partition, each.record, each.offset) for each in events)


def success(sequence: int, partition: int, offset: int) -> dict[str, object]:
    value = f"17.{sequence}"
    return {"name": "producer_send_success", "value": value, "partition": partition, "offset": offset}


def refused(sequence: int, exception: str) -> dict[str, object]:
    line = {"name": "producer_send_error", "value": f"17.{sequence}", "message": "no"}
    return {**line, "exception": f"class {exception}"}


def record(partition: int, offset: int) -> dict[str, object]:
    return {"name": "record_data", "value": f"17.{offset}", "partition": partition, "offset": offset}


def test_producer_lines_are_read_as_acknowledgements(
    spec: WorkloadSpec, pretend: Pretend, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = "java.lang.IllegalStateException"
    pretend(
        [{"name": "startup_complete"}, success(0, 0, 5), success(1, 1, -1), refused(2, closed)],
        [success(3, 1, 9), refused(4, closed), refused(5, "o.a.k.TimeoutException"), CLOSED],
    )
    producer = Producer(spec)
    wait_for(lambda: history(spec, "failed"), "the first failure")
    producer.check()
    producer.stop()
    assert list(places(history(spec, "acknowledged"))) == [
        (0, Record(17, 0), 5),
        (1, Record(17, 1), NO_OFFSET),
        (1, Record(17, 3), 9),
    ]
    # Without the record for which the tool used its client after it had closed the client.
    assert [each.record.sequence for each in history(spec, "failed")] == [2, 5]
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()] == [
        f"class {closed}: no",
        "class o.a.k.TimeoutException: no",
    ]


def test_times_are_those_of_the_monotonic_clock(spec: WorkloadSpec, pretend: Pretend) -> None:
    pretend([success(0, 0, 0)], [CLOSED])
    producer = Producer(spec)
    wait_for(lambda: history(spec, "acknowledged"), "the acknowledgement")
    producer.stop()
    (event,) = history(spec, "acknowledged")
    assert 0.0 <= time.monotonic() - event.at_s < 60.0


def test_member_stops_with_all_records_in_any_order(
    spec: WorkloadSpec,
    pretend: Pretend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[WorkloadSpec] = []

    def ends_of_log(spec: WorkloadSpec) -> dict[int, int]:
        asked.append(spec)
        return {0: 2, 1: 1}

    monkeypatch.setattr(client_kafka_tools, "ends_of_log", ends_of_log)
    consumed = {"name": "records_consumed"}
    failures = [
        {"name": "offsets_committed", "success": False, "error": "rebalancing"},
        {"name": "offsets_acknowledged", "success": False},
        {"name": "offsets_committed", "success": True},
    ]
    pretend([record(0, 1), record(1, 0), record(0, 0), record(0, 1), consumed, *failures], [CLOSED])
    Member("VerifiableShareConsumer", spec).stop()
    assert asked == [spec]
    assert [(each.partition, each.offset) for each in history(spec, "received")] == [
        (0, 1),
        (1, 0),
        (0, 0),
        (0, 1),
    ]
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()] == [
        "offsets_committed: rebalancing",
        "offsets_acknowledged: it failed",
    ]


def test_ended_tool_is_reported(spec: WorkloadSpec, pretend: Pretend) -> None:
    pretend([], [], stays=False)
    tool = Tool("VerifiableProducer", spec)

    def has_ended() -> bool:
        try:
            tool.check()
        except DemoError:
            return True
        return False

    wait_for(has_ended, "its end")


def test_tool_that_did_not_close_its_client_is_reported(spec: WorkloadSpec, pretend: Pretend) -> None:
    pretend([success(0, 0, 0)], [])
    producer = Producer(spec)
    wait_for(lambda: history(spec, "acknowledged"), "it is at work")
    with pytest.raises(DemoError, match="did not close its client"):
        producer.stop()
