"""The programs around Go libraries: `*/main.go` next to this file describe the commands of each program."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from tests.certificates import Pair
from tests.clients import program
from tests.clients.program import PARTITIONS, Output, Program
from tests.integration.clients import LIMIT_S, wait_for


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

    def await_partitions(self) -> None:
        """Wait until each partition has a new acknowledged record and a new received record."""
        since_s = time.monotonic()

        def flows() -> bool:
            return all(
                len({partition for at_s, partition in self._seen(what) if at_s > since_s}) == PARTITIONS
                for what in ("acknowledged", "received")
            )

        wait_for(flows, "records of each partition")

    def longest_pause_s(self, what: str, since_s: float, until_s: float) -> float:
        """The longest interval in which no record of some partition was "acknowledged", or "received".

        Args: since_s, until_s: the window. A pause that lasts beyond its end counts up to the end.
        """
        latest_s = dict.fromkeys(range(PARTITIONS), since_s)
        longest_s = 0.0
        for at_s, partition in self._seen(what):
            if since_s < at_s <= until_s:
                longest_s = max(longest_s, at_s - latest_s[partition])
                latest_s[partition] = at_s
        return max(longest_s, *(until_s - at_s for at_s in latest_s.values()))

    def close(self, limit_s: float = LIMIT_S) -> int:
        """Ask the program to end in order, and wait. Returns: the exit code.

        Raises: TimeoutExpired: the program does not end. Its goroutines are on standard error.
        """
        try:
            return super().close(limit_s)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(LIMIT_S)
            raise

    def _seen(self, what: str) -> list[tuple[float, int]]:
        values = list(self.said[what])
        return [
            (at_s, int(value.partition("-")[0]))
            for at_s, value in zip(self.moments_s[what], values, strict=False)
        ]
