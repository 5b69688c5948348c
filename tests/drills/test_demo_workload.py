"""The offset at which a workload's consumer stops."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from fleet.drills.workload import clients
from fleet.drills.workload.clients import WorkloadSpec, ends_of_log
from fleet.drills.workload.history import Event, HistoryWriter, Record


class Brokers:
    """Brokers that report a later high watermark at each query."""

    def __init__(self, *offsets: int) -> None:
        self.offsets = list(offsets)

    def list_offsets(self, wanted: dict[TopicPartition, Any], request_timeout: int) -> dict[Any, Any]:
        (place,) = wanted
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(offset=self.offsets.pop(0)))
        return {place: answer}


@pytest.fixture
def spec(tmp_path: Path) -> WorkloadSpec:
    """One partition, whose first three records were acknowledged."""
    made = WorkloadSpec("nowhere:1", "topic", str(tmp_path), partitions=1)
    history = HistoryWriter(made.path("acknowledged"))
    for offset in range(3):
        history.append(Event(1.0 + offset, 0, Record(7, offset), offset))
    history.close()
    return made


def test_log_end_waits_for_replication_of_an_acknowledged_record(
    spec: WorkloadSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a run with acks=1: its last record was not consumed, and counted as lost."""
    brokers = Brokers(2, 2, 3, 4)
    monkeypatch.setattr(clients, "AdminClient", lambda _: brokers)
    assert ends_of_log(spec) == {0: 3}
    assert brokers.offsets == [4]


def test_log_end_stops_waiting_for_a_lost_record(spec: WorkloadSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "REPLICATION_LIMIT_S", 0.0)
    brokers = Brokers(*[2] * 10_000)
    monkeypatch.setattr(clients, "AdminClient", lambda _: brokers)
    assert ends_of_log(spec) == {0: 2}
