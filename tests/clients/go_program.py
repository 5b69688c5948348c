"""The programs around Go libraries: `*/main.go` next to this file describe the commands of each program."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from tests.certificates import Pair
from tests.clients import program
from tests.clients.program import CLOSE_LIMIT_S, Output, Program
from tests.integration.clients import LIMIT_S


def tls(authority: Path, own: Pair) -> list[str]:
    """The options for a listener with TLS that requires a client certificate."""
    return ["-ca", str(authority), "-certificate", str(own.certificate), "-key", str(own.key)]


def run(file: Path, *arguments: str) -> Output:
    """Run a program to its end, and require its success."""
    return program.run([file, *arguments])


class GoProgram(Program):
    """A running program: options, `work` and its arguments. Each record's value begins with the partition."""

    def __init__(self, file: Path, *arguments: str) -> None:
        super().__init__([file, *arguments])

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> int:
        """Ask the program to end in order, and wait. Returns: the exit code.

        Raises: TimeoutExpired: the program does not end. Its goroutines are on standard error.
        """
        try:
            return super().close(limit_s)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(LIMIT_S)
            raise
