"""Samples, and a file that gets each sample at once: a failure after an hour loses none of them."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from benchmarks.errors import BenchError
from benchmarks.results import Sample

_SAMPLE = TypeAdapter(Sample)


class SampleStore:
    """The samples of a run, and a file with a JSON object in each line, if there is a file.

    Args:
        path: the file. A new file is made; an existing one keeps its samples of other workloads, and a copy
            of its old content is kept next to it as `….before`.
        measured_now: the workloads that are measured in this run.
    Raises: BenchError: the file holds something else, or cannot be read or written.
    """

    def __init__(self, path: Path | None, measured_now: Collection[str]) -> None:
        self._path = path
        self.samples = (
            [sample for sample in _read(path) if sample.workload not in measured_now] if path else []
        )
        self.before = tuple(dict.fromkeys(sample.workload for sample in self.samples))
        """The workloads that were measured in an earlier run."""
        self._copy()
        self._write("w", b"".join(map(_line, self.samples)))

    def add(self, sample: Sample) -> None:
        """Add a sample. Raises: BenchError: the file cannot be written."""
        self.samples.append(sample)
        self._write("a", _line(sample))

    def _copy(self) -> None:
        if self._path is None or not self._path.exists():
            return
        backup = self._path.with_name(f"{self._path.name}.before")
        try:
            shutil.copy(self._path, backup)
        except OSError as error:
            raise BenchError(f"{backup}: {error.strerror}") from error

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
            raise BenchError(f"{path}, line {number}: not a sample of a benchmark: {line[:80]!r}") from error
