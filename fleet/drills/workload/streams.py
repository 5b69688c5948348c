"""Producers and consumers that run beside a drill, and what they have seen."""

from __future__ import annotations

from itertools import islice

from fleet.drills.workload.audit import longest_stall_ms
from fleet.drills.workload.clients import Workload
from fleet.drills.workload.history import Event, HistoryReader


class Stream:
    """One history as far as it is written, and when each partition was last heard of."""

    def __init__(self, reader: HistoryReader) -> None:
        self._reader = reader
        self.events: list[Event] = []
        self._newest_s: dict[int, float] = {}

    def refresh(self) -> None:
        """Take in what is new."""
        known = len(self.events)
        self.events.extend(self._reader.read())
        for event in islice(self.events, known, None):
            self._newest_s[event.partition] = event.at_s

    def flows_since(self, at_s: float, partitions: int) -> bool:
        """Whether something came on every partition after a moment."""
        return sum(1 for newest_s in self._newest_s.values() if newest_s > at_s) == partitions


class Traffic:
    """What the producer and the consumer of a workload have seen so far."""

    def __init__(self, workload: Workload) -> None:
        self._partitions = workload.spec.partitions
        self.acknowledged = Stream(workload.acknowledgements())
        self.received = Stream(workload.deliveries())

    def refresh(self) -> None:
        self.acknowledged.refresh()
        self.received.refresh()

    def flows_since(self, at_s: float) -> bool:
        """Whether every partition was acknowledged and received something after a moment."""
        self.refresh()
        return all(each.flows_since(at_s, self._partitions) for each in (self.acknowledged, self.received))

    def stalls_ms(self, since_s: float, until_s: float) -> tuple[float, float]:
        """Longest interval of any partition without an acknowledgement, and without a record."""
        self.refresh()
        return (
            longest_stall_ms(self.acknowledged.events, self._partitions, since_s, until_s),
            longest_stall_ms(self.received.events, self._partitions, since_s, until_s),
        )
