"""The committed corpus: a minimal set of inputs with the coverage of ten million inputs.

``python -m tests.fuzz --keep`` replaces the corpus. Each run generates the seeds (`tests.fuzz.seeds`).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CORPUS: Final = Path(__file__).with_name("corpus.zip")
RESTART_PROGRAM_VARIABLE: Final = "FLEET_FUZZ_AGAIN"
"""The environment variable of `tests.fuzz.child`: the program with which libFuzzer restarts itself."""
_MAX_INPUT_BYTES: Final = 1 << 16
_ZIP_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def read_corpus(corpus: Path = CORPUS) -> list[bytes]:
    """Read the inputs in order."""
    with zipfile.ZipFile(corpus) as archive:
        return [archive.read(name) for name in sorted(archive.namelist())]


def write_minimal_corpus(folders: Sequence[Path], corpus: Path = CORPUS) -> int:
    """Replace the corpus by the fewest and shortest inputs of these folders with the same coverage.

    Returns: the number of inputs.
    Raises:  CalledProcessError: the fuzzer cannot merge them.
    """
    with tempfile.TemporaryDirectory(prefix="fleet-fuzz-") as name:
        folder = Path(name)
        merged, restart_program = folder / "merged", folder / "again"
        merged.mkdir()
        command = [sys.executable, "-m", "tests.fuzz.child", str(folder / "finds")]
        restart_program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        restart_program.chmod(0o700)
        limits = ["-merge=1", f"-max_len={_MAX_INPUT_BYTES}"]
        subprocess.run(
            [*command, str(merged), *map(str, folders), *limits],
            cwd=ROOT,
            env={**os.environ, RESTART_PROGRAM_VARIABLE: str(restart_program)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        inputs = sorted({each.read_bytes() for each in merged.iterdir()}, key=lambda data: (len(data), data))
    with zipfile.ZipFile(corpus, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for number, data in enumerate(inputs):
            archive.writestr(zipfile.ZipInfo(f"{number:05}", _ZIP_EPOCH), data, zipfile.ZIP_DEFLATED)
    return len(inputs)
