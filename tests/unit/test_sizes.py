"""Each test belongs to exactly one size, by its nearest mark or by its folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sizes import ROOT, Size, Sizes, size_of


class Config:
    """Keeps the tests that pytest is told are left out."""

    def __init__(self) -> None:
        self.left_out: list[Any] = []
        self.hook = SimpleNamespace(pytest_deselected=self._deselected)

    def _deselected(self, items: list[Any]) -> None:
        self.left_out += items


def item(file: str, *sizes: object) -> Any:
    """A collected test with the nearest mark that pytest would find."""
    mark = pytest.mark.size(*sizes).mark if sizes else None
    nodeid = f"{file}::test_it[1]"
    return SimpleNamespace(path=Path(ROOT, file), nodeid=nodeid, get_closest_marker=lambda _: mark)


@pytest.mark.parametrize(
    ("file", "sizes", "size"),
    [
        ("tests/unit/test_a.py", (), Size.TEST),
        ("tests/long/test_a.py", (), Size.TEST_LONG),
        ("tests/unit/test_a.py", ("test-all",), Size.TEST_ALL),
        ("tests/chaos/test_a.py", ("test",), Size.TEST),
        ("tests/chaos/test_a.py", ("test-long",), Size.TEST_LONG),
    ],
)
def test_size_is_the_marks_else_the_folders(file: str, sizes: tuple[str, ...], size: Size) -> None:
    assert size_of(item(file, *sizes)) is size


@pytest.mark.parametrize(
    ("file", "sizes"),
    [
        ("tests/chaos/test_a.py", ()),
        ("tests/chaos/test_a.py", ("small",)),
        ("tests/unit/test_a.py", ("small",)),
        ("tests/unit/test_a.py", ("test", "test-all")),
        ("tests/new/test_a.py", ()),
    ],
)
def test_collection_names_each_test_without_a_size(file: str, sizes: tuple[str, ...]) -> None:
    found = [item("tests/unit/test_good.py"), item(file, *sizes), item(file, *sizes)]
    with pytest.raises(pytest.UsageError) as caught:
        Sizes(Size.TEST).pytest_collection_modifyitems(Config(), found)  # type: ignore[arg-type]
    assert str(caught.value) == (
        f'{file}::test_it: needs @pytest.mark.size(SIZE) with one of "test", "test-all", "test-long"'
    )


@pytest.mark.parametrize(
    ("size", "kept"),
    [(Size.TEST, "test"), (Size.TEST_ALL, "test test-all"), (Size.TEST_LONG, "test-long")],
)
def test_collection_keeps_the_tests_of_a_size(size: Size, kept: str) -> None:
    found = [item("tests/chaos/test_a.py", each) for each in ("test", "test-all", "test-long")]
    config, items = Config(), list(found)
    Sizes(size).pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
    assert [size_of(each) for each in items] == kept.split()
    assert items + config.left_out == sorted(found, key=lambda each: (each not in items, found.index(each)))
