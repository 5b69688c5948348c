"""A process under valgrind's callgrind: how many instructions it executes, and how often it calls functions.

The program is the machine's valgrind, or Debian's package unpacked below `build/valgrind`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.debian import find_or_unpack
from benchmarks.errors import BenchError
from tools.bootstrap import BUILD

FOLDER = BUILD / "valgrind"
_ADVICE = "install it (apt-get install valgrind)"
_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Valgrind:
    """A valgrind that runs on this machine.

    Args:
        program: runs another program under valgrind.
        vgdb: sends commands to valgrind while the program runs.
        environment: variables that both need.
    """

    program: Path
    vgdb: Path
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ExecutionCounts:
    """What a process has executed since the last reset.

    Args:
        calls: the number of calls by function name, for functions that have a name.
    """

    instructions: int
    calls: Counter[str]


def find() -> Valgrind:
    """Find a valgrind that runs here; unpack Debian's package, without being root, if the machine has none.

    Raises: BenchError: there is no valgrind, and none is available; the message says what to do.
    """
    installed, vgdb = shutil.which("valgrind"), shutil.which("vgdb")
    if installed is not None and vgdb is not None:
        return Valgrind(Path(installed), Path(vgdb), {})
    launcher = find_or_unpack("valgrind", "usr/bin/vgdb", FOLDER, _ADVICE)
    usr = FOLDER / "debian" / "usr"
    tools = {"VALGRIND_LIB": str(usr / "libexec" / "valgrind")}
    return Valgrind(usr / "bin" / "valgrind.bin", launcher, tools)


class Callgrind:
    """Counts what one process executes.

    Args:
        out: the file that callgrind writes; it also writes files with this name and a number at the end.
    """

    def __init__(self, valgrind: Valgrind, out: Path) -> None:
        self._valgrind, self._out, self._dumps = valgrind, out, 0
        options = ("--instr-atstart=no", f"--callgrind-out-file={out}")
        self.through = (str(valgrind.program), "--tool=callgrind", *options)
        self.environment = valgrind.environment

    def begin(self, pid: int) -> None:
        """Begin to count; until then the process runs several times as fast. Raises: as `reset`."""
        self._send(pid, "instrumentation", "on")

    def reset(self, pid: int) -> None:
        """Set all counts to zero. Raises: BenchError: valgrind does not take the command."""
        self._send(pid, "zero")

    def read_counts(self, pid: int) -> ExecutionCounts:
        """What the process has executed since `reset`. Raises: BenchError: valgrind does not answer."""
        self._send(pid, "dump")
        self._dumps += 1
        return parse(self._out.with_name(f"{self._out.name}.{self._dumps}").read_text())

    def _send(self, pid: int, *command: str) -> None:
        command_line = (str(self._valgrind.vgdb), f"--pid={pid}", *command)
        try:
            subprocess.run(
                command_line,
                check=True,
                capture_output=True,
                timeout=_LIMIT_S,
                env={**os.environ, **self._valgrind.environment},
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise BenchError(f"valgrind does not answer: {error}") from error


_FUNCTION = re.compile(r"(c?)fn=\((\d+)\)(?: ([^']+))?")
_CALLS = re.compile(r"calls=(\d+)")


def parse(profile: str) -> ExecutionCounts:
    """Parse callgrind's output file.

    Raises: BenchError: the file has no sum.
    Source: valgrind's manual, Callgrind Format Specification
    """
    total = re.search(r"^summary: (\d+)", profile, re.MULTILINE)
    if total is None:
        raise BenchError("callgrind's file has no sum")
    names: dict[str, str] = {}
    calls: Counter[str] = Counter()
    called = ""
    for line in profile.splitlines():
        if function := _FUNCTION.match(line):
            # The first line with a function's number also has its name, be the function caller or callee. 'N
            # at the end of a name is the depth of recursion.
            by_other, number, name = function.groups()
            if name is not None:
                names[number] = name
            if by_other:
                called = number
        elif count := _CALLS.match(line):
            calls[names[called]] += int(count[1])
    return ExecutionCounts(int(total[1]), calls)
