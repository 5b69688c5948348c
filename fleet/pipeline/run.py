"""Runs jobs until they are through, or until somebody stops them."""

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
from fleet.pipeline.jobs import DEAD, JOBS, Site, cause

Say: TypeAlias = Callable[[str], None]

LOOK_EVERY_S: Final = 0.5
SLOW_START: Final = "Python worker failed to connect back"
"""Spark gives Python's part of a job ten seconds to start, and has no setting for it: beside other work it is
tried again, as often as `STARTS` says."""
STARTS: Final = 5
AFTER: Final = MappingProxyType({"weights": "load"})
"""Which job reads what another one writes: where they run once, one after the other."""


def run(spark: SparkSession, site: Site, jobs: Sequence[str], *, once: bool, say: Say) -> PipelineDocument:
    """Run jobs side by side; without `once` until SIGINT or SIGTERM.

    Args:
        say: is told of each batch.
    Raises: PipelineError: a job failed. What each has committed stays, and the next run goes on there.
    """
    stop = threading.Event()
    before = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    watches: dict[str, _Watch] = {}
    waiting = list(jobs)
    try:
        while True:
            at_work = {*waiting, *(name for name, watch in watches.items() if watch.is_active)}
            for name in [each for each in waiting if not once or AFTER.get(each) not in at_work]:
                waiting.remove(name)
                watches[name] = _Watch(name, partial(JOBS[name], spark, site, once), say)
            if stop.wait(LOOK_EVERY_S):
                break
            for watch in watches.values():
                watch.keep_going()
                watch.look()
            if not waiting and not any(watch.is_active for watch in watches.values()):
                break
    finally:
        for watch in watches.values():
            watch.stop()
        for each, handler in before.items():
            signal.signal(each, handler)
    for watch in watches.values():
        watch.look()
    return PipelineDocument(site.out, tuple(watches[name].document for name in jobs if name in watches))


class _Watch:
    """What one job has done so far.

    Args:
        start: the job, begun or begun again: it goes on where it was.
    """

    def __init__(self, name: str, start: Callable[[], StreamingQuery], say: Say) -> None:
        self._name = name
        self._start = start
        self._starts = 1
        self._query = start()
        self._say = say
        self._told = -1
        self._records = 0
        self._dead: int | None = None

    @property
    def document(self) -> JobDocument:
        return JobDocument(self._name, self._records, self._dead)

    @property
    def is_active(self) -> bool:
        return self._query.isActive or self._is_to_start_again

    @property
    def _is_to_start_again(self) -> bool:
        return self._starts < STARTS and SLOW_START in str(self._query.exception())

    def keep_going(self) -> None:
        """Start it again where it only was too slow to start."""
        if self._is_to_start_again:
            self._say(f"{self._name}: {SLOW_START} in time; again")
            self._starts += 1
            self._query = self._start()

    def stop(self) -> None:
        self._query.stop()

    def look(self) -> None:
        """Tell of the batches that are new. Raises: PipelineError: the job has failed."""
        for progress in self._query.recentProgress:
            if progress.batchId > self._told and progress.numInputRows:
                self._told = progress.batchId
                self._records += progress.numInputRows
                took_s = progress.durationMs.get("triggerExecution", 0) / 1000.0
                batch = f"batch {progress.batchId}, {progress.numInputRows} records in {took_s:.1f} s"
                if (counted := progress.observedMetrics.get(DEAD)) is not None:
                    self._dead = (self._dead or 0) + counted[DEAD]
                    batch = f"{batch}, {counted[DEAD]} of them no event"
                self._say(f"{self._name}: {batch}")
        error = self._query.exception()
        if error is not None and not self._is_to_start_again:
            raise PipelineError(f"job {self._name}: {cause(str(error))}")
