"""Each test belongs to exactly one size, by its nearest mark or by its folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sizes import ROOT, NoSize, Size, Sizes, size_of


class Config:
    """Records the tests that were reported as left out."""

    def __init__(self) -> None:
        self.left_out: list[Any] = []
        self.hook = SimpleNamespace(pytest_deselected=self._deselected)

    def _deselected(self, items: list[Any]) -> None:
        self.left_out += items


def item(file: str, *sizes: object, parameter: str = "") -> Any:
    """A collected test with the nearest mark that pytest would find, and one of its parameter's own."""
    mark = pytest.mark.size(*sizes).mark if sizes else None
    own = [mark] if mark else []
    return Item(Path(ROOT, file), f"{file}::test_it[1]", [*own, *([mark] if parameter else [])], mark)


class Item:
    """The part of a collected test that determines its size."""

    def __init__(self, path: Path, nodeid: str, own_markers: list[Any], mark: Any) -> None:
        self.path, self.nodeid, self.own_markers, self._mark = path, nodeid, own_markers, mark

    def get_closest_marker(self, _: str) -> Any:
        return self._mark


@pytest.mark.parametrize(
    ("file", "sizes", "size"),
    [
        ("tests/unit/test_a.py", (), Size.TEST),
        ("tests/long/test_a.py", (), Size.TEST_LONG),
        ("tests/unit/test_a.py", ("test-all",), Size.TEST_ALL),
        ("tests/integration/in_process/proxy/test_a.py", (), Size.TEST),
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
        ("tests/integration/test_a.py", ()),
        ("tests/chaos/test_a.py", ("small",)),
        ("tests/unit/test_a.py", ("small",)),
        ("tests/unit/test_a.py", ("test", "test-all")),
        ("tests/new/test_a.py", ()),
    ],
)
def test_test_without_a_size_runs_and_fails(file: str, sizes: tuple[str, ...]) -> None:
    good, bad = item("tests/unit/test_good.py"), item(file, *sizes)
    config, items, sizes_plugin = Config(), [good, bad], Sizes(Size.TEST)
    sizes_plugin.pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
    assert items == [good, bad]
    sizes_plugin.pytest_runtest_setup(good)
    with pytest.raises(pytest.fail.Exception) as caught:
        sizes_plugin.pytest_runtest_setup(bad)
    assert str(caught.value) == (
        f'{file}::test_it: needs @pytest.mark.size(SIZE) with one of "test", "test-all", "test-long"'
    )


def test_test_and_its_parameter_with_a_size_each_are_refused() -> None:
    """pytest would use the mark of the test and ignore the parameter's mark."""
    with pytest.raises(NoSize, match="two marks of a size"):
        size_of(item("tests/chaos/test_a.py", "test-all", parameter="test-long"))


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
