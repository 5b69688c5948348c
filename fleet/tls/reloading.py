"""Values that are loaded from files and reloaded when a file changes, so that certificates can rotate."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


class Reloading(Generic[T]):
    """A value loaded from files.

    Args:
        paths: the files; each ``get`` calls ``stat`` on them.
        load: builds the value from the files; raises OSError if the files cannot be used.
        label: the name of the value in the log.
    """

    def __init__(self, paths: Iterable[Path], load: Callable[[], T], label: str) -> None:
        self._paths = tuple(paths)
        self._load = load
        self._label = label
        self._stamp: Stamp | None = None
        self._value: T | None = None

    def get(self) -> T:
        """The value from the current files.

        If the new files cannot be used, or do not match in the middle of a rotation, the previous value stays
        in use.

        Raises: OSError: the files could never be loaded
        """
        stamp = self._read_stamp()
        if stamp != self._stamp or self._value is None:
            self._stamp = stamp
            try:
                self._value = self._load()
            except OSError as error:
                if self._value is None:
                    raise
                log.warning("cannot load the new %s, keeping the previous one: %s", self._label, error)
        return self._value

    def _read_stamp(self) -> Stamp | None:
        """Times, inodes and sizes of the files, which change with their content; None if one is missing."""
        try:
            found = [path.stat() for path in self._paths]
        except OSError:
            return None
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)
