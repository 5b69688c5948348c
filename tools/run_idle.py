"""Runs a command in the CPU time that a second one leaves idle: tests with servers wait a third of it.

    python -m tools.run_idle build/computed.txt COMMAND… -- COMMAND…

The first command gives way to the second: Linux runs it with the policy SCHED_IDLE, on a CPU that no other
process needs. Its output goes to the file, and to standard output when both have ended. The exit code is the
second command's, or the first command's if the second one's is 0.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fleet.runtime.child import die_with_parent

LOWEST_PRIORITY = b"19"
"""The lowest priority of a session: Linux shares CPUs among sessions first (sched_autogroup_enabled)."""


def main(arguments: Sequence[str]) -> int:
    between = arguments.index("--")
    return run(arguments[1:between], arguments[between + 1 :], Path(arguments[0]))


def run(idle_command: Sequence[str], main_command: Sequence[str], log: Path) -> int:
    """Run both commands. Returns: the exit code."""
    end_with_this = partial(die_with_parent, os.getpid())

    def lower_priority() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with suppress(OSError):
            Path("/proc/self/autogroup").write_bytes(LOWEST_PRIORITY)
        end_with_this()

    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"in idle time: {' '.join(idle_command)}, output in {log}", file=sys.stderr, flush=True)
    with log.open("wb") as output:
        idle_process = subprocess.Popen(
            idle_command, stdout=output, stderr=output, preexec_fn=lower_priority, start_new_session=True
        )

    def interrupt(*_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(idle_process.pid, signal.SIGINT)

    # Ctrl-C reaches the second command by itself; both print their results.
    signal.signal(signal.SIGINT, interrupt)
    code = subprocess.call(main_command, preexec_fn=end_with_this)
    idle_code = idle_process.wait()
    sys.stdout.buffer.write(log.read_bytes())
    return code or idle_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
