from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.errors import DemoError
from fleet.drills.workload.history import NO_OFFSET, Event, HistoryReader, HistoryWriter, Record


def test_a_record_is_read_back_from_its_value() -> None:
    record = Record(2**63 - 1, 123_456)
    value = record.encode(200)
    assert len(value) == 200
    assert Record.decode(value) == record
    assert Record.decode(b"17.42") == Record(17, 42)


@pytest.mark.parametrize("value", [None, b"", b"17", b"17.", b"1.2.3", b"x" * 200])
def test_a_foreign_value_is_refused(value: bytes | None) -> None:
    with pytest.raises(DemoError, match="not a record"):
        Record.decode(value)


def test_reader_continues_and_leaves_a_partial_entry(tmp_path: Path) -> None:
    path = tmp_path / "some.history"
    reader = HistoryReader(path)
    assert list(reader.read()) == []
    events = [Event(1.5 * number, number % 12, Record(9, number), number - 1) for number in range(3)]
    assert events[0].offset == NO_OFFSET
    writer = HistoryWriter(path)
    for each in events:
        writer.append(each)
    writer.close()
    whole = path.read_bytes()
    size = len(whole) // 3
    path.write_bytes(whole[: size + 5])
    assert list(reader.read()) == events[:1]
    assert list(reader.read()) == []
    path.write_bytes(whole)
    assert list(reader.read()) == events[1:]
    assert list(HistoryReader(path).read()) == events


def test_a_history_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "some.history"
    for number in range(2):
        writer = HistoryWriter(path)
        writer.append(Event(0.0, 0, Record(1, number), number))
        writer.flush()
        assert len(list(HistoryReader(path).read())) == number + 1
        writer.close()
