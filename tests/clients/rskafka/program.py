"""rskafka, built by cargo (`tools.bootstrap.bring_rskafka`): `src/main.rs` says what it can do."""

from __future__ import annotations

import itertools
from collections import defaultdict

from tests.clients.node_program import PARTITIONS, Program
from tests.integration.clients import count, read_all

RECOMMENDED = ("--backoff", "20,500,2")
"""What docs/clients.md recommends: the first back-off and the longest one, in ms, and what it grows by."""


class RsKafka(Program):
    """`Program`: the program's path, its options, `work` and its arguments."""

    def judge_log(self, bootstrap: str, topic: str) -> int:
        """Nothing has failed. The log has what was acknowledged, in order, and all of it was received.

        Returns: how many records the log has a second time.
        """
        said = self.said
        assert (said["closed"], said["failed"], said["skipped"]) == ([""], [], []), said["log"][-50:]
        log: dict[int | None, list[int]] = defaultdict(list)
        for each in read_all(bootstrap, topic, count(bootstrap, topic)):
            log[each.partition()].append(int((each.value() or b"").decode().partition("-")[2]))
        for numbers in log.values():
            assert numbers == sorted(numbers)
        values = [f"{partition}-{number}" for partition, numbers in log.items() for number in numbers]
        assert sorted(said["received"]) == sorted(values)
        assert set(said["acknowledged"]) == set(values)
        return len(values) - len(set(values))

    def longest_pause_s(self, what: str, since_s: float, until_s: float) -> float:
        """The longest time in which a partition was not "acknowledged", or not "received"."""
        seen: dict[int, list[float]] = {partition: [since_s] for partition in range(PARTITIONS)}
        for at_s, value in list(zip(self.moments_s[what], self.said[what], strict=False)):
            if since_s < at_s < until_s:
                seen[int(value.partition("-")[0])].append(at_s)
        return max(
            after - before
            for moments in seen.values()
            for before, after in itertools.pairwise([*moments, until_s])
        )
