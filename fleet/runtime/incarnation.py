"""The incarnation of a member: a number for each of its lives, greater than all before, whatever the clock.

If the wall clock was set back between two lives, the time alone would give a lower number. Peers that still
have a connection of the former life would then refuse the new life as outdated.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

INCARNATION_FILE: Final = "incarnation"


def next_incarnation(folder: Path, now_ms: int) -> int:
    """Choose the number of this life and write it to disk. Call it under the lock of the data directory.

    A member also starts if the number cannot be read or written, for example on a full disk.
    """
    path = folder / INCARNATION_FILE
    try:
        last = int(path.read_text("ascii"))
    except FileNotFoundError:
        last = 0
    except (OSError, ValueError) as error:
        log.warning("cannot read the last incarnation, using only the clock: path=%s: %s", path, error)
        last = 0
    incarnation = max(last + 1, now_ms)
    temporary = path.with_name(f"{INCARNATION_FILE}.new")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "w", encoding="ascii") as file:
            file.write(str(incarnation))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        log.warning("cannot write the incarnation: path=%s: %s", path, error.strerror or error)
    return incarnation
