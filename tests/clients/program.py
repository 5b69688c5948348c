"""Test programs around client libraries: a command line that prints one event in each line, "WHAT\\tVALUE".

A program is in Go, JavaScript, Python or Rust. The tests start it, wait for its lines and check its records.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self, TypeAlias

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.chaos.harness import becomes
from tests.integration.clients import LIMIT_S, read_all

FLOW_RECORDS = 300
"""Enough for each partition of twelve to get a share."""
PARTITIONS = 12
CLOSE_LIMIT_S = 3 * LIMIT_S
"""A program first settles its records. Some readers then wait for the end of their last Fetch, 10 s."""
Output: TypeAlias = dict[str, list[str]]
"""The values that a program has printed, by the event that each value belongs to."""
Command: TypeAlias = Sequence[str | Path]


def _event(line: str) -> tuple[str, str]:
    event, _, value = line.rstrip("\n").partition("\t")
    return event, value


def run(command: Command) -> Output:
    """Run a program that ends by itself, and require its success.

    Returns: the program's output, without its log.
    """
    process = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    events: Output = defaultdict(list)
    for event, value in map(_event, process.stdout.splitlines()):
        events[event].append(value)
    events.pop("log", None)
    assert (process.returncode, events.pop("closed", []), events.get("failed", [])) == (0, [""], []), process
    return events


class Program:
    """A running program, which the end of the context kills. Each record's value begins with its partition.

    with Program([KAFKA_GO, "work", bootstrap, topic, group]) as program:
        program.await_flow()
        …
        assert program.close() == 0
    program.check_records(kafka.bootstrap_servers, topic, group)
    """

    def __init__(self, command: Command) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.events: Output = defaultdict(list)
        self.moments_s: dict[str, list[float]] = defaultdict(list)
        """When each line of `events` was read, on the monotonic clock."""
        self._reader = threading.Thread(target=self._read, name="program")
        self._reader.start()

    def await_flow(self, limit_s: float = LIMIT_S) -> None:
        """Wait until the program reports `FLOW_RECORDS` more acknowledged and received records."""
        needed_counts = {
            event: len(self.events[event]) + FLOW_RECORDS for event in ("acknowledged", "received")
        }

        def has_flow() -> bool:
            assert self._process.poll() is None, self.events
            return all(
                len(self.events[event]) >= needed_count for event, needed_count in needed_counts.items()
            )

        assert becomes(has_flow, limit_s), f"records: not within {limit_s:g} s, but {self.summary()}"

    def await_partitions(self, limit_s: float = LIMIT_S) -> None:
        """Wait until each partition has a new acknowledged record and a new received record."""
        since_s = time.monotonic()

        def has_flow() -> bool:
            assert self._process.poll() is None, self.events
            return all(
                len({partition for at_s, partition in self._partition_times(event) if at_s > since_s})
                == PARTITIONS
                for event in ("acknowledged", "received")
            )

        assert becomes(has_flow, limit_s), (
            f"records of each partition: not within {limit_s:g} s, but {self.summary()}"
        )

    def summary(self) -> str:
        """The number of lines of each event, and the latest lines of the log."""
        counts = {event: len(values) for event, values in list(self.events.items())}
        return f"{counts}, log: {self.events['log'][-20:]}"

    def longest_pause_s(self, event: str, since_s: float, until_s: float) -> float:
        """The longest interval in which no record of some partition was "acknowledged", or "received".

        Args: since_s, until_s: the window. A pause that lasts beyond its end counts up to the end.
        """
        latest_s = dict.fromkeys(range(PARTITIONS), since_s)
        longest_s = 0.0
        for at_s, partition in self._partition_times(event):
            if since_s < at_s <= until_s:
                longest_s = max(longest_s, at_s - latest_s[partition])
                latest_s[partition] = at_s
        return max(longest_s, *(until_s - at_s for at_s in latest_s.values()))

    def longest_wait_s(self, event: str, since_s: float, until_s: float) -> float:
        """The longest interval of a window in which the program printed no line of an event."""
        within_window = [each for each in list(self.moments_s[event]) if since_s < each <= until_s]
        return max(after - before for before, after in pairwise([since_s, *within_window, until_s]))

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> int:
        """Ask the program to end in order, and wait. Returns: the exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(limit_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def check_records(self, bootstrap: str, topic: str, group: str) -> None:
        """Require each acknowledged record in the topic once, received once and committed, and no failure."""
        acknowledged = self.check_log(bootstrap, topic)
        assert sorted(self.events["received"]) == acknowledged
        check_group_committed(bootstrap, group, topic)

    def check_log(self, bootstrap: str, topic: str) -> list[str]:
        """Require each acknowledged record in the topic once, received at least once, and no failure.

        Returns: the acknowledged records, sorted.
        """
        acknowledged = self.acknowledged()
        assert sorted(_values(bootstrap, topic, len(acknowledged))) == acknowledged
        assert set(self.events["received"]) == set(acknowledged)
        return acknowledged

    def check_loss(self, bootstrap: str, topic: str) -> int:
        """Require each acknowledged record in the topic and received, at least once, and no failure.

        Returns: the number of records that the topic has again.
        """
        acknowledged, received = set(self.acknowledged()), set(self.events["received"])
        log = _values(bootstrap, topic, sum(end_offsets(bootstrap, topic).values()))
        assert acknowledged - set(log) == set(), "acknowledged, and not in the log"
        assert acknowledged - received == set(), "acknowledged, and not received"
        assert received - set(log) == set(), "received, and not in the log"
        return len(log) - len(set(log))

    def acknowledged(self) -> list[str]:
        """The acknowledged records, sorted, of a program that has closed without a failure."""
        events = self.events
        assert (events["closed"], events["failed"], events["skipped"]) == ([""], [], []), events["log"][-50:]
        return sorted(events["acknowledged"])

    def _partition_times(self, event: str) -> list[tuple[float, int]]:
        values = list(self.events[event])
        return [
            (at_s, int(value.partition("-")[0]))
            for at_s, value in zip(self.moments_s[event], values, strict=False)
        ]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for event, value in map(_event, self._process.stdout):
            self.moments_s[event].append(time.monotonic())
            self.events[event].append(value)


def _values(bootstrap: str, topic: str, expected: int) -> list[str]:
    return [(each.value() or b"").decode() for each in read_all(bootstrap, topic, expected)]


def check_group_committed(bootstrap: str, group: str, topic: str) -> None:
    """Require that a group has committed a topic to the end of each partition."""
    assert committed(bootstrap, group, topic) == end_offsets(bootstrap, topic)


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """The committed offset of a group in each partition, without partitions at offset 0."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    group_request = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([group_request])[group].result(LIMIT_S).topic_partitions or []
    return _nonzero_offsets((each.partition, each.offset) for each in found if each.topic == topic)


def end_offsets(bootstrap: str, topic: str) -> dict[int, int]:
    """The end offset of each partition of a topic, without empty partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"unused-{topic}"})
    try:
        return _nonzero_offsets(
            (partition, consumer.get_watermark_offsets(TopicPartition(topic, partition), LIMIT_S)[1])
            for partition in range(PARTITIONS)
        )
    finally:
        consumer.close()


def _nonzero_offsets(offsets: Iterable[tuple[int, int]]) -> dict[int, int]:
    return {partition: offset for partition, offset in offsets if offset > 0}
