"""Logging to standard error that never blocks, not even on a full pipe, a full disk or a stopped terminal.

A log call puts its line into a queue, and one thread writes the queue to standard error. While that thread
cannot write, the queue fills; further lines are dropped and counted.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import select
import sys
import threading
import time
from types import TracebackType
from typing import Any, Final

from fleet.core.text import make_printable

log = logging.getLogger(__name__)

STDERR_FD: Final = 2
MAX_QUEUED_LINES: Final = 1_000
"""The size of the queue. Without tracebacks these lines take at most 4 MB."""
FLUSH_LIMIT_S: Final = 0.5
"""How long a process waits at its end for its last lines to be written."""
RETRY_S: Final = 1.0
"""The pause between two attempts to write, for example to a full disk."""


class LineFormatter(logging.Formatter):
    """Writes each record as one line that external text cannot forge; tracebacks follow, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = make_printable(record.message)
        return super().formatMessage(record)

    def formatException(self, *error: Any) -> str:
        return _indent(super().formatException(*error))

    def formatStack(self, stack_info: str) -> str:
        return _indent(super().formatStack(stack_info))


def _indent(trace: str) -> str:
    return "\n".join(f"    {make_printable(line)}" for line in trace.split("\n"))


class NeverBlockingHandler(logging.Handler):
    """Writes lines to a file descriptor in a separate thread, and drops lines while its queue is full.

    Args:
        fd: the file descriptor; standard error, except in tests.
        max_lines: the size of the queue.
    """

    def __init__(self, fd: int, max_lines: int = MAX_QUEUED_LINES) -> None:
        super().__init__()
        self._refused_lines = 0
        self._lost_lines = 0
        """Counted by the writing thread; the logging threads count `_refused_lines`."""
        self.fd = fd
        self.lines: queue.Queue[bytes] = queue.Queue(max_lines)
        self._reported_drops = 0
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    @property
    def dropped_lines(self) -> int:
        """The number of lines that were not written; for any thread."""
        return self._refused_lines + self._lost_lines

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record. `logging` calls this method with the handler's lock."""
        try:
            line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        except Exception:
            self.handleError(record)
            return
        try:
            self.lines.put_nowait(line)
        except queue.Full:
            self._refused_lines += 1

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop a record that cannot be formatted: the library would write a traceback, and block."""
        self._refused_lines += 1

    def flush_within(self, limit_s: float) -> None:
        """Wait until the queue is written, for at most ``limit_s`` seconds."""
        until_s = time.monotonic() + limit_s
        while self.lines.unfinished_tasks and time.monotonic() < until_s:
            time.sleep(0.005)

    def _write_all(self) -> None:
        while True:
            line = self.lines.get()
            dropped = self.dropped_lines - self._reported_drops
            if dropped and self._write(self._report(dropped)):
                self._reported_drops += dropped
            if not self._write(line):
                self._lost_lines += 1
            self.lines.task_done()

    def _report(self, dropped: int) -> bytes:
        text = "log lines were dropped because standard error was blocked: lines=%d"
        record = log.makeRecord(log.name, logging.WARNING, __file__, 0, text, (dropped,), None)
        return f"{self.format(record)}\n".encode()

    def _write(self, line: bytes) -> bool:
        """Write a line, for any time that the write takes. Returns: False if the line cannot be written."""
        while line:
            try:
                line = line[os.write(self.fd, line) :]
            except BlockingIOError:  # another process has made the terminal or the pipe non-blocking
                select.select([], [self.fd], [], RETRY_S)
            except OSError:
                time.sleep(RETRY_S)  # the disk is full, or the reader is dead: queued lines may be dropped
                return False
        return True


_handlers: Final[list[NeverBlockingHandler]] = []


def log_to_stderr(process: str) -> None:
    """Send log lines to standard error, each with the name of the process, as in ``p1/worker-0``."""
    layout = f"%(asctime)s.%(msecs)03d {process} %(levelname)s %(name)s: %(message)s"
    handler = NeverBlockingHandler(STDERR_FD)
    handler.setFormatter(LineFormatter(layout, datefmt="%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(True)
    _handlers.append(handler)
    atexit.register(handler.flush_within, FLUSH_LIMIT_S)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    logging.getLogger("aiokafka").setLevel(logging.WARNING)  # it logs each connection that authenticates


def dropped_lines() -> int:
    """The number of log lines that this process has not written."""
    return sum(each.dropped_lines for each in _handlers)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("process ended by an error", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(uncaught: threading.ExceptHookArgs) -> None:
    error = uncaught.exc_value
    name = "?" if uncaught.thread is None else uncaught.thread.name
    if error is not None and not isinstance(error, SystemExit):
        log.critical("thread ended by an error: thread=%s", name, exc_info=error)
