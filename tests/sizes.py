"""The size of a test is the smallest command that runs it: `make test`, `make test-all` or `make test-long`.

    pytestmark = pytest.mark.size("test-all")           for a module
    @pytest.mark.size("test")                           for one test

A folder of `SIZE_OF_FOLDER` needs no mark. `pytest --size=test` runs the tests of that size,
`--size=test-all` the tests of that size and the smaller ones, `--size=test-long` the largest alone.
Without the option pytest runs what `--size=test-all` runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
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
        "tests/unit": Size.TEST,
        "tests/property": Size.TEST,
        "tests/fuzz": Size.TEST_ALL,
        "tests/compiled": Size.TEST_ALL,
        "tests/long": Size.TEST_LONG,
    }
)
INCLUDED: Final[Mapping[Size, frozenset[Size]]] = MappingProxyType(
    {
        Size.TEST: frozenset({Size.TEST}),
        Size.TEST_ALL: frozenset({Size.TEST, Size.TEST_ALL}),
        Size.TEST_LONG: frozenset({Size.TEST_LONG}),
    }
)
"""Which sizes a command runs."""


class NoSize(ValueError):
    """A test belongs to no size."""


def file_of(item: pytest.Item) -> str:
    """The file of a test, as a path from the root of the project."""
    return item.path.relative_to(ROOT).as_posix()


def size_of(item: pytest.Item) -> Size:
    """The size that the nearest mark names, else that of the folder. Raises: NoSize"""
    mark, file = item.get_closest_marker(MARK), file_of(item)
    folder = "/".join(file.split("/")[:2])
    if mark is not None and len(mark.args) == 1 and mark.args[0] in list(Size):
        return Size(mark.args[0])
    if mark is None and folder in SIZE_OF_FOLDER:
        return SIZE_OF_FOLDER[folder]
    sizes = ", ".join(f'"{each}"' for each in Size)
    raise NoSize(f"{item.nodeid.partition('[')[0]}: needs @pytest.mark.{MARK}(SIZE) with one of {sizes}")


def sizes_of(items: Iterable[pytest.Item]) -> list[Size]:
    """The size of each test. Raises: pytest.UsageError: it names every test that has none"""
    found, errors = [], []
    for item in items:
        try:
            found.append(size_of(item))
        except NoSize as error:
            errors.append(str(error))
    if errors:
        raise pytest.UsageError("\n".join(dict.fromkeys(errors)))
    return found


class Sizes:
    """Has pytest run the tests of one size, and refuse tests that belong to none."""

    def __init__(self, size: Size) -> None:
        self._included = INCLUDED[size]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        sizes = sizes_of(items)
        left_out = [item for item, size in zip(items, sizes, strict=True) if size not in self._included]
        items[:] = [item for item, size in zip(items, sizes, strict=True) if size in self._included]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
