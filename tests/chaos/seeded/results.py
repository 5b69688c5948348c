"""Keeps results of runs in a file, so that no run has to be repeated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from fleet.core.codec import Codec
from fleet.core.errors import DemoError
from tests.chaos.seeded.report import RunResult
from tests.chaos.seeded.run import replay
from tests.chaos.seeded.schedule import Plan

_RESULT: Final = Codec(RunResult)


class Results:
    """JSON lines, one for each run. Of two lines for the same plan, the later one counts.

    Raises: DemoError: the file exists, but cannot be read or has other content.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_replay: dict[str, RunResult] = {}
        try:
            lines = path.read_bytes().splitlines() if path.exists() else []
        except OSError as error:
            raise DemoError(f"results {path}: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            try:
                result = _RESULT.decode(line)
            except ValueError:
                raise DemoError(
                    f"results {path}, line {number}: no result of a run; remove that line"
                ) from None
            self._by_replay[result.replay] = result

    def clean(self, plan: Plan) -> RunResult | None:
        """The result of a plan that ran without a violation; None without one."""
        result = self._by_replay.get(replay(plan))
        return None if result is None or result.violations else result

    def add(self, result: RunResult) -> None:
        """Append a result. Raises: DemoError: the file cannot be written."""
        self._by_replay[result.replay] = result
        try:
            with self._path.open("ab") as file:
                file.write(_RESULT.encode(replace(result, folder=Path(result.folder).name)) + b"\n")
        except OSError as error:
            raise DemoError(f"results {self._path}: {error.strerror}") from error
