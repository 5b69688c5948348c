"""Run fuzzers in parallel and collect their results."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.fuzz.seeds import FINDS, MAX_SEED_BYTES, write_corpus

ROOT: Final = Path(__file__).resolve().parents[2]
MAX_INPUT_BYTES: Final = MAX_SEED_BYTES + 1024
MEMORY_LIMIT_MB: Final = 1024
"""Memory of a fuzzer; an input that needs more is a failure."""
INPUT_TIMEOUT_S: Final = 120
"""Time for one input on a busy machine; an input usually takes a millisecond."""
MIN_BRANCH_PERCENT: Final = 90.0
"""Minimum share of the branches of the wire core to reach."""
PROGRESS_INTERVAL_S: Final = 15.0

_STATUS: Final = re.compile(r"#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)")
_EXECUTED: Final = re.compile(r"stat::number_of_executed_units: (\d+)")

LogLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a fuzzing run.

    Args:
        inputs: number of inputs checked; wanted: number requested.
        seeds: number of initial inputs; corpus: number of inputs added because they reached something new.
        edges, features: the highest counts of one fuzzer, as libFuzzer counts them.
        branches: coverage of the wire core by the whole corpus, as coverage.py counts it.
        finds: the files of failing inputs.
    """

    inputs: int
    wanted: int
    seconds: float
    inputs_per_s: float
    processes: int
    seed: int
    seeds: int
    corpus: int
    edges: int
    features: int
    branches: dict[str, Any]
    finds: list[str]

    @property
    def passed(self) -> bool:
        enough = self.branches.get("percent", 0.0) >= MIN_BRANCH_PERCENT
        return not self.finds and self.inputs >= self.wanted and enough


@dataclass
class Fuzzer:
    """A fuzzing process and the counts that it has printed."""

    process: subprocess.Popen[str]
    inputs: int = 0
    edges: int = 0
    features: int = 0
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=40))

    def listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.last_lines.append(line.rstrip())
            status, executed = _STATUS.search(line), _EXECUTED.search(line)
            if status is not None:
                self.inputs, self.edges, self.features, _ = map(int, status.groups())
            elif executed is not None:
                self.inputs = int(executed.group(1))


def fuzz(
    inputs: int, processes: int, seed: int, folder: Path, log_line: LogLine, limit_s: float = 0
) -> Result:
    """Check a number of inputs.

    Args:
        folder: folder for the seeds, the corpora and the failing inputs.
        limit_s: time limit; 0 for none.
    """
    seeds, finds = folder / "seeds", folder / "finds"
    seeded = write_corpus(seeds, seed)
    log_line(f"{seeded} seeds; {processes} processes")
    started_s = time.monotonic()
    fuzzers = [
        _start(number, -(-inputs // processes), seed + number, folder, limit_s) for number in range(processes)
    ]
    listeners = [threading.Thread(target=each.listen) for each in fuzzers]
    for each in listeners:
        each.start()
    while any(each.is_alive() for each in listeners):
        for each in listeners:
            each.join(PROGRESS_INTERVAL_S / processes)
        took_s = time.monotonic() - started_s
        done = sum(each.inputs for each in fuzzers)
        most = max(each.features for each in fuzzers)
        log_line(f"{done} inputs in {took_s:.0f} s, {done / took_s:.0f} a second; {most} features")
    took_s = time.monotonic() - started_s
    for fuzzer in fuzzers:
        if fuzzer.process.wait() != 0:
            log_line("\n".join(fuzzer.last_lines))
    found = sorted(map(str, finds.glob("*"))) if finds.exists() else []
    if not found and any(each.process.returncode for each in fuzzers):
        found = [f"a fuzzer ended with {[each.process.returncode for each in fuzzers]}"]
    _, *process_folders = folders = corpora(folder, processes)
    log_line("branches")
    done = sum(each.inputs for each in fuzzers)
    return Result(
        inputs=done,
        wanted=inputs,
        seconds=round(took_s, 1),
        inputs_per_s=round(done / took_s, 1),
        processes=processes,
        seed=seed,
        seeds=seeded,
        corpus=sum(1 for each in process_folders for _ in each.iterdir()),
        edges=max(each.edges for each in fuzzers),
        features=max(each.features for each in fuzzers),
        branches=branches(folders),
        finds=found,
    )


def corpora(folder: Path, processes: int) -> list[Path]:
    """The corpus folders of a run: the seeds, and one for each process."""
    return [folder / "seeds", *(folder / f"corpus-{number}" for number in range(processes))]


def branches(folders: list[Path]) -> dict[str, Any]:
    """Measure branches by `tests.fuzz.branches`, which requires its own process."""
    command = [sys.executable, "-m", "tests.fuzz.branches", *map(str, folders)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _start(number: int, inputs: int, seed: int, folder: Path, limit_s: float) -> Fuzzer:
    corpus = folder / f"corpus-{number}"
    corpus.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "tests.fuzz.child"),
        *(str(folder / "finds"), str(corpus), str(folder / "seeds")),
        f"-runs={inputs}",
        f"-seed={seed}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-timeout={INPUT_TIMEOUT_S}",
        f"-rss_limit_mb={MEMORY_LIMIT_MB}",
        f"-artifact_prefix={folder}/",
        f"-max_total_time={int(limit_s)}",
        *("-len_control=0", "-reload=0", "-print_final_stats=1"),
    ]
    return Fuzzer(
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    )


__all__ = ["FINDS", "MIN_BRANCH_PERCENT", "Result", "branches", "corpora", "fuzz"]
