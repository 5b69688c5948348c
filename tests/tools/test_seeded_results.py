"""The file with the results of long runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.errors import DemoError
from tests.chaos.seeded.results import Results
from tests.chaos.seeded.run import replay
from tests.chaos.seeded.schedule import plan_of
from tests.tools.sample_chaos import chaos_run


def test_run_without_a_violation_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    result = chaos_run(plan="7", replay=replay(plan_of(7)), violations=())
    Results(path).add(result)
    known = Results(path).clean(plan_of(7))
    assert known is not None
    assert (known.durable, known.noticed) == (result.durable, result.noticed)
    assert Results(path).clean(plan_of(8)) is None
    assert Results(path).clean(plan_of(7, 60.0)) is None


def test_run_with_a_violation_is_repeated_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    Results(path).add(chaos_run(replay=replay(plan_of(7))))
    assert Results(path).clean(plan_of(7)) is None
    Results(path).add(chaos_run(replay=replay(plan_of(7)), violations=()))
    assert Results(path).clean(plan_of(7)) is not None
    assert len(path.read_text().splitlines()) == 2


def test_truncated_line_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    Results(path).add(chaos_run())
    path.write_bytes(path.read_bytes() + path.read_bytes()[:40])
    with pytest.raises(DemoError, match=r"runs\.jsonl, line 2: no result of a run; remove that line"):
        Results(path)


def test_unwritable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="Is a directory"):
        Results(tmp_path)
    with pytest.raises(DemoError, match="No such file"):
        Results(tmp_path / "no" / "runs.jsonl").add(chaos_run())
