"""The present moment, by the clocks of this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fleet.core.takeover import Moment

if TYPE_CHECKING:
    pass


def moment() -> Moment:
    """This instant on both clocks."""
    return Moment(time.time_ns() // 1_000_000, time.monotonic())
