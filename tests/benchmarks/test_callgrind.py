"""What callgrind writes, and where it is had from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import callgrind, debian
from benchmarks.errors import BenchError

PROFILE = """\
version: 1
creator: callgrind-3.19.0
pid: 4711
part: 1
events: Ir
summary: 1234

fn=(7) serve
+3 10
cfn=(9) malloc
calls=20 0
+1 400
cob=(3) /usr/lib/libc.so.6
cfn=(11) serve'2
calls=2 0
+1 30

fn=(9)
+2 200

fn=(11)
+4 5
cfn=(9)
calls=3 0
+1 60
cfn=(12) std::vector<int, long>::push_back(int const&)
calls=1 0
+1 2
cfn=(7)
calls=4 0
+1 2
"""


def test_calls_are_summed_by_whom_they_call() -> None:
    """Names are told once, and are numbers from then on; how deep a function calls itself is no name."""
    found = callgrind.parse(PROFILE)
    assert found.instructions == 1234
    assert found.calls == {"malloc": 23, "serve": 6, "std::vector<int, long>::push_back(int const&)": 1}


def test_a_file_that_is_not_whole_is_refused() -> None:
    with pytest.raises(BenchError, match="no sum"):
        callgrind.parse(PROFILE.replace("summary: 1234", ""))


def test_where_valgrind_cannot_be_had_it_is_said_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def offline(*_: object) -> Path:
        raise subprocess.CalledProcessError(100, "apt-get")

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(callgrind, "FOLDER", tmp_path / "valgrind")
    monkeypatch.setattr(debian, "unpack_debian_program", offline)
    with pytest.raises(BenchError, match="apt-get install valgrind"):
        callgrind.find()
