"""Shards: together they hold every test, they are of about equal length, and a commit chooses one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import shards
from tools.bootstrap import ROOT
from tools.shards import Shard, WrongShard, chosen, cut

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_collected_tests_all_have_a_size_and_a_shard() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250)
    # A test without a size is an error of usage, and pytest names it.
    assert done.returncode == 0, done.stdout + done.stderr
    collected = set(re.findall(r"^(tests/\S+\.py): \d+$", done.stdout, re.MULTILINE))
    assert "tests/unit/test_shards.py" in collected
    for count in range(1, 8):
        cut_up = Counter(
            file for shard in shards.shards(count, shards.read_durations()) for file in shard.files()
        )
        assert set(cut_up) >= collected
        assert set(cut_up.values()) == {1}


@given(
    st.lists(st.floats(0.1, 100.0), min_size=1, max_size=40),
    st.integers(1, 9),
)
def test_cut_parts_are_consecutive_and_of_equal_length(seconds: list[float], count: int) -> None:
    files = [str(number) for number in range(len(seconds))]
    parts = cut(files, seconds, count)
    assert len(parts) == count
    assert [file for part in parts for file in part] == files
    lengths = [sum(seconds[int(file)] for file in part) for part in parts]
    assert max(abs(length - sum(seconds) / count) for length in lengths) <= max(seconds) + 1e-6


def test_cut_files_that_take_no_time_are_not_lost() -> None:
    assert cut(["a", "b"], [0.0, 0.0], 2) == [("a", "b"), ()]


def test_shard_count_grows_with_the_suite() -> None:
    files = shards.files_in(shards.SERVER_FOLDERS)
    for minutes, count in ((5, 1), (15, 1), (16, 2), (60, 4), (150, 10)):
        durations = {file: minutes * 60.0 / len(files) - 1e-6 for file in files}
        assert shards.shard_count(durations) == count


def test_durations_kept_name_only_files_that_exist() -> None:
    known = shards.files_in((*shards.UNIT_FOLDERS, *shards.IDLE_TIME_FOLDERS, *shards.SERVER_FOLDERS))
    assert set(shards.read_durations()) <= set(known)


def test_chosen_by_a_commit_is_a_whole_shard_from_some_file_on() -> None:
    durations = shards.read_durations()
    count = shards.shard_count(durations)
    starts = set()
    for number in range(40):
        ((name, shard),) = chosen("auto", durations, f"commit {number}")
        ((_, whole),) = chosen(name, durations, "")
        assert name.endswith(f"/{count}")
        assert sorted(shard.files()) == sorted(whole.files())
        starts.add((name, shard.server[0]))
    assert {name for name, _ in starts} == {f"{each}/{count}" for each in range(1, count + 1)}
    assert len(starts) > 2 * count
    assert chosen("auto", durations, COMMIT) == chosen("auto", durations, COMMIT)


def test_chosen_all_are_all_shards() -> None:
    names = [name for name, _ in chosen("all", {}, "")]
    assert names == [f"{each}/{len(names)}" for each in range(1, len(names) + 1)]


@pytest.mark.parametrize("text", ["", "2", "0/4", "5/4", "2/4/6", "-1/4", "a/b", "1 / 2"])
def test_chosen_text_that_names_no_shard_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WrongShard, match="use K/N with 1 <= K <= N, for example 2/"):
        chosen(text, {}, "")
    assert shards.main(["run", text] if text != "-1/4" else ["run", "--", text]) == 2
    assert f"SHARD={text!r}" in capsys.readouterr().err


def test_starting_at_rotates_each_kind_of_file() -> None:
    shard = Shard(("a", "b"), ("c",), ("d", "e", "f"))
    assert shard.starting_at(4) == Shard(("a", "b"), ("c",), ("e", "f", "d"))
    assert Shard((), (), ()).starting_at(4) == Shard((), (), ())


def test_run_reports_a_failure_of_any_step(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []

    def call(command: tuple[str, ...], **_: object) -> int:
        commands.append(command)
        return int("tests/unit/test_bad.py" in command)

    monkeypatch.setattr(subprocess, "call", call)
    good = Shard(("tests/unit/test_a.py",), ("tests/fuzz/test_b.py",), ("tests/chaos/test_c.py",))
    assert shards.run("1/2", good, {}, None) == 0
    assert [command[-1] for command in commands] == ["tests/unit/test_a.py", "tests/chaos/test_c.py"]
    assert "tests/fuzz/test_b.py" in commands[1]
    assert shards.run("1/2", Shard(("tests/unit/test_bad.py",), (), ()), {}, None) == 1
    commands.clear()
    assert shards.run("1/2", Shard((), ("tests/fuzz/test_b.py",), ()), {}, 12.3) == 0
    ((*_, last),) = commands
    assert last == "tests/fuzz/test_b.py"
    assert "--end-by=12" in commands[0]


def test_keep_copies_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shards, "ROOT", tmp_path)
    monkeypatch.setattr(shards, "MEASURED", tmp_path / "build.json")
    monkeypatch.setattr(shards, "KEPT", tmp_path / "kept.json")
    assert shards.main(["keep"]) == 1
    (tmp_path / "build.json").write_text('{"tests/unit/test_a.py": 1.5}')
    assert shards.main(["keep"]) == 0
    assert shards.read_durations(tmp_path / "kept.json") == {"tests/unit/test_a.py": 1.5}
