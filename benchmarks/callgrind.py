"""A process under valgrind's callgrind: how many instructions it executes, and how often it calls what.

The machine's valgrind, or Debian's package unpacked below `build/valgrind`.
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

from benchmarks.debian import brought
from benchmarks.errors import BenchError
from tools.bootstrap import BUILD

FOLDER = BUILD / "valgrind"
_ADVICE = "install it (apt-get install valgrind)"
_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Valgrind:
    """One that runs here.

    Args:
        program: what runs another program.
        vgdb: what tells it to do something while that runs.
        environment: what both need.
    """

    program: Path
    vgdb: Path
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Executed:
    """What a process has done since it was asked before.

    Args:
        calls: by the function's name, where it has one.
    """

    instructions: int
    calls: Counter[str]


def find() -> Valgrind:
    """A valgrind that runs here; brings Debian's where the machine has none, without being root.

    Raises: BenchError: there is none, and none can be had; says what to do.
    """
    installed, vgdb = shutil.which("valgrind"), shutil.which("vgdb")
    if installed is not None and vgdb is not None:
        return Valgrind(Path(installed), Path(vgdb), {})
    launcher = brought("valgrind", "usr/bin/vgdb", FOLDER, _ADVICE)
    usr = FOLDER / "debian" / "usr"
    tools = {"VALGRIND_LIB": str(usr / "libexec" / "valgrind")}
    return Valgrind(usr / "bin" / "valgrind.bin", launcher, tools)


class Callgrind:
    """Counts what one process executes.

    Args:
        out: the file that it writes; those with a number at the end are of this one, too.
    """

    def __init__(self, valgrind: Valgrind, out: Path) -> None:
        self._valgrind, self._out, self._dumps = valgrind, out, 0
        options = ("--instr-atstart=no", f"--callgrind-out-file={out}")
        self.through = (str(valgrind.program), "--tool=callgrind", *options)
        self.environment = valgrind.environment

    def begin(self, pid: int) -> None:
        """Count from now on: until then all is several times as fast. Raises: BenchError: as `reset`."""
        self._tell(pid, "instrumentation", "on")

    def reset(self, pid: int) -> None:
        """Count from here on. Raises: BenchError: it cannot be told so."""
        self._tell(pid, "zero")

    def executed(self, pid: int) -> Executed:
        """What it has done since `reset`. Raises: BenchError: it cannot be asked."""
        self._tell(pid, "dump")
        self._dumps += 1
        return parse(self._out.with_name(f"{self._out.name}.{self._dumps}").read_text())

    def _tell(self, pid: int, *command: str) -> None:
        asked = (str(self._valgrind.vgdb), f"--pid={pid}", *command)
        try:
            subprocess.run(
                asked,
                check=True,
                capture_output=True,
                timeout=_LIMIT_S,
                env={**os.environ, **self._valgrind.environment},
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise BenchError(f"valgrind does not answer: {error}") from error


_FUNCTION = re.compile(r"(c?)fn=\((\d+)\)(?: ([^']+))?")
_CALLS = re.compile(r"calls=(\d+)")


def parse(profile: str) -> Executed:
    """What callgrind has written.

    Raises: BenchError: there is no sum.
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
            # A name is given where its number is first told, be it of who calls or of who is called; 'N at
            # its end is how deep it calls itself.
            by_other, number, name = function.groups()
            if name is not None:
                names[number] = name
            if by_other:
                called = number
        elif count := _CALLS.match(line):
            calls[names[called]] += int(count[1])
    return Executed(int(total[1]), calls)
