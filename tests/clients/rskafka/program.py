"""rskafka, built by cargo (`tools.bootstrap.bring_rskafka`): `src/main.rs` says what it can do."""

from __future__ import annotations

from collections import defaultdict

from tests.clients.program import Program
from tests.integration.clients import count, read_all

RECOMMENDED = ("--backoff", "20,500,2")
"""What docs/clients.md recommends: the first back-off and the longest one, in ms, and what it grows by."""


class RsKafka(Program):
    """The running program: its path, its options, `work` and its arguments."""

    def judge_order(self, bootstrap: str, topic: str) -> int:
        """Require the acknowledged records in the topic, in order, and all of the topic received; no failure.

        Returns: the number of records that the topic has again.
        """
        acknowledged = self.acknowledged()
        log: dict[int | None, list[int]] = defaultdict(list)
        for each in read_all(bootstrap, topic, count(bootstrap, topic)):
            log[each.partition()].append(int((each.value() or b"").decode().partition("-")[2]))
        for numbers in log.values():
            assert numbers == sorted(numbers)
        values = [f"{partition}-{number}" for partition, numbers in log.items() for number in numbers]
        assert sorted(self.said["received"]) == sorted(values)
        assert set(acknowledged) == set(values)
        return len(values) - len(set(values))
