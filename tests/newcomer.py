"""How long a newcomer takes from a clone to a takeover: the README's first command, timed.

    python -m tests.newcomer --json

The clone is of what is committed here. What the machine has downloaded before is used (pip's and Maven's
caches in the home directory), nothing of this work tree is: no variable of the environment but HOME and PATH,
without the folders in here, and no terminal that could be asked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tools.bootstrap import ROOT

GOAL_S: Final = 180.0
LIMIT_S: Final = 5 * GOAL_S
KILLED: Final = "killed "
"""How the demo begins a line about a takeover."""


def watch(folder: Path) -> dict[str, float]:
    """Clone, run the demo, and read what it says; seconds from the beginning.

    Raises: RuntimeError: it fails, or shows no takeover, or takes longer than LIMIT_S.
    """
    began_s, times = time.monotonic(), {}
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True, stdin=subprocess.DEVNULL)
    times["cloned_s"] = time.monotonic() - began_s
    path = [each for each in os.environ["PATH"].split(os.pathsep) if not each.startswith(str(ROOT))]
    environment = {"HOME": os.environ["HOME"], "PATH": os.pathsep.join(path)}
    demo = subprocess.Popen(
        ["timeout", "--signal=INT", f"{LIMIT_S:.0f}", "make", "demo"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert demo.stdout is not None
    for line in demo.stdout:
        sys.stderr.write(line)
        if line.startswith(KILLED):
            times.setdefault("takeover_s", time.monotonic() - began_s)
    code = demo.wait()
    times["done_s"] = time.monotonic() - began_s
    if code or "takeover_s" not in times:
        raise RuntimeError(f"make demo ended with {code}; it has shown {len(times) - 2} takeovers")
    return times


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    as_json = parser.parse_args().json
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        try:
            times = watch(Path(folder, "clone"))
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print(f"newcomer: {error}", file=sys.stderr)
            return 1
    found = {name: round(value, 1) for name, value in times.items()} | {"goal_s": GOAL_S}
    print(json.dumps(found) if as_json else "\n".join(f"{name} {value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
