"""A thread whose work goes on after an error.

The interpreter ends a thread at the first error that nothing catches, and the process runs on without the
thread. Nobody does the work of the thread any more, and nothing reports that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_LIMIT_S: Final = 60.0
STEADY_S: Final = 60.0
"""Work that went on for as long as this is restarted as if it had never failed."""


class RestartingThread:
    """Does its work again when the work ends by an error, each time after a longer wait.

    Args:
        name: of the thread, in the log and in metrics.
        work: called in the thread; it returns once ``stopping`` is set, and not before.
        backoff_first_s: the wait before the first restart.
    """

    def __init__(self, name: str, work: Callable[[], None], backoff_first_s: float = BACKOFF_FIRST_S) -> None:
        self.name = name
        self.stopping = threading.Event()
        self._work = work
        self._backoff_first_s = backoff_first_s
        self._restarts = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def restarts(self) -> int:
        """How often the work has been started again; for any thread."""
        return self._restarts

    def start(self) -> None:
        self._thread.start()

    def stop(self, limit_s: float) -> None:
        """Have the work end, and wait for it. Blocks, for so many seconds at most."""
        self.stopping.set()
        self._thread.join(limit_s)

    def _run(self) -> None:
        backoff_s = self._backoff_first_s
        while True:
            started_s = time.monotonic()
            error = self._attempt()
            if self.stopping.is_set():
                if error is not None:
                    log.error("the thread %r ends by an error", self.name, exc_info=error)
                return
            if time.monotonic() - started_s >= STEADY_S:
                backoff_s = self._backoff_first_s
            text = "the thread %r has ended; starting it again in %.1f s"
            log.error(text, self.name, backoff_s, exc_info=error)
            # Where it is to end meanwhile, the work is done once more: something may be left for it to keep.
            self.stopping.wait(backoff_s)
            self._restarts += 1
            backoff_s = min(BACKOFF_LIMIT_S, 2 * backoff_s)

    def _attempt(self) -> BaseException | None:
        """The error that ended the work; None where it has returned."""
        try:
            self._work()
        except BaseException as error:  # a cancelled task of the work's own loop is no Exception
            return error
        return None
