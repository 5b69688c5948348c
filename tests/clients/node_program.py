"""The programs around Node libraries, in the folders next to this file, and others that print the same lines.

`node/program.js` says how they are called, and what they print.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Self, TypeAlias

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.clients import LIMIT_S, read_all, wait_for
from tools.bootstrap import bring_node_client

FLOWS = 300
"""Records that come back, of which each partition of twelve gets its part."""
PARTITIONS = 12
Said: TypeAlias = dict[str, list[str]]
"""What the program has printed, by what it is about."""

brought = cache(bring_node_client)


def _note(said: Said, line: str) -> None:
    what, _, value = line.partition("\t")
    said[what].append(value)


def run(folder: str, *arguments: str, settings: Path | None = None) -> Said:
    """`run_command` with the program of a folder."""
    return run_command(_command(folder, arguments, settings))


def run_command(command: Sequence[str]) -> Said:
    """Have a program do something to its end, which must go well.

    Returns: what it has said, but for its log.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    said: Said = defaultdict(list)
    for line in done.stdout.splitlines():
        _note(said, line)
    said.pop("log", None)
    assert (done.returncode, said.pop("closed", []), said.get("failed", [])) == (0, [""], []), done
    return said


def _command(folder: str, arguments: tuple[str, ...], settings: Path | None) -> list[str]:
    options = () if settings is None else ("--settings", str(settings))
    return ["node", str(brought(folder)), *options, *arguments]


class Program:
    """A program at work, killed at the end of the context."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said: Said = defaultdict(list)
        self.moments_s: dict[str, list[float]] = defaultdict(list)
        """When each line of `said` came, on the monotonic clock."""
        self._reading = threading.Thread(target=self._read, name="program")
        self._reading.start()

    def await_flow(self, limit_s: float = LIMIT_S) -> None:
        """Wait until `FLOWS` more records were acknowledged, and as many received."""
        wanted = {what: len(self.said[what]) + FLOWS for what in ("acknowledged", "received")}

        def flows() -> bool:
            assert self._process.poll() is None, self.said
            return all(len(self.said[what]) >= n for what, n in wanted.items())

        wait_for(flows, "records", limit_s)

    def close(self, limit_s: float = LIMIT_S) -> int:
        """Have it end in order. Returns: its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(limit_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()

    def judge(self, bootstrap: str, topic: str, group: str) -> None:
        """Nothing has failed. What was acknowledged is in the topic once, was received and is committed."""
        said = self.said
        assert (said["closed"], said["failed"], said["skipped"]) == ([""], [], []), said["log"][-50:]
        acknowledged = sorted(said["acknowledged"])
        log = read_all(bootstrap, topic, len(acknowledged))
        assert sorted((each.value() or b"").decode() for each in log) == acknowledged
        assert sorted(said["received"]) == acknowledged
        assert committed(bootstrap, group, topic) == ends(bootstrap, topic)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.moments_s[line.partition("\t")[0]].append(time.monotonic())
            _note(self.said, line.rstrip("\n"))


class NodeProgram(Program):
    """`Program` of a folder: `work` and its arguments."""

    def __init__(self, folder: str, *arguments: str, settings: Path | None = None) -> None:
        super().__init__(_command(folder, arguments, settings))


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """Where a group has come to in each partition that it has read something of."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(LIMIT_S).topic_partitions or []
    return {each.partition: each.offset for each in found if each.topic == topic and each.offset > 0}


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    """Where each partition ends that has something."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"unused-{topic}"})
    try:
        marks = {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), LIMIT_S)[1]
            for partition in range(PARTITIONS)
        }
    finally:
        consumer.close()
    return {partition: end for partition, end in marks.items() if end > 0}
