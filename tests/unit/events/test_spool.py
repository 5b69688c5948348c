"""The queue on disk in which events wait until Kafka is available."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core.errors import SpoolError
from fleet.events.spool import MIN_PAGES, PAGE_BYTES, Record, Spool

LIMIT_BYTES = 1 << 20


def records(numbers: Iterable[int], size: int = 10) -> list[Record]:
    return [Record("topic", None if number % 3 else b"key", b"%0*d" % (size, number)) for number in numbers]


def waiting(spool: Spool) -> list[Record]:
    return [each.record for each in spool.oldest(1_000_000)]


def test_records_keep_their_order_until_forgotten(tmp_path: Path) -> None:
    with Spool(tmp_path / "spool", LIMIT_BYTES) as spool:
        spool.append(records(range(10)))
        spool.append(records(range(10, 20)))
        first = spool.oldest(5)
        assert [each.record for each in first] == records(range(5))
        assert spool.oldest(5) == first
        spool.forget(first[-1].number)
        assert waiting(spool) == records(range(5, 20))
        assert spool.waiting == 15


def test_records_survive_process_and_numbers_are_unique(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from fleet.events.spool import Record, Spool\n"
        "spool = Spool(Path(sys.argv[1]), 1 << 20)\n"
        "for number in range(10): spool.append([Record('topic', None, b'%d' % number)])\n"
        "spool.forget(spool.oldest(10)[3].number)\n"
        "os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "spool")], check=False)
    assert done.returncode == 9
    with Spool(tmp_path / "spool", LIMIT_BYTES) as spool:
        assert [each.value for each in waiting(spool)] == [b"%d" % number for number in range(4, 10)]
        newest = spool.oldest(10)[-1].number
        spool.forget(newest)
    with Spool(tmp_path / "spool", LIMIT_BYTES) as spool:
        spool.append(records([1]))
        assert spool.oldest(1)[0].number > newest


def test_full_spool_drops_and_counts_oldest_records(tmp_path: Path) -> None:
    limit = MIN_PAGES * PAGE_BYTES
    with Spool(tmp_path / "spool", limit) as spool:
        for start in range(0, 2000, 10):
            spool.append(records(range(start, start + 10), size=1000))
            assert (tmp_path / "spool").stat().st_size <= limit
        left = waiting(spool)
        assert left == records(range(2000 - len(left), 2000), size=1000)
        assert len(left) > limit // 1000 // 2
        assert spool.dropped == 2000 - len(left)


def test_full_spool_drops_expendable_topics_first(tmp_path: Path) -> None:
    """Found in review: one second of traffic is more than a day of ownership, and displaced it."""
    limit = MIN_PAGES * PAGE_BYTES
    with Spool(tmp_path / "spool", limit, {"much", "more"}) as spool:
        for start in range(0, 2000, 10):
            spool.append(records([start], size=500))
            spool.append([Record(topic, None, b"x" * 1000) for topic in ("much", "more") * 5])
        left = waiting(spool)
        assert [each for each in left if each.topic == "topic"] == records(range(0, 2000, 10), size=500)
        assert len(left) < 200 + 2000
        assert spool.dropped == 200 + 2000 - len(left)
        spool.append(records(range(400), size=500))
        assert {each.topic for each in waiting(spool)} == {"topic"}, (
            "other topics are dropped after the expendable ones"
        )


def test_oversized_batch_is_dropped_and_counted(tmp_path: Path) -> None:
    with Spool(tmp_path / "spool", 0) as spool:
        spool.append(records([1]))
        spool.append(records(range(3), size=MIN_PAGES * PAGE_BYTES))
        assert spool.dropped == 4
        assert waiting(spool) == []
        spool.append(records([2]))
        assert waiting(spool) == records([2])


@pytest.mark.parametrize("offset", [0, PAGE_BYTES])
def test_damaged_file_is_renamed(tmp_path: Path, offset: int, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "spool"
    with Spool(path, LIMIT_BYTES) as spool:
        spool.append(records(range(100), size=1000))
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * PAGE_BYTES)
    damaged = path.read_bytes()
    with Spool(path, LIMIT_BYTES) as spool:
        spool.append(records([1]))
        assert waiting(spool) == records([1])
    assert path.with_name("spool.damaged").read_bytes() == damaged
    assert "spool is damaged, renaming it to spool.damaged" in caplog.text


def test_unopenable_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="file/spool"):
        Spool(tmp_path / "file" / "spool", LIMIT_BYTES)
    (tmp_path / "spool").mkdir()
    with pytest.raises(SpoolError, match="spool: unable to open"):
        Spool(tmp_path / "spool", LIMIT_BYTES)


steps = st.lists(st.one_of(st.integers(1, 5), st.just("forget"), st.just("reopen")), max_size=30)


@given(steps)
def test_spool_behaves_like_a_queue(tmp_path_factory: pytest.TempPathFactory, steps: list[int | str]) -> None:
    path = tmp_path_factory.mktemp("spools") / "spool"
    spool, model, number = Spool(path, LIMIT_BYTES), list[Record](), 0
    for step in steps:
        if isinstance(step, int):
            new = records(range(number, number + step))
            spool.append(new)
            model += new
            number += step
        elif step == "forget" and model:
            taken = spool.oldest(3)
            spool.forget(taken[-1].number)
            del model[: len(taken)]
        elif step == "reopen":
            spool.close()
            spool = Spool(path, LIMIT_BYTES)
        assert waiting(spool) == model
    spool.close()
