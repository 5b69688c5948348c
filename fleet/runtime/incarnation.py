"""The number of a member's life: greater than that of any life before, whatever the clock says.

Where the wall clock was set back between two lives, the time alone would give a lesser number: peers that
still hold a connection of the former life would refuse the new one as an old one.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

FILE: Final = "incarnation"


def next_incarnation(folder: Path, now_ms: int) -> int:
    """Number this life, and note it. Call it under the lock of the data directory.

    A number that cannot be read, or noted (the disk is full), is no reason not to start.
    """
    path = folder / FILE
    try:
        last = int(path.read_text("ascii"))
    except FileNotFoundError:
        last = 0
    except (OSError, ValueError) as error:
        log.warning("%s: cannot be read (%s): the clock alone numbers this life", path, error)
        last = 0
    incarnation = max(last + 1, now_ms)
    beside = path.with_name(f"{FILE}.new")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(beside, flags, 0o600), "w", encoding="ascii") as file:
            file.write(str(incarnation))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        log.warning("%s: cannot be written (%s)", path, error.strerror or error)
    return incarnation
