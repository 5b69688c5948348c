"""The time that a newcomer needs from a clone to a takeover: the README's first command, timed.

    python -m tests.onboarding --json

The clone is of what is committed here, in a root of its own, as a container has it: a home that is empty but
for the caches of pip, Maven and Go, an empty /tmp, nothing of this work tree, all else read-only, no right,
no terminal that could be asked, and no variable of the environment but HOME and PATH. So what the machine
has downloaded before is used. Exits with 1 where there is no takeover, or none within the goal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.bootstrap import ROOT

GOAL_S: Final = 180.0
LIMIT_S: Final = 5 * GOAL_S
KILL_AFTER_S: Final = 30.0
AWAITED_PREFIXES: Final = {"cloned_s": "cloned", "takeover_s": "killed "}
"""The beginning of each awaited line; the demo reports a takeover like this."""
CACHES: Final = (".cache/pip", ".m2", ".cache/go-build", "go/pkg/mod")
UNSHARE: Final = (("unshare", "-m"), ("unshare", "-Um", "--map-current-user", "--keep-caps"))
"""Commands that give a process its own mounts: the first for root, the second for other users."""
CONFINED: Final = """
set -e
home=$0 origin=$1 hidden=$2
IFS=: read -ra programs <<< "$3"
IFS=: read -ra caches <<< "$4"
mount --make-rprivate /
mount -t tmpfs -o mode=0700 tmpfs "$home"
for each in "${programs[@]}" "${caches[@]}"; do
    mkdir -p "$home/$each"
    mount --bind "$HOME/$each" "$home/$each"
done
mkdir "$home/origin.git"
mount --bind "$origin" "$home/origin.git"
while read -r _ _ _ _ at _; do
    case ":$4:" in *":${at#"$home"/}:"*) continue ;; esac
    [ "$at" = "$home" ] || mount -o remount,bind,ro "$at"
done < /proc/self/mountinfo
mount -t tmpfs -o ro tmpfs "$hidden"
mount --rbind "$home" "$HOME"
for each in /tmp /dev/shm; do
    mount -t tmpfs -o mode=1777 tmpfs "$each"
done
cd "$HOME"
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all --ambient-caps=-all "${@:5}"
"""
"""Becomes a command in such a root; for `bash -c` after one of `UNSHARE`.

Arguments: an empty folder; the repository to clone; the folder to hide; what is in the home and stays, with
colons in between: to be read alone, and to be written, too; the command.
"""
NEWCOMER: Final = "git clone --quiet origin.git clone && echo cloned && cd clone && exec make demo"


def programs(path: str, home: str) -> list[str]:
    """The entries of the home folder that have folders of PATH below them."""
    below = (Path(each) for each in path.split(os.pathsep) if Path(each).is_relative_to(home))
    return sorted({each.relative_to(home).parts[0] for each in below if each != Path(home)})


def isolating() -> Sequence[str]:
    """The command that gives a process its own mounts here. Raises: RuntimeError: none works."""
    errors = []
    for command in UNSHARE:
        attempt = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=60, check=False)
        if attempt.returncode == 0:
            return command
        errors.append(attempt.stderr.strip())
    raise RuntimeError(f"an isolated root needs user namespaces, or root: {'; '.join(errors)}")


def confined(folder: Path, environment: Mapping[str, str], *command: str) -> list[str]:
    """A command in an isolated root, next to a clone of the commits here."""
    home, origin = folder / "home", folder / "origin.git"
    home.mkdir()
    clone = ("git", "clone", "--quiet", "--bare", str(ROOT), str(origin))
    subprocess.run(clone, check=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
    program_folders = programs(environment["PATH"], environment["HOME"])
    caches = [each for each in CACHES if Path(environment["HOME"], each).is_dir()]
    folders = (str(home), str(origin), str(ROOT), ":".join(program_folders), ":".join(caches))
    return [*isolating(), "bash", "-c", CONFINED, *folders, *command]


def watch(folder: Path) -> tuple[dict[str, float], int]:
    """Clone, run the demo, and read its output. Returns: seconds since the start, and the exit code."""
    path = [each for each in os.environ["PATH"].split(os.pathsep) if not each.startswith(str(ROOT))]
    environment = {"HOME": os.environ["HOME"], "PATH": os.pathsep.join(path)}
    command = confined(folder, environment, "sh", "-c", NEWCOMER)
    limits = ("--signal=INT", f"--kill-after={KILL_AFTER_S:.0f}", f"{LIMIT_S:.0f}")
    began_s = time.monotonic()
    demo = subprocess.Popen(
        ["timeout", *limits, *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert demo.stdout is not None
        times = times_of(demo.stdout, lambda: time.monotonic() - began_s)
        return times, demo.wait()
    finally:
        demo.terminate()


def times_of(lines: Iterable[str], since_s: Callable[[], float]) -> dict[str, float]:
    """The time of each awaited line that the newcomer sees. All lines are shown."""
    times: dict[str, float] = {}
    for line in lines:
        sys.stderr.write(line)
        for name, begins in AWAITED_PREFIXES.items():
            if name not in times and line.startswith(begins):
                times[name] = since_s()
    return times | {"done_s": since_s()}


def trouble(times: Mapping[str, float], code: int) -> str | None:
    """The reason why the result is not acceptable; None if it is."""
    if code or "takeover_s" not in times:
        seen = "a takeover" if "takeover_s" in times else "no takeover"
        return f"make demo ended with {code}; it has shown {seen}"
    if times["takeover_s"] > GOAL_S:
        return f"a takeover after {times['takeover_s']:.1f} s, and not within {GOAL_S:g} s"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    as_json = parser.parse_args().json
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        try:
            times, code = watch(Path(folder))
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"newcomer: {error}", file=sys.stderr)
            return 1
    found = {name: round(value, 1) for name, value in times.items()} | {"goal_s": GOAL_S}
    print(json.dumps(found) if as_json else "\n".join(f"{name} {value}" for name, value in found.items()))
    why = trouble(times, code)
    if why is not None:
        print(f"newcomer: {why}", file=sys.stderr)
    return 0 if why is None else 1


if __name__ == "__main__":
    sys.exit(main())
