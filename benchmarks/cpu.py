"""CPU time and system calls of other processes, from the kernel."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.errors import BenchError

_CPUCLOCK_SCHED = 2


def process_cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, in user and kernel mode, by all its threads, ended ones included.

    `/proc/PID/stat` counts in hundredths of a second, too coarse for a thousand requests; this is the
    scheduler's own sum, in nanoseconds.

    Raises: BenchError: there is no such process.
    Source: clock_getcpuclockid(3): the id of a process's clock is computed from the process's id.
    """
    try:
        return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError as error:
        raise BenchError(f"process {pid} has ended") from error


def pace_ms() -> float:
    """The CPU time that this process takes for a million additions: the machine's speed at this moment.

    A shared machine takes twice as long at times, and work that misses the caches slows down most.
    """
    began_s, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return 1000 * (time.process_time() - began_s)


def cpu_s(pids: Iterable[int]) -> float:
    """The sum over processes."""
    return sum(map(process_cpu_s, pids))


def system_calls(pids: Iterable[int]) -> int:
    """How often processes have called read, write and similar system calls.

    The kernel does not count recv and send: HAProxy's calls are missing, libuv's are included.

    Raises: BenchError: there is no such process.
    Source: proc_pid_io(5)
    """
    calls = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/io").read_text()
        except OSError as error:
            raise BenchError(f"process {pid} has ended, or belongs to another user: {error}") from error
        fields = dict(line.split(": ") for line in text.splitlines())
        calls += int(fields["syscr"]) + int(fields["syscw"])
    return calls
