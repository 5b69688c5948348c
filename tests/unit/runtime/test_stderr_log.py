"""Log lines: external text cannot forge them, and logging never waits for their reader."""

from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeAlias

import pytest

from fleet.runtime.stderr_log import MAX_QUEUED_LINES, LineFormatter, NeverBlockingHandler
from tests.integration.in_process.proxy.test_worker import LIMIT_S

Stall: TypeAlias = Callable[[ExitStack], int]
LINES = 3 * MAX_QUEUED_LINES
LINE = "x" * 100
REPORT = re.compile(r"log lines were dropped .*lines=(\d+)")
TALKS = f"""
for number in range({LINES}):
    logging.warning("%d {LINE}", number)
print(stderr_log.dropped_lines())
"""


def program(code: str) -> list[str]:
    """The command of a process that logs to standard error and runs this code."""
    begin = "import logging\nfrom fleet.runtime import stderr_log\nstderr_log.log_to_stderr('p1/control')\n"
    return [sys.executable, "-c", begin + code]


def log_lines_of(code: str) -> list[str]:
    """The lines that a process with this code has logged."""
    done = subprocess.run(program(code), capture_output=True, check=False)
    return done.stderr.decode().removesuffix("\n").split("\n")


FORGED = "kafka\n2026-01-01T00:00:00.000 p1/control INFO fleet: all is well\x1b[2J\r\x85\u2028"


def test_log_line_cannot_be_forged() -> None:
    (line,) = log_lines_of(f"logging.getLogger('x').warning('%s is not used', {FORGED!r})")
    assert line.isprintable()
    assert line.endswith(r"all is well\x1b[2J\r\x85\u2028 is not used")


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    raise ValueError({text!r})\nexcept ValueError:\n    logging.exception('it failed')",
        "raise ValueError({text!r})",
        "import threading\ndef fail():\n raise ValueError({text!r})\nthreading.Thread(target=fail).start()",
    ],
    ids=["logged", "uncaught", "thread"],
)
def test_trace_in_the_log_cannot_be_forged(code: str) -> None:
    first, *trace = log_lines_of(code.format(text=FORGED))
    assert "p1/control" in first
    assert trace[0].strip().startswith("Traceback")
    assert all(line.isprintable() and line.startswith("    ") for line in trace)
    assert "all is well" in trace[-1]


# ---- who reads nothing


def full_pipe(stack: ExitStack) -> int:
    reading, writing = os.pipe()
    stack.callback(os.close, reading)
    return writing


def stopped_terminal(stack: ExitStack) -> int:
    controlling, terminal = pty.openpty()
    stack.callback(os.close, controlling)
    termios.tcflow(terminal, termios.TCOOFF)
    return terminal


def full_disk(stack: ExitStack) -> int:
    return os.open("/dev/full", os.O_WRONLY)


def reader_that_is_gone(stack: ExitStack) -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


STALLED: list[Stall] = [full_pipe, stopped_terminal, full_disk, reader_that_is_gone]


@pytest.mark.parametrize("stalled", STALLED, ids=lambda each: each.__name__)
def test_process_runs_and_ends_with_a_blocked_log(stalled: Stall) -> None:
    """Found: the first line that a full pipe rejected blocked the member, including its SIGTERM."""
    with ExitStack() as stack:
        fd = stalled(stack)
        stack.callback(os.close, fd)
        done = subprocess.run(program(TALKS), stdout=subprocess.PIPE, stderr=fd, timeout=LIMIT_S, check=True)
    assert LINES > int(done.stdout) > 0


@pytest.fixture
def pipe() -> Iterator[tuple[int, NeverBlockingHandler]]:
    """The reading end of a pipe, and a handler that writes to its other end."""
    reading, writing = os.pipe()
    handler = NeverBlockingHandler(writing, 10)
    handler.setFormatter(LineFormatter())
    yield reading, handler
    os.close(reading)


def log(handler: NeverBlockingHandler, text: str) -> None:
    handler.handle(logging.LogRecord("x", logging.WARNING, "", 0, text, None, None))


def test_dropped_lines_are_reported_once_the_log_is_read(
    pipe: tuple[int, NeverBlockingHandler],
) -> None:
    reading, handler = pipe
    logged = 0
    while handler.dropped_lines < 5:
        log(handler, LINE)
        logged += 1
    reported, written = 0, 0
    with open(os.dup(reading), encoding="utf-8") as lines:
        while reported + written < logged:
            report = REPORT.match(next(lines))
            if report is None:
                written += 1
            else:
                reported += int(report[1])
    assert reported == handler.dropped_lines == 5


def test_record_that_cannot_be_formatted_is_counted(pipe: tuple[int, NeverBlockingHandler]) -> None:
    _, handler = pipe
    handler.handle(logging.LogRecord("x", logging.WARNING, "", 0, "%d", ("no number",), None))
    assert handler.dropped_lines == 1


def test_descriptor_that_does_not_block_gets_every_line(pipe: tuple[int, NeverBlockingHandler]) -> None:
    """Another process on the same terminal may have set this mode."""
    reading, handler = pipe
    os.set_blocking(handler.fd, False)
    text = "y" * 4_000
    with open(os.dup(reading), encoding="utf-8") as lines:
        logged = 0
        while handler.lines.qsize() < 5:  # the pipe has no more room
            log(handler, text)
            logged += 1
        assert [next(lines) for _ in range(logged)] == [f"{text}\n"] * logged
    assert handler.dropped_lines == 0
