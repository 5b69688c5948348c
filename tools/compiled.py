"""The wheel with the data plane compiled by mypyc (see `setup.py`), unpacked next to the source tree.

    python -m tools.compiled        builds the wheel if it is missing, and prints its folder

Compiling requires a C compiler and Python's headers. Without them the fleet is pure Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final
from zipfile import ZipFile

from tools.bootstrap import BUILD, ROOT, exclusive_lock, once

FOLDER: Final = BUILD / "compiled"
FILES: Final = ("setup.py", "pyproject.toml", "README.md", "LICENSE")


class NotCompiled(Exception):
    """mypyc or the C compiler failed; the message is for the person at the terminal."""


def build() -> Path:
    """The folder to import `fleet` from; built again after a source has changed.

    Raises: NotCompiled
    """
    sources = [*sorted((ROOT / "fleet").rglob("*.py")), *(ROOT / name for name in FILES)]
    inputs: list[Path | str] = [*sources, *(str(each.relative_to(ROOT)) for each in sources)]
    inputs += [version("mypy"), version("setuptools"), sys.version]
    with exclusive_lock("compiled"):
        once(FOLDER / "built", "compiling the data plane, a minute", inputs, _build_again)
    return FOLDER


def launcher() -> tuple[str, ...]:
    """The prefix of a command that makes it import the compiled modules. Raises: NotCompiled"""
    folder = build()
    return ("env", f"--chdir={folder}", f"PYTHONPATH={folder}")


def _build_again() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    source = FOLDER / "source"  # setuptools writes next to the sources that it builds
    shutil.copytree(ROOT / "fleet", source / "fleet", ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source)
    try:
        _run("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", FOLDER, source)
        (wheel,) = FOLDER.glob("*.whl")
        with ZipFile(wheel) as packed:
            packed.extractall(FOLDER)
    except NotCompiled:
        shutil.rmtree(FOLDER, ignore_errors=True)
        raise
    shutil.rmtree(source)


def _run(*module: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *(str(each) for each in module)],
        env={**os.environ, "FLEET_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise NotCompiled(f"mypyc: {(done.stdout + done.stderr).strip()[-2000:]}")


if __name__ == "__main__":
    try:
        print(build())
    except NotCompiled as error:
        sys.exit(str(error))
