"""The current time on the clocks of this machine."""

from __future__ import annotations

import time

from fleet.core.takeover import Moment


def moment() -> Moment:
    """The current instant on the wall clock and the monotonic clock."""
    return Moment(time.time_ns() // 1_000_000, time.monotonic())
