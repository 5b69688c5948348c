"""Programs that the machine does not have: Debian's, unpacked below `build` without being root."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.errors import BenchError
from tools.bootstrap import unpack_debian_program


def brought(name: str, program: str, folder: Path, advice: str) -> Path:
    """What starts a program of a package; unpacks that where it is not there yet.

    Args:
        name: how it is called; the package is called so in lower case.
        program, folder: as `unpack_debian_program` has them.
        advice: what to do where there is no such package.
    Raises: BenchError: there is none, or no apt; says what to do.
    """
    launcher = folder / Path(program).name
    if not launcher.exists():
        try:
            unpack_debian_program(name.lower(), program, folder)
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchError(f"no {name} here, and Debian's cannot be brought ({error}): {advice}") from error
    return launcher
