"""rskafka, built by cargo (`tools.bootstrap.bring_rskafka`): `src/main.rs` describes the commands."""

from __future__ import annotations

from collections import defaultdict

from tests.clients.program import Program
from tests.integration.clients import count, read_all

RECOMMENDED_BACKOFF = ("--backoff", "20,500,2")
"""The recommendation of docs/clients.md: first and longest back-off in ms, and the growth factor."""


class RsKafka(Program):
    """The running program: its path, its options, `work` and its arguments."""

    def check_order(self, bootstrap: str, topic: str) -> int:
        """Require all acknowledged records in the topic, in order, and the whole topic received, without a
        failure.

        Returns: the number of records that the topic has again.
        """
        acknowledged = self.acknowledged()
        log: dict[int | None, list[int]] = defaultdict(list)
        for each in read_all(bootstrap, topic, count(bootstrap, topic)):
            log[each.partition()].append(int((each.value() or b"").decode().partition("-")[2]))
        for numbers in log.values():
            assert numbers == sorted(numbers)
        values = [f"{partition}-{number}" for partition, numbers in log.items() for number in numbers]
        assert sorted(self.events["received"]) == sorted(values)
        assert set(acknowledged) == set(values)
        return len(values) - len(set(values))
