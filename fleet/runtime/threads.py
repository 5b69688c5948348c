"""A thread whose work is restarted after an error.

The interpreter ends a thread at the first uncaught error, and the process continues without the thread. The
work of the thread is no longer done, and nothing reports this.
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
"""Work that ran for at least this time is restarted as if it had never failed."""


class RestartingThread:
    """Restarts its work after an error, each time after a longer wait.

    Args:
        name: the name of the thread in the log and in metrics.
        work: called in the thread; must return once ``stopping`` is set, and not before.
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
        """How often the work was restarted; for any thread."""
        return self._restarts

    def start(self) -> None:
        self._thread.start()

    def stop(self, limit_s: float) -> None:
        """Stop the work, and wait for its end. Blocks for at most ``limit_s`` seconds."""
        self.stopping.set()
        self._thread.join(limit_s)

    def _run(self) -> None:
        backoff_s = self._backoff_first_s
        while True:
            started_s = time.monotonic()
            error = self._attempt()
            if self.stopping.is_set():
                if error is not None:
                    log.error("thread ended by an error: thread=%s", self.name, exc_info=error)
                return
            if time.monotonic() - started_s >= STEADY_S:
                backoff_s = self._backoff_first_s
            text = "thread ended, restarting it: thread=%s backoff_s=%.1f"
            log.error(text, self.name, backoff_s, exc_info=error)
            # If the thread is stopped meanwhile, the work runs once more, to save what is left.
            self.stopping.wait(backoff_s)
            self._restarts += 1
            backoff_s = min(BACKOFF_LIMIT_S, 2 * backoff_s)

    def _attempt(self) -> BaseException | None:
        """The error that ended the work; None if the work has returned."""
        try:
            self._work()
        except BaseException as error:  # the cancellation of a task in the work's loop is not an Exception
            return error
        return None
