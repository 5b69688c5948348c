"""The programs around Node libraries, in the folders next to this file.

`node/program.js` describes the command line and the output of these programs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.clients import program
from tests.clients.program import Output, Program
from tools.bootstrap import bring_node_client

build_program = cache(bring_node_client)


def run(folder: str, *arguments: str, settings: Path | None = None) -> Output:
    """Run the program of a folder to its end, and require its success."""
    return program.run(_command(folder, arguments, settings))


def _command(folder: str, arguments: tuple[str, ...], settings: Path | None) -> list[str]:
    options = () if settings is None else ("--settings", str(settings))
    return ["node", str(build_program(folder)), *options, *arguments]


class NodeProgram(Program):
    """The running program of a folder: `work` and its arguments."""

    def __init__(self, folder: str, *arguments: str, settings: Path | None = None) -> None:
        super().__init__(_command(folder, arguments, settings))
