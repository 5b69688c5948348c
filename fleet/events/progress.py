"""How far the events of a member have come, for its metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventsView:
    """How a member gets on with sending its events.

    Args:
        sent: records that Kafka has acknowledged since the start.
        waiting: records on the disk.
        dropped: records that were given up for want of room.
        trouble: what keeps records from being stored, or sent; empty where nothing does.
    """

    sent: int = 0
    waiting: int = 0
    dropped: int = 0
    trouble: str = ""
