"""Parsing callgrind's output, and finding valgrind."""

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


def test_calls_are_summed_by_callee() -> None:
    """A name appears once and later as a number; the depth of recursion is not part of the name."""
    found = callgrind.parse(PROFILE)
    assert found.instructions == 1234
    assert found.calls == {"malloc": 23, "serve": 6, "std::vector<int, long>::push_back(int const&)": 1}


def test_incomplete_profile_is_rejected() -> None:
    with pytest.raises(BenchError, match="no sum"):
        callgrind.parse(PROFILE.replace("summary: 1234", ""))


def test_missing_valgrind_is_reported_with_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline(*_: object) -> Path:
        raise subprocess.CalledProcessError(100, "apt-get")

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(callgrind, "FOLDER", tmp_path / "valgrind")
    monkeypatch.setattr(debian, "unpack_debian_program", offline)
    with pytest.raises(BenchError, match="apt-get install valgrind"):
        callgrind.find()
