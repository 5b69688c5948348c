"""Follows the histories of a workload while the workload runs."""

from __future__ import annotations

from itertools import islice

from fleet.drills.workload.audit import longest_stall_ms
from fleet.drills.workload.clients import Workload
from fleet.drills.workload.history import Event, HistoryReader


class GrowingHistory:
    """One history up to now, and the time of each partition's newest event."""

    def __init__(self, reader: HistoryReader) -> None:
        self._reader = reader
        self.events: list[Event] = []
        self._newest_s: dict[int, float] = {}

    def refresh(self) -> None:
        """Read the new events."""
        known = len(self.events)
        self.events.extend(self._reader.read())
        for event in islice(self.events, known, None):
            self._newest_s[event.partition] = event.at_s

    def flows_since(self, at_s: float, partitions: int) -> bool:
        """Whether every partition has an event after a moment."""
        return sum(1 for newest_s in self._newest_s.values() if newest_s > at_s) == partitions


class Traffic:
    """The acknowledgements and deliveries of a workload up to now."""

    def __init__(self, workload: Workload) -> None:
        self._partitions = workload.spec.partitions
        self.acknowledged = GrowingHistory(workload.acknowledgements())
        self.received = GrowingHistory(workload.deliveries())

    def refresh(self) -> None:
        self.acknowledged.refresh()
        self.received.refresh()

    def flows_since(self, at_s: float) -> bool:
        """Whether every partition has an acknowledgement and a delivery after a moment."""
        self.refresh()
        return all(each.flows_since(at_s, self._partitions) for each in (self.acknowledged, self.received))

    def stalls_ms(self, since_s: float, until_s: float) -> tuple[float, float]:
        """The longest interval of any partition without an acknowledgement, and without a delivery."""
        self.refresh()
        return (
            longest_stall_ms(self.acknowledged.events, self._partitions, since_s, until_s),
            longest_stall_ms(self.received.events, self._partitions, since_s, until_s),
        )
