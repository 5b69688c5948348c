"""Replaces the programs of an operator's machines when a test runs lines of the pages.

    python stand_in.py NAME ARGUMENTS…

What runs another command (ssh, sudo) runs it; a service manager starts and stops real members, and listens in
the folder that STAND_INS names; the rest looks whether the files are there that it is given.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import socket
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = Path(os.environ.get("STAND_INS", "."))
MANAGER: Final = "manager.sock"
VERBS: Final = ("start", "enable", "restart", "stop", "kill-kill")
"""The verbs of a service manager."""
_UNIT: Final = re.compile(r"fleet@(\w+)")
_EXTRAS: Final = re.compile(r"(?P<what>.+?)(?:\[(?P<extras>[\w,-]+)\])?")


def fail(message: str) -> NoReturn:
    sys.exit(f"stand-in: {message}")


def become(*command: str) -> NoReturn:
    os.execvp(command[0], command)


def ssh(arguments: Sequence[str]) -> NoReturn:
    """Run a command on this machine instead of a remote one; a remote shell gets all words as one."""
    host, *command = arguments
    if host.startswith("-") or not command:
        fail(f"ssh {arguments}: no host, or no command")
    become("sh", "-c", " ".join(command))


def sudo(arguments: Sequence[str]) -> NoReturn:
    """Run the command as the user of the tests: the user of ``-u`` may not exist here."""
    become(*(arguments[2:] if arguments[0] == "-u" else arguments))


def install(arguments: Sequence[str]) -> NoReturn:
    """Install without owners: the user of the tests may not have the right to change them."""
    remaining = list(arguments)
    for option in ("-o", "-g"):
        if option in remaining:
            at = remaining.index(option)
            del remaining[at : at + 2]
    become(shutil.which("install", path=os.defpath) or "/usr/bin/install", *remaining)


def systemctl(arguments: Sequence[str]) -> None:
    verb = "-".join(each.lower() for each in arguments if not each.startswith("-") and "@" not in each)
    if verb == "daemon-reload":
        return
    if verb not in VERBS:
        fail(f"systemctl {arguments}: nothing that is done here")
    (unit,) = (found for each in arguments if (found := _UNIT.fullmatch(each)))
    with socket.socket(socket.AF_UNIX) as manager:
        manager.connect(str(FOLDER / MANAGER))
        manager.send(f"{verb} {unit[1]}".encode())
        if manager.recv(9) != b"done":
            fail(f"systemctl {arguments}: not done")


def python3(arguments: Sequence[str]) -> None:
    """Create an environment whose pip is replaced, too."""
    if list(arguments[:2]) != ["-m", "venv"] or len(arguments) != 3:
        fail(f"python3 {arguments}: nothing but an environment is made here")
    programs = Path(arguments[2], "bin")
    programs.mkdir(parents=True)
    for name in ("pip", "fleet"):
        (programs / name).symlink_to(Path(str(shutil.which(name))))
    (programs / "activate").write_text(f"PATH={programs.resolve()}:$PATH\n")


def pip(arguments: Sequence[str]) -> None:
    """Check that the packages exist here: the clone, or a file; and that they have the named extras."""
    if arguments[0] != "install":
        fail(f"pip {arguments}: nothing but an installation stands in for itself")
    arguments_known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for each in arguments[1:]:
        extra = _EXTRAS.fullmatch(each)
        if each.startswith("--") or extra is None:
            continue
        if not Path(extra["what"]).exists():
            fail(f"pip: {extra['what']} is not here, and on no index either")
        missing = set((extra["extras"] or "").split(",")) - {""} - set(arguments_known)
        if missing:
            fail(f"pip: there are no extras {missing}")


def kubectl(arguments: Sequence[str]) -> None:
    """Answer a question for a single field with the configured answer."""
    given(arguments)
    if arguments[0] == "get":
        sys.stdout.write("stand-in://answer")


def given(arguments: Sequence[str]) -> None:
    """Check that the named files exist here: files of the clone, and files after the known options."""
    options = ("--file", "--values", "-f", "--from-file")
    named = [after for before, after in itertools.pairwise(arguments) if before in options]
    for each in (*named, *(each for each in arguments if each.startswith("deploy/"))):
        if not Path(each).exists():
            fail(f"{each}: there is no such file")


STAND_INS: Final[Mapping[str, Callable[[Sequence[str]], None]]] = MappingProxyType(
    {
        "crictl": given,
        "ctr": given,
        "docker": given,
        "helm": given,
        "install": install,
        "kubectl": kubectl,
        "pip": pip,
        "python3": python3,
        "ssh": ssh,
        "sudo": sudo,
        "systemctl": systemctl,
        "useradd": given,
    }
)


def main(name: str, arguments: Sequence[str]) -> None:
    STAND_INS[name](arguments)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
