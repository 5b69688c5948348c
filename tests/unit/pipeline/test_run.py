"""Running jobs with fake queries. Tests with Spark are in tests/pipeline and tests/spark_crosscheck."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.core.errors import PipelineError
from fleet.pipeline import run as run_module
from fleet.pipeline.jobs import Site
from fleet.pipeline.run import MAX_STARTS, SLOW_START_ERROR, run
from fleet.pipeline.streams import Kafka

SITE = Site(Kafka(""), "fleet.", "out")
NO_SPARK: Any = None
"""Only jobs use the session, and the fake jobs do not."""


@dataclass
class Query:
    """A query that has ended.

    Args:
        error: the error that ended the query; None if the query succeeded.
    """

    error: str | None = None
    isActive: bool = False
    recentProgress: list[Any] = field(default_factory=list)

    def exception(self) -> Exception | None:
        return None if self.error is None else Exception(self.error)

    def stop(self) -> None:
        """Do nothing: the query has ended."""


def succeeded(batch: int, records: int) -> Query:
    progress = SimpleNamespace(batchId=batch, numInputRows=records, durationMs={}, observedMetrics={})
    return Query(recentProgress=[progress])


def jobs(monkeypatch: pytest.MonkeyPatch, **starts: list[Query]) -> list[str]:
    """Replace the jobs: each start of a job takes its next query. Returns: names of started jobs, live."""
    started: list[str] = []

    def job(name: str) -> Any:
        def start(*_arguments: object) -> Query:
            started.append(name)
            return starts[name].pop(0)

        return start

    monkeypatch.setattr(run_module, "JOBS", {name: job(name) for name in starts})
    monkeypatch.setattr(run_module, "POLL_PERIOD_S", 0.0)
    return started


def test_job_with_slow_python_start_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: on a busy machine a run ended because one of seven Pythons took more than ten seconds."""
    slow = Query(f"[FAILED] {SLOW_START_ERROR}.")
    started = jobs(monkeypatch, load=[slow, slow, succeeded(0, 7)], weights=[succeeded(0, 2)])
    lines: list[str] = []
    document = run(NO_SPARK, SITE, ["load", "weights"], once=True, say=lines.append)
    assert [(each.name, each.records) for each in document.jobs] == [("load", 7), ("weights", 2)]
    assert started == ["load", "load", "load", "weights"], (
        "a job that reads another job's files still waits for it"
    )
    assert sum("starting again" in line for line in lines) == 2


@pytest.mark.parametrize(("error", "tries"), [(SLOW_START_ERROR, MAX_STARTS), ("no such topic", 1)])
def test_starts_of_failing_job_are_limited(monkeypatch: pytest.MonkeyPatch, error: str, tries: int) -> None:
    started = jobs(monkeypatch, load=[Query(error) for _ in range(MAX_STARTS + 1)])
    with pytest.raises(PipelineError, match=f"job load: {error}"):
        run(NO_SPARK, SITE, ["load"], once=True, say=lambda _: None)
    assert started == ["load"] * tries
