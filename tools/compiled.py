"""The data plane compiled by mypyc, in a tree of its own: the same source, and no trace in the source tree.

    python -m tools.compiled        builds it, where it is not there yet, and prints where

Needs a C compiler. Without one, and everywhere else, the fleet is what it is: pure Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tools.bootstrap import BUILD, ROOT, once

FOLDER: Final = BUILD / "compiled"
PROXY: Final = "fleet/proxy"
MODULES: Final = ("session", "rewriter", "stream", "traffic", "connection", "quota", "patience")
"""Of `fleet/proxy`, besides all of `wire`: what each read and write passes through."""


class NotCompiled(Exception):
    """mypyc, or the C compiler, does not take it; in words for whoever is at the terminal."""


def build() -> Path:
    """The folder that `fleet` is to be imported from; made anew where a source has changed.

    Raises: NotCompiled
    """
    sources = sorted((ROOT / "fleet").rglob("*.py"))
    names = [str(each.relative_to(ROOT)) for each in sources]

    def compile_anew() -> None:
        shutil.rmtree(FOLDER, ignore_errors=True)
        shutil.copytree(ROOT / "fleet", FOLDER / "fleet", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", FOLDER)
        _compile(_modules())

    inputs: list[Path | str] = [*sources, *names, *MODULES, version("mypy"), sys.version]
    once(FOLDER / "built", "compiling the data plane", inputs, compile_anew)
    return FOLDER


def through() -> tuple[str, ...]:
    """What a command is to begin with so that it takes the compiled modules. Raises: NotCompiled"""
    folder = build()
    return ("env", f"--chdir={folder}", f"PYTHONPATH={folder}")


def _modules() -> list[str]:
    wire = [each for each in sorted((FOLDER / PROXY / "wire").glob("*.py")) if each.stem != "__init__"]
    return [str(each.relative_to(FOLDER)) for each in wire] + [f"{PROXY}/{name}.py" for name in MODULES]


def _compile(modules: Sequence[str]) -> None:
    # All at once: what one module calls in another is called directly.
    environment = {**os.environ, "MYPYC_OPT_LEVEL": "3", "PYTHONPATH": str(FOLDER)}
    command = (sys.executable, "-m", "mypyc", "--strict", *modules)
    done = subprocess.run(
        command,
        cwd=FOLDER,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        shutil.rmtree(FOLDER, ignore_errors=True)
        raise NotCompiled(f"mypyc: {(done.stdout + done.stderr).strip()[-2000:]}")


if __name__ == "__main__":
    try:
        print(build())
    except NotCompiled as error:
        sys.exit(str(error))
