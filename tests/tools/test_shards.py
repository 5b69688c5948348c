"""Shards hold every test together, take about equal time, and a commit chooses a shard."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import shards
from tools.bootstrap import ROOT
from tools.shards import Shard, WrongShard, cut, select_shards

COMMIT = "0123456789abcdef0123456789abcdef01234567"


LISTING = """
import json
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    from tests.sizes import size_of

    found = sorted({(str(item.path.relative_to(Path.cwd())), size_of(item)) for item in items})
    Path(__file__).with_name("found.json").write_text(json.dumps(found))
"""
"""A plugin that lists the files of all tests, with their sizes; a test without a size ends it."""


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    """Every file with tests, with each size that it has tests of."""
    folder = tmp_path_factory.mktemp("listing")
    (folder / "listing.py").write_text(LISTING)
    options = ("--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "listing", "tests")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {(file, size) for file, size in json.loads((folder / "found.json").read_text())}


def test_collected_tests_are_all_in_exactly_one_shard(collected: set[tuple[str, str]]) -> None:
    expected = {file for file, size in collected if size != "test-long"}
    assert "tests/tools/test_shards.py" in expected
    for count in range(1, 8):
        made = shards.shards(count, shards.read_durations())
        cut_up = Counter(file for shard in made for file in shard.files())
        assert set(cut_up) >= expected
        assert set(cut_up.values()) == {1}


def test_collected_tests_all_run_by_the_command_of_their_size(collected: set[tuple[str, str]]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    (listed,) = re.findall(r"^SERVER_TESTS = (.*)$", makefile, re.MULTILINE)
    assert listed.split() == list(shards.SERVER_FOLDERS)
    (units,) = re.findall(r"^UNIT_TESTS = (.*)$", makefile, re.MULTILINE)
    assert units.replace("$(IN_PROCESS)", shards.IN_PROCESS).split() == list(shards.UNIT_FOLDERS)
    assert f"\nIN_PROCESS = {shards.IN_PROCESS}\n" in makefile
    assert "\nWITH_SERVERS = $(SERVER_TESTS) --ignore=$(IN_PROCESS)\n" in makefile
    make_test = (*shards.UNIT_FOLDERS, "tests/property", *shards.SERVER_FOLDERS)
    for file, size in collected:
        assert size != "test" or file.startswith(make_test), f"make test does not run {file}"
    assert "pytest -s --size=test-long tests " in makefile


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


def test_commit_chooses_a_shard_and_its_first_file() -> None:
    durations = shards.read_durations()
    count = shards.shard_count(durations)
    starts = set()
    for number in range(40):
        ((name, shard),) = select_shards("auto", durations, f"commit {number}")
        ((_, whole),) = select_shards(name, durations, "")
        assert name.endswith(f"/{count}")
        assert sorted(shard.files()) == sorted(whole.files())
        starts.add((name, shard.server[0]))
    assert {name for name, _ in starts} == {f"{each}/{count}" for each in range(1, count + 1)}
    assert len(starts) > 2 * count
    assert select_shards("auto", durations, COMMIT) == select_shards("auto", durations, COMMIT)


def test_chosen_all_are_all_shards() -> None:
    names = [name for name, _ in select_shards("all", {}, "")]
    assert names == [f"{each}/{len(names)}" for each in range(1, len(names) + 1)]


@pytest.mark.parametrize("text", ["", "2", "0/4", "5/4", "2/4/6", "a/b", "1 / 2"])
def test_invalid_shard_name_is_rejected(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WrongShard, match="use K/N with 1 <= K <= N, for example 2/"):
        select_shards(text, {}, "")
    assert shards.main(["run", text]) == 2
    assert f"SHARD={text!r}" in capsys.readouterr().err


def test_chosen_shard_without_files_is_refused() -> None:
    with pytest.raises(WrongShard, match="has no file with servers; use a smaller N"):
        select_shards("3/5000", {}, "")


def test_chosen_by_a_commit_needs_a_clone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shards, "ROOT", tmp_path)
    assert shards.main(["run", "auto"]) == 2
    assert "SHARD=auto needs a git clone; use K/N" in capsys.readouterr().err


def test_starting_at_rotates_each_kind_of_file() -> None:
    shard = Shard(("a", "b"), ("c",), ("d", "e", "f"))
    assert shard.starting_at(4) == Shard(("a", "b"), ("c",), ("e", "f", "d"))
    assert Shard((), (), ()).starting_at(4) == Shard((), (), ())


def test_starting_with_a_file_moves_those_before_it_to_the_end() -> None:
    shard = Shard(("a",), (), ("d", "e", "f"))
    assert shard.starting_with("f") == Shard(("a",), (), ("f", "d", "e"))
    with pytest.raises(WrongShard, match="no such file"):
        shard.starting_with("a")


SHARD = Shard(("tests/unit/test_a.py",), ("tests/fuzz/test_b.py",), ("tests/chaos/test_c.py",))


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """The commands that would have run; one with `test_bad.py` fails, and `test_cut.py` is interrupted."""
    commands: list[tuple[str, ...]] = []

    def call(command: tuple[str, ...]) -> int:
        commands.append(command)
        if command[-1].endswith("test_cut.py"):
            return shards.INTERRUPTED
        return int(command[-1].endswith("test_bad.py"))

    monkeypatch.setattr(shards, "call", call)
    monkeypatch.setattr(shards, "LEFT_OUT_FILE", tmp_path / "left-out.txt")
    return commands


def test_run_goes_from_unit_tests_to_tests_with_servers(called: list[tuple[str, ...]]) -> None:
    assert shards.run_all([("1/2", SHARD)], ("-x",)) == 0
    assert [command[-1] for command in called] == ["tests/unit/test_a.py", "tests/chaos/test_c.py"]
    assert "tests/fuzz/test_b.py" in called[1]
    assert all("-x" in command for command in called)


def test_run_reports_a_failure_and_goes_on(
    called: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Shard(("tests/unit/test_bad.py",), (), ("tests/chaos/test_c.py",))
    assert shards.run_all([("1/2", bad), ("2/2", SHARD)]) == 1
    assert len(called) == 4
    assert "a test failed in shard 1/2" in capsys.readouterr().err


def test_run_that_is_interrupted_begins_nothing_more(called: list[tuple[str, ...]]) -> None:
    cut_short = Shard(("tests/unit/test_cut.py",), (), ("tests/chaos/test_c.py",))
    assert shards.run_all([("1/2", cut_short), ("2/2", SHARD)]) == shards.INTERRUPTED
    assert len(called) == 1


def test_run_without_time_begins_nothing_and_names_all_files(
    called: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert shards.run_all([("1/2", SHARD)], end_by_s=12.3) == 0
    assert called == []
    said = capsys.readouterr().err
    assert "left out for lack of time, 3 files:" in said
    assert all(file in said for file in SHARD.files())


def test_run_passes_its_limit_on(called: list[tuple[str, ...]]) -> None:
    shards.run_all([("1/2", SHARD)], end_by_s=time.time() + 1000.0)
    assert all(any(each.startswith("--end-by=") for each in command) for command in called)


CLEANS_UP = """
import signal, sys, time
def clean_up(*_):
    time.sleep(1.0)
    print("clean", flush=True)
    sys.exit(1)
signal.signal(signal.SIGINT, clean_up)
print("up", flush=True)
time.sleep(60)
"""


def test_call_waits_for_a_command_that_cleans_up_on_interrupt() -> None:
    """Found: `subprocess.call` kills a command a quarter of a second after Ctrl-C."""
    program = f"from tools import shards; print(shards.call([{sys.executable!r}, '-c', {CLEANS_UP!r}]))"
    command = [
        sys.executable,
        "-c",
        f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {program}",
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.read() == f"clean\n{shards.INTERRUPTED}\n"


def test_keep_copies_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shards, "ROOT", tmp_path)
    monkeypatch.setattr(shards, "MEASURED_FILE", tmp_path / "build.json")
    monkeypatch.setattr(shards, "DURATIONS_FILE", tmp_path / "kept.json")
    assert shards.main(["keep"]) == 1
    (tmp_path / "build.json").write_text('{"tests/unit/test_a.py": 1.5}')
    assert shards.main(["keep"]) == 0
    assert shards.read_durations(tmp_path / "kept.json") == {"tests/unit/test_a.py": 1.5}
