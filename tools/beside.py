"""One command in the time that another leaves: tests with servers wait for much of theirs.

    python -m tools.beside build/computed.txt COMMAND… -- COMMAND…
    python -m tools.beside --nice 5 build/unhurried.txt COMMAND… -- COMMAND…

The first gives way to the second: it has Linux' policy for what is not urgent, SCHED_IDLE, and gets a CPU
that nobody else wants; or, with --nice, less of one than others. What it prints goes to the file, and to
standard output when both have ended. The exit code is the second's; where that is 0, the first's.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fleet.process import die_with_parent


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nice", type=int, help="how nice it is; without it, as nice as can be")
    parser.add_argument("log", type=Path, help="for what the first one prints")
    parser.add_argument("commands", nargs=argparse.REMAINDER, metavar="COMMAND… -- COMMAND…")
    given = parser.parse_args(arguments)
    between = given.commands.index("--")
    return run(given.commands[:between], given.commands[between + 1 :], given.log, given.nice)


def run(patient: Sequence[str], urgent: Sequence[str], log: Path, nice: int | None) -> int:
    """Run both. Returns: the exit code."""
    end_with_this = partial(die_with_parent, os.getpid())

    def leave_room() -> None:
        if nice is None:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.nice(nice)
        end_with_this()

    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"beside: {' '.join(patient)}, into {log}", file=sys.stderr, flush=True)
    with log.open("wb") as output:
        giving_way = subprocess.Popen(patient, stdout=output, stderr=output, preexec_fn=leave_room)
    # Ctrl-C reaches both, who tell what they have come to.
    signal.signal(signal.SIGINT, lambda *_: None)
    code = subprocess.call(urgent, preexec_fn=end_with_this)
    other = giving_way.wait()
    sys.stdout.buffer.write(log.read_bytes())
    return code or other


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
