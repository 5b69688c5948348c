"""How many events a member has sent, for its metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventsView:
    """Counters of the events of one member.

    Args:
        sent: records that Kafka has acknowledged since the start.
        waiting: records on the disk.
        dropped: records that were dropped because memory or the spool was full.
        trouble: why records cannot be stored or sent; empty if they can.
    """

    sent: int = 0
    waiting: int = 0
    dropped: int = 0
    trouble: str = ""
