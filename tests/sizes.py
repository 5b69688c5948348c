"""The size of a test is the smallest command that runs it: `make test`, `make test-all` or `make test-long`.

    pytestmark = pytest.mark.size("test-all")           for a module
    @pytest.mark.size("test")                           for one test

A folder of `SIZE_OF_FOLDER` needs no mark. `pytest --size=test` runs the tests of that size,
`--size=test-all` the tests of that size and the smaller ones, `--size=test-long` the largest alone.
Without the option pytest runs what `--size=test-all` runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
MARK: Final = "size"


class Size(StrEnum):
    TEST = "test"
    TEST_ALL = "test-all"
    TEST_LONG = "test-long"


SIZE_OF_FOLDER: Final[Mapping[str, Size]] = MappingProxyType(
    {
        "tests/benchmarks": Size.TEST,
        "tests/drills": Size.TEST,
        "tests/integration/in_process": Size.TEST,
        "tests/tools": Size.TEST,
        "tests/unit": Size.TEST,
        "tests/property": Size.TEST,
        "tests/fuzz": Size.TEST_ALL,
        "tests/compiled": Size.TEST_ALL,
        "tests/long": Size.TEST_LONG,
    }
)
SIZES_OF_COMMAND: Final[Mapping[Size, frozenset[Size]]] = MappingProxyType(
    {
        Size.TEST: frozenset({Size.TEST}),
        Size.TEST_ALL: frozenset({Size.TEST, Size.TEST_ALL}),
        Size.TEST_LONG: frozenset({Size.TEST_LONG}),
    }
)
"""The sizes that each command runs."""


class NoSize(ValueError):
    """A test belongs to no size."""


def file_of(item: pytest.Item) -> str:
    """The file of a test, as a path from the root of the project."""
    return item.path.resolve().relative_to(ROOT).as_posix()


def folder_with_a_size(file: str) -> str | None:
    """The innermost folder of `SIZE_OF_FOLDER` that contains a file."""
    return next((each for each in map(str, PurePosixPath(file).parents) if each in SIZE_OF_FOLDER), None)


def size_of(item: pytest.Item) -> Size:
    """The size of the nearest mark, else of the folder. Raises: NoSize: the test has none."""
    name = item.nodeid.partition("[")[0]
    if len([mark for mark in item.own_markers if mark.name == MARK]) > 1:
        raise NoSize(f"{name}: has two marks of a size: on the test and on one of its parameters")
    mark, folder = item.get_closest_marker(MARK), folder_with_a_size(file_of(item))
    if mark is not None and len(mark.args) == 1 and mark.args[0] in list(Size):
        return Size(mark.args[0])
    if mark is None and folder is not None:
        return SIZE_OF_FOLDER[folder]
    sizes = ", ".join(f'"{each}"' for each in Size)
    raise NoSize(f"{name}: needs @pytest.mark.{MARK}(SIZE) with one of {sizes}")


class Sizes:
    """Makes pytest run the tests of one size. A test without a size is run, and fails."""

    def __init__(self, size: Size) -> None:
        self._included = SIZES_OF_COMMAND[size]
        self._errors: dict[pytest.Item, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        selected: list[pytest.Item] = []
        deselected: list[pytest.Item] = []
        for item in items:
            try:
                is_kept = size_of(item) in self._included
            except NoSize as error:
                self._errors[item], is_kept = str(error), True
            (selected if is_kept else deselected).append(item)
        items[:] = selected
        if deselected:
            config.hook.pytest_deselected(items=deselected)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item in self._errors:
            pytest.fail(self._errors[item], pytrace=False)
