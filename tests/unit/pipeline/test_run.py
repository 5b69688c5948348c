"""Running jobs, with queries that are none: Spark itself is in tests/pipeline and tests/spark_crosscheck."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.core.errors import PipelineError
from fleet.pipeline import run as run_module
from fleet.pipeline.jobs import Site
from fleet.pipeline.run import SLOW_START, STARTS, run
from fleet.pipeline.streams import Kafka

SITE = Site(Kafka(""), "fleet.", "out")
NO_SPARK: Any = None
"""Jobs alone look at it, and these here do not."""


@dataclass
class Query:
    """One that has ended.

    Args:
        error: what it ended with; None where it is through.
    """

    error: str | None = None
    isActive: bool = False
    recentProgress: list[Any] = field(default_factory=list)

    def exception(self) -> Exception | None:
        return None if self.error is None else Exception(self.error)

    def stop(self) -> None:
        """It has ended."""


def through(batch: int, records: int) -> Query:
    progress = SimpleNamespace(batchId=batch, numInputRows=records, durationMs={}, observedMetrics={})
    return Query(recentProgress=[progress])


def jobs(monkeypatch: pytest.MonkeyPatch, **starts: list[Query]) -> list[str]:
    """Have each job end as is told, start after start. Returns: what was started, as it is."""
    started: list[str] = []

    def job(name: str) -> Any:
        def start(*_arguments: object) -> Query:
            started.append(name)
            return starts[name].pop(0)

        return start

    monkeypatch.setattr(run_module, "JOBS", {name: job(name) for name in starts})
    monkeypatch.setattr(run_module, "LOOK_EVERY_S", 0.0)
    return started


def test_a_job_whose_python_is_slow_to_start_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: on a busy machine a run ended because one of seven Pythons took more than ten seconds."""
    slow = Query(f"[FAILED] {SLOW_START}.")
    started = jobs(monkeypatch, load=[slow, slow, through(0, 7)], weights=[through(0, 2)])
    said: list[str] = []
    document = run(NO_SPARK, SITE, ["load", "weights"], once=True, say=said.append)
    assert [(each.name, each.records) for each in document.jobs] == [("load", 7), ("weights", 2)]
    assert started == ["load", "load", "load", "weights"], (
        "what reads a job's files waits for it all the same"
    )
    assert sum("again" in line for line in said) == 2


@pytest.mark.parametrize(("error", "tries"), [(SLOW_START, STARTS), ("no such topic", 1)])
def test_what_does_not_pass_is_not_tried_for_ever(
    monkeypatch: pytest.MonkeyPatch, error: str, tries: int
) -> None:
    started = jobs(monkeypatch, load=[Query(error) for _ in range(STARTS + 1)])
    with pytest.raises(PipelineError, match=f"job load: {error}"):
        run(NO_SPARK, SITE, ["load"], once=True, say=lambda _: None)
    assert started == ["load"] * tries
