"""The previous release, from its wheel: it must read what this release writes, and the reverse.

`tests/releases/` has the wheels of releases. The newest one must be compatible with this source.
"""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from zipfile import ZipFile

from packaging.version import Version

RELEASES = Path(__file__).resolve().parent / "releases"
WHEEL_NAME = re.compile(r"kafka_proxy_fleet-([^-]+)-")
LIMIT_S = 60.0


def newest_wheel() -> tuple[Version, Path]:
    found = {
        Version(named[1]): file
        for file in RELEASES.glob("*.whl")
        if (named := WHEEL_NAME.match(file.name)) is not None
    }
    newest = max(found)
    return newest, found[newest]


def unpack_into(folder: Path) -> str:
    """Unpack the release into a folder, which is then one to import it from.

    Returns: its version
    """
    version, wheel = newest_wheel()
    with ZipFile(wheel) as packed:
        packed.extractall(folder)
    return str(version)


@cache
def _unpacked() -> Path:
    folder = Path(mkdtemp(prefix="previous-release-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    unpack_into(folder)
    return folder


def run(program: str, stdin: bytes = b"") -> bytes:
    """Run a Python program that imports the release and reads these bytes. Returns: its output."""
    folder = _unpacked()
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=stdin,
        capture_output=True,
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
