"""Fuzzers beside each other, and what became of them."""

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

from tests.fuzz.seeds import FINDS, LONGEST_BYTES, write_corpus

ROOT: Final = Path(__file__).resolve().parents[2]
LONGEST_INPUT_BYTES: Final = LONGEST_BYTES + 1024
LIMIT_MB: Final = 1024
"""Of memory; an input that makes a fuzzer take more is a find."""
LIMIT_S: Final = 120
"""For one input, on a machine that does other things; it takes a millisecond."""
LEAST_PERCENT: Final = 90.0
"""Of the branches of the wire core that are to be taken."""
SAY_EVERY_S: Final = 15.0

_STATUS: Final = re.compile(r"#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)")
_EXECUTED: Final = re.compile(r"stat::number_of_executed_units: (\d+)")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Result:
    """What fuzzing has come to.

    Args:
        inputs: that were checked.
        seeds: of them were there from the beginning; corpus: were kept since for leading somewhere new.
        edges, features: of the fuzzer that found most, as libFuzzer counts them.
        branches: how much of the wire core the whole corpus reaches, as coverage.py counts it.
        finds: the files of inputs that something is wrong with.
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
        enough = self.branches.get("percent", 0.0) >= LEAST_PERCENT
        return not self.finds and self.inputs >= self.wanted and enough


@dataclass
class Fuzzer:
    """A process that fuzzes, and what it has said of it."""

    process: subprocess.Popen[str]
    inputs: int = 0
    edges: int = 0
    features: int = 0
    said: deque[str] = field(default_factory=lambda: deque(maxlen=40))

    def listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.rstrip())
            status, executed = _STATUS.search(line), _EXECUTED.search(line)
            if status is not None:
                self.inputs, self.edges, self.features, _ = map(int, status.groups())
            elif executed is not None:
                self.inputs = int(executed.group(1))


def fuzz(inputs: int, processes: int, seed: int, folder: Path, say: Say, limit_s: float = 0) -> Result:
    """Check so many inputs.

    Args:
        folder: for the seeds, what is kept, and finds.
        limit_s: when to end all the same; 0 for never.
    """
    seeds, finds = folder / "seeds", folder / "finds"
    seeded = write_corpus(seeds, seed)
    say(f"{seeded} seeds; {processes} processes")
    began_s = time.monotonic()
    fuzzers = [
        _start(number, -(-inputs // processes), seed + number, folder, limit_s) for number in range(processes)
    ]
    listeners = [threading.Thread(target=each.listen) for each in fuzzers]
    for each in listeners:
        each.start()
    while any(each.is_alive() for each in listeners):
        for each in listeners:
            each.join(SAY_EVERY_S / processes)
        took_s = time.monotonic() - began_s
        done = sum(each.inputs for each in fuzzers)
        most = max(each.features for each in fuzzers)
        say(f"{done} inputs in {took_s:.0f} s, {done / took_s:.0f} a second; {most} features")
    took_s = time.monotonic() - began_s
    for fuzzer in fuzzers:
        if fuzzer.process.wait() != 0:
            say("\n".join(fuzzer.said))
    found = sorted(map(str, finds.glob("*"))) if finds.exists() else []
    if not found and any(each.process.returncode for each in fuzzers):
        found = [f"a fuzzer ended with {[each.process.returncode for each in fuzzers]}"]
    _, *kept = everything = corpora(folder, processes)
    say("branches")
    done = sum(each.inputs for each in fuzzers)
    return Result(
        inputs=done,
        wanted=inputs,
        seconds=round(took_s, 1),
        inputs_per_s=round(done / took_s, 1),
        processes=processes,
        seed=seed,
        seeds=seeded,
        corpus=sum(1 for each in kept for _ in each.iterdir()),
        edges=max(each.edges for each in fuzzers),
        features=max(each.features for each in fuzzers),
        branches=branches(everything),
        finds=found,
    )


def corpora(folder: Path, processes: int) -> list[Path]:
    """Below the folder of a run: the seeds, and what each process has found."""
    return [folder / "seeds", *(folder / f"corpus-{number}" for number in range(processes))]


def branches(folders: list[Path]) -> dict[str, Any]:
    """See `tests.fuzz.branches`, which wants a process of its own."""
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
        f"-max_len={LONGEST_INPUT_BYTES}",
        f"-timeout={LIMIT_S}",
        f"-rss_limit_mb={LIMIT_MB}",
        f"-artifact_prefix={folder}/",
        f"-max_total_time={int(limit_s)}",
        *("-len_control=0", "-reload=0", "-print_final_stats=1"),
    ]
    return Fuzzer(
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    )


__all__ = ["FINDS", "LEAST_PERCENT", "Result", "branches", "corpora", "fuzz"]
