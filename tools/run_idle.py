"""One command in the time that another leaves: tests with servers wait for a third of theirs.

    python -m tools.run_idle build/computed.txt COMMAND… -- COMMAND…

The first gives way to the second: it has Linux' policy for what is not urgent, SCHED_IDLE, and gets a CPU
that nobody else wants. What it prints goes to the file, and to standard output when both have ended. The exit
code is the second's; where that is 0, the first's.
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

LEAST = b"19"
"""Linux shares CPUs among sessions first (sched_autogroup_enabled), each as nice as its file says."""


def main(arguments: Sequence[str]) -> int:
    between = arguments.index("--")
    return run(arguments[1:between], arguments[between + 1 :], Path(arguments[0]))


def run(patient: Sequence[str], urgent: Sequence[str], log: Path) -> int:
    """Run both. Returns: the exit code."""
    end_with_this = partial(die_with_parent, os.getpid())

    def leave_room() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with suppress(OSError):
            Path("/proc/self/autogroup").write_bytes(LEAST)
        end_with_this()

    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"beside: {' '.join(patient)}, into {log}", file=sys.stderr, flush=True)
    with log.open("wb") as output:
        giving_way = subprocess.Popen(
            patient, stdout=output, stderr=output, preexec_fn=leave_room, start_new_session=True
        )

    def interrupt(*_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(giving_way.pid, signal.SIGINT)

    # Ctrl-C reaches the second by itself; both tell what they have come to.
    signal.signal(signal.SIGINT, interrupt)
    code = subprocess.call(urgent, preexec_fn=end_with_this)
    other = giving_way.wait()
    sys.stdout.buffer.write(log.read_bytes())
    return code or other


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
