"""franz-go, a client in Go, by the program of this folder: `main.go` says what it can do."""

from __future__ import annotations

import subprocess
import threading
from collections import defaultdict
from pathlib import Path
from typing import TypeAlias

from tests.certificates import Pair
from tests.integration.clients import LIMIT_S, read_all, wait_for
from tests.integration.rights import Credentials, Outcomes
from tools.bootstrap import FRANZ_GO

FLOWS = 300
"""Records that come back, of which each partition of twelve gets its part."""
Said: TypeAlias = dict[str, list[str]]
"""What the program has printed, by what it is about."""


def _note(said: Said, line: str) -> None:
    what, _, value = line.partition("\t")
    said[what].append(value)


def tls(authority: Path, own: Pair) -> list[str]:
    """The options for a listener with TLS that wants a certificate."""
    return ["-ca", str(authority), "-certificate", str(own.certificate), "-key", str(own.key)]


def run(*arguments: str) -> Said:
    """Have it do something to its end, which must go well."""
    done = subprocess.run(
        [FRANZ_GO, *arguments], capture_output=True, text=True, timeout=2 * LIMIT_S, check=False
    )
    said: Said = defaultdict(list)
    for line in done.stdout.splitlines():
        _note(said, line)
    assert (done.returncode, said.pop("closed", []), said.get("failed", [])) == (0, [""], []), done
    return said


def by_franz_go(name: str, bootstrap: str, credentials: Credentials) -> Outcomes:
    """As `by_librdkafka`."""
    sasl = ["-mechanism", credentials.mechanism, "-secret", credentials.secret]
    said = run(*sasl, "-username", credentials.username, "rights", bootstrap, name)
    return {what: ", ".join(values) for what, values in said.items()}


class FranzGo:
    """The program at work, killed at the end of the context: options, `work` and its arguments."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [FRANZ_GO, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said: Said = defaultdict(list)
        self._reading = threading.Thread(target=self._read, name="franz-go")
        self._reading.start()

    def await_flow(self) -> None:
        """Wait until so many more records were acknowledged, and received."""
        wanted = {what: len(self.said[what]) + FLOWS for what in ("acknowledged", "received")}
        wait_for(lambda: all(len(self.said[what]) >= n for what, n in wanted.items()), "records")

    def close(self) -> int:
        """Have it end in order. Returns: its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(LIMIT_S)

    def __enter__(self) -> FranzGo:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()

    def judge(self, bootstrap: str, topic: str) -> None:
        """Nothing has failed, and what was acknowledged is in the topic and was received, once each."""
        assert (self.said["closed"], self.said["failed"]) == ([""], [])
        acknowledged = sorted(self.said["acknowledged"])
        log = read_all(bootstrap, topic, len(acknowledged))
        assert sorted((each.value() or b"").decode() for each in log) == acknowledged
        assert sorted(self.said["received"]) == acknowledged

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            _note(self.said, line.rstrip("\n"))
