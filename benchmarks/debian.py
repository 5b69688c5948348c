"""Programs that the machine lacks: Debian's packages, unpacked below `build` without being root."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.errors import BenchError
from tools.bootstrap import unpack_debian_program


def find_or_unpack(name: str, program: str, folder: Path, advice: str) -> Path:
    """The launcher of a package's program; unpacks the package if it is not unpacked yet.

    Args:
        name: the program's name; in lower case it is the package's name.
        program, folder: as in `unpack_debian_program`.
        advice: what to do if there is no such package.
    Raises: BenchError: there is no package, or no apt; the message ends with the advice.
    """
    launcher = folder / Path(program).name
    if not launcher.exists():
        try:
            unpack_debian_program(name.lower(), program, folder)
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchError(f"no {name} here, and no Debian package ({error}): {advice}") from error
    return launcher
