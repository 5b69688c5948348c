"""A client library in Go, by the test program around it: `tests/clients/*/main.go` say what each can do."""

from __future__ import annotations

import itertools
import signal
import subprocess
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Self, TypeAlias

from confluent_kafka import Consumer, TopicPartition

from tests.certificates import Pair
from tests.integration.clients import LIMIT_S, count, read_all, wait_for

FLOWS = 300
"""Records that come back, of which each partition of twelve gets its part."""
PARTITIONS = 12
Said: TypeAlias = dict[str, list[str]]
"""What the program has printed, by what it is about."""


def _parsed(line: str) -> tuple[str, str]:
    what, _, value = line.rstrip("\n").partition("\t")
    return what, value


def tls(authority: Path, own: Pair) -> list[str]:
    """The options for a listener with TLS that wants a certificate."""
    return ["-ca", str(authority), "-certificate", str(own.certificate), "-key", str(own.key)]


def run(program: Path, *arguments: str) -> Said:
    """Have a program do something to its end, which must go well."""
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=2 * LIMIT_S, check=False
    )
    said: Said = defaultdict(list)
    for line in done.stdout.splitlines():
        what, value = _parsed(line)
        said[what].append(value)
    assert (done.returncode, said.pop("closed", []), said.get("failed", [])) == (0, [""], []), done
    return said


class GoProgram:
    """A program at work, killed at the end of the context: options, `work` and its arguments.

    with GoProgram(KAFKA_GO, "work", bootstrap, topic, group) as client:
        client.await_flow()
        …
        assert client.close() == 0
    client.judge(kafka.bootstrap_servers, topic)
    """

    def __init__(self, program: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said: Said = defaultdict(list)
        self._at_s: dict[str, list[float]] = defaultdict(list)
        self._reading = threading.Thread(target=self._read, name=program.name)
        self._reading.start()

    def await_flow(self) -> None:
        """Wait until so many more records were acknowledged, and received."""
        wanted = {what: len(self.said[what]) + FLOWS for what in ("acknowledged", "received")}
        wait_for(lambda: all(len(self.said[what]) >= n for what, n in wanted.items()), "records")

    def await_partitions(self) -> None:
        """Wait until a record of each partition was acknowledged, and received, from now on."""
        since_s = time.monotonic()

        def flows() -> bool:
            return all(
                len({partition for at_s, partition in self._seen(what) if at_s > since_s}) == PARTITIONS
                for what in ("acknowledged", "received")
            )

        wait_for(flows, "records of each partition")

    def longest_pause_s(self, what: str, since_s: float, until_s: float) -> float:
        """The longest time in which a partition was not "acknowledged", or not "received".

        Args: since_s, until_s: the window. A pause that lasts beyond its end counts up to there.
        """
        latest_s = dict.fromkeys(range(PARTITIONS), since_s)
        longest_s = 0.0
        for at_s, partition in self._seen(what):
            if since_s < at_s <= until_s:
                longest_s = max(longest_s, at_s - latest_s[partition])
                latest_s[partition] = at_s
        return max(longest_s, *(until_s - at_s for at_s in latest_s.values()))

    def longest_wait_s(self, what: str, since_s: float, until_s: float) -> float:
        """The longest time in a window in which the program did not print a line about something."""
        moments = [since_s, *(at_s for at_s in list(self._at_s[what]) if since_s < at_s <= until_s), until_s]
        return max(after - before for before, after in itertools.pairwise(moments))

    def close(self) -> int:
        """Have it end in order. Returns: its exit code.

        Raises: TimeoutExpired: it does not end. It has printed where it stands, on standard error.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(LIMIT_S)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()

    def judge(self, bootstrap: str, topic: str) -> None:
        """Nothing has failed, and what was acknowledged is in the topic and was received, once each."""
        acknowledged = self._acknowledged()
        log = read_all(bootstrap, topic, len(acknowledged))
        assert sorted((each.value() or b"").decode() for each in log) == acknowledged
        assert sorted(self.said["received"]) == acknowledged

    def judge_log(self, bootstrap: str, topic: str) -> None:
        """Nothing has failed. What was acknowledged is in the topic once, and was received at least once."""
        acknowledged = self._acknowledged()
        log = read_all(bootstrap, topic, len(acknowledged))
        assert sorted((each.value() or b"").decode() for each in log) == acknowledged
        assert set(self.said["received"]) == set(acknowledged)

    def judge_loss(self, bootstrap: str, topic: str) -> int:
        """Nothing has failed. What was acknowledged is in the topic, and was received, at least once.

        Returns: how many records are in the topic a second time.
        """
        acknowledged = set(self._acknowledged())
        log = [(each.value() or b"").decode() for each in read_all(bootstrap, topic, count(bootstrap, topic))]
        assert acknowledged - set(log) == set(), "acknowledged, and not in the log"
        assert acknowledged - set(self.said["received"]) == set(), "acknowledged, and not received"
        assert set(self.said["received"]) - set(log) == set(), "received, and not in the log"
        return len(log) - len(set(log))

    def _acknowledged(self) -> list[str]:
        assert (self.said["closed"], self.said["failed"]) == ([""], [])
        return sorted(self.said["acknowledged"])

    def _seen(self, what: str) -> list[tuple[float, int]]:
        """When records were seen, and their partitions, which their values begin with."""
        values = list(self.said[what])
        return [
            (at_s, int(value.partition("-")[0]))
            for at_s, value in zip(self._at_s[what], values, strict=False)
        ]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, value = _parsed(line)
            self._at_s[what].append(time.monotonic())
            self.said[what].append(value)


def committed(bootstrap: str, group: str, topic: str) -> int:
    """How many records a group has committed, of a topic that nothing was ever removed from."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        return sum(max(0, each.offset) for each in consumer.committed(places, LIMIT_S))
    finally:
        consumer.close()
