"""Samples, and a file that has each as soon as it is there: what fails after an hour takes none with it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from benchmarks.errors import BenchError
from benchmarks.results import Sample

_SAMPLE = TypeAdapter(Sample)


class Kept:
    """What was measured, in a file with a JSON object in each line, if there is to be one.

    Args:
        path: of the file; it is made, or what it holds of other workloads is taken along, and what it was
            stays beside it as `….before`.
        anew: the workloads that are measured now.
    Raises: BenchError: it holds something else, or cannot be read or written.
    """

    def __init__(self, path: Path | None, anew: Collection[str]) -> None:
        self._path = path
        self.samples = [sample for sample in _read(path) if sample.workload not in anew] if path else []
        self.before = tuple(dict.fromkeys(sample.workload for sample in self.samples))
        """The workloads that were measured in a run before this."""
        self._copy()
        self._write("w", b"".join(map(_line, self.samples)))

    def add(self, sample: Sample) -> None:
        """Raises: BenchError: the file cannot be written."""
        self.samples.append(sample)
        self._write("a", _line(sample))

    def _copy(self) -> None:
        if self._path is None or not self._path.exists():
            return
        beside = self._path.with_name(f"{self._path.name}.before")
        try:
            shutil.copy(self._path, beside)
        except OSError as error:
            raise BenchError(f"{beside}: {error.strerror}") from error

    def _write(self, mode: str, data: bytes) -> None:
        if self._path is None:
            return
        try:
            with self._path.open(f"{mode}b") as file:
                file.write(data)
        except OSError as error:
            raise BenchError(f"{self._path}: {error.strerror}") from error


def _line(sample: Sample) -> bytes:
    return _SAMPLE.dump_json(sample) + b"\n"


def _read(path: Path) -> Iterator[Sample]:
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            yield _SAMPLE.validate_json(line)
        except ValidationError as error:
            raise BenchError(f"{path}, line {number}: no sample of a benchmark: {line[:80]!r}") from error
