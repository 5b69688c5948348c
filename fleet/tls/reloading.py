"""What is made of files, and made anew when one of them has changed: certificates are replaced under way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


class Reloading(Generic[T]):
    """Something made of files.

    Args:
        paths: the files; looked at (``stat``) each time.
        make: makes it of them; raises OSError where they cannot be used.
        what: what they are, in the log.
    """

    def __init__(self, paths: Iterable[Path], make: Callable[[], T], what: str) -> None:
        self._paths = tuple(paths)
        self._make = make
        self._what = what
        self._stamp: Stamp | None = None
        self._made: T | None = None

    def get(self) -> T:
        """What the files say now.

        Files that have changed and do not fit each other, as in the middle of a rotation, change nothing:
        what was made of the former ones stays in use, where there is any.

        Raises: OSError: the files cannot be used, and never could
        """
        stamp = self._look()
        if stamp != self._stamp or self._made is None:
            self._stamp = stamp
            try:
                self._made = self._make()
            except OSError as error:
                if self._made is None:
                    raise
                log.warning("the new %s cannot be used, the former stay: %s", self._what, error)
        return self._made

    def _look(self) -> Stamp | None:
        """What changes when a file does; None where one is missing."""
        try:
            found = [path.stat() for path in self._paths]
        except OSError:
            return None
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)
