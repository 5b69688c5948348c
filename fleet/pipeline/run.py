"""Runs jobs until they end, or until a signal stops them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fleet.core.errors import PipelineError
from fleet.pipeline.documents import JobDocument, PipelineDocument
from fleet.pipeline.jobs import DEAD_LETTER_COUNT, JOBS, Site, root_cause

Say: TypeAlias = Callable[[str], None]

POLL_PERIOD_S: Final = 0.5
SLOW_START_ERROR: Final = "Python worker failed to connect back"
"""Error of a job whose Python worker took more than ten seconds to start.

Spark has no setting for this limit, and a busy machine exceeds it. So the job is started up to `MAX_STARTS`
times."""
MAX_STARTS: Final = 5
RUNS_AFTER: Final = MappingProxyType({"weights": "load"})
"""Job → job whose files it reads. With `once`, the former starts after the latter has ended."""


def run(spark: SparkSession, site: Site, jobs: Sequence[str], *, once: bool, say: Say) -> PipelineDocument:
    """Run jobs concurrently; without `once` until SIGINT or SIGTERM.

    Args:
        jobs: names of the jobs.
        once: end after all current records are read.
        say: called with a line about each batch.
    Raises: PipelineError: a job failed. The next run continues after the last committed batch of each job.
    """
    stop = threading.Event()
    before = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    watches: dict[str, _Watch] = {}
    waiting = list(jobs)
    try:
        while True:
            unfinished = {*waiting, *(name for name, watch in watches.items() if watch.is_active)}
            for name in [each for each in waiting if not once or RUNS_AFTER.get(each) not in unfinished]:
                waiting.remove(name)
                watches[name] = _Watch(name, partial(JOBS[name], spark, site, once), say)
            if stop.wait(POLL_PERIOD_S):
                break
            for watch in watches.values():
                watch.restart_after_slow_start()
                watch.report_batches()
            if not waiting and not any(watch.is_active for watch in watches.values()):
                break
    finally:
        for watch in watches.values():
            watch.stop()
        for each, handler in before.items():
            signal.signal(each, handler)
    for watch in watches.values():
        watch.report_batches()
    return PipelineDocument(site.out, tuple(watches[name].document for name in jobs if name in watches))


class _Watch:
    """Follows one job and reports its batches.

    Args:
        start: starts the job; a job that is started again continues after its last committed batch.
    """

    def __init__(self, name: str, start: Callable[[], StreamingQuery], say: Say) -> None:
        self._name = name
        self._start = start
        self._starts = 1
        self._query = start()
        self._say = say
        self._last_reported_batch = -1
        self._records = 0
        self._dead_letters: int | None = None

    @property
    def document(self) -> JobDocument:
        return JobDocument(self._name, self._records, self._dead_letters)

    @property
    def is_active(self) -> bool:
        return self._query.isActive or self._has_slow_start

    @property
    def _has_slow_start(self) -> bool:
        return self._starts < MAX_STARTS and SLOW_START_ERROR in str(self._query.exception())

    def restart_after_slow_start(self) -> None:
        """Start the job again if its Python worker was too slow to start."""
        if self._has_slow_start:
            self._say(f"{self._name}: {SLOW_START_ERROR} in time; starting again")
            self._starts += 1
            self._query = self._start()

    def stop(self) -> None:
        self._query.stop()

    def report_batches(self) -> None:
        """Report the batches since the last call. Raises: PipelineError: the job has failed."""
        for progress in self._query.recentProgress:
            if progress.batchId > self._last_reported_batch and progress.numInputRows:
                self._last_reported_batch = progress.batchId
                self._records += progress.numInputRows
                took_s = progress.durationMs.get("triggerExecution", 0) / 1000.0
                batch = f"batch {progress.batchId}, {progress.numInputRows} records in {took_s:.1f} s"
                if (counted := progress.observedMetrics.get(DEAD_LETTER_COUNT)) is not None:
                    self._dead_letters = (self._dead_letters or 0) + counted[DEAD_LETTER_COUNT]
                    batch = f"{batch}, {counted[DEAD_LETTER_COUNT]} of them not events"
                self._say(f"{self._name}: {batch}")
        error = self._query.exception()
        if error is not None and not self._has_slow_start:
            raise PipelineError(f"job {self._name}: {root_cause(str(error))}")
