"""The corpus that is kept: what ten million inputs have found that leads somewhere, as little as is enough.

`python -m tests.fuzz --keep` replaces it. The seeds are made anew each time (`tests.fuzz.seeds`).
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
AGAIN: Final = "FLEET_FUZZ_AGAIN"
"""In the environment of `tests.fuzz.child`: the program that libFuzzer starts itself by."""
_LONGEST_BYTES: Final = 1 << 16
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def kept(corpus: Path = CORPUS) -> list[bytes]:
    """The inputs, one after the other."""
    with zipfile.ZipFile(corpus) as archive:
        return [archive.read(name) for name in sorted(archive.namelist())]


def keep(folders: Sequence[Path], corpus: Path = CORPUS) -> int:
    """Replace the corpus by as few and short inputs of these folders as reach what all of them do.

    Returns: how many there are.
    Raises:  CalledProcessError: the fuzzer cannot merge them.
    """
    with tempfile.TemporaryDirectory(prefix="fleet-fuzz-") as name:
        folder = Path(name)
        merged, again = folder / "merged", folder / "again"
        merged.mkdir()
        command = [sys.executable, "-m", "tests.fuzz.child", str(folder / "finds")]
        again.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        again.chmod(0o700)
        limits = ["-merge=1", f"-max_len={_LONGEST_BYTES}"]
        subprocess.run(
            [*command, str(merged), *map(str, folders), *limits],
            cwd=ROOT,
            env={**os.environ, AGAIN: str(again)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        inputs = sorted({each.read_bytes() for each in merged.iterdir()}, key=lambda data: (len(data), data))
    with zipfile.ZipFile(corpus, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for number, data in enumerate(inputs):
            archive.writestr(zipfile.ZipInfo(f"{number:05}", _EPOCH), data, zipfile.ZIP_DEFLATED)
    return len(inputs)
