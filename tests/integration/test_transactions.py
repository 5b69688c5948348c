"""Transactions of version 2 (KIP-890), for which Produce must not be capped below version 12."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.drills.cluster.fleet import LocalFleet
from tests.clients.franz.program import run
from tests.integration.clients import read_all, wait_for
from tests.integration.conftest import Tool

pytestmark = pytest.mark.size("test-all")

PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
RECORDS = 1_000
FRANZ_GO_TRANSACTIONS = 9
"""Transactions with a record in each of twelve partitions. Five are committed, including the last one."""


@pytest.mark.proves("Java", "transactions")
def test_a_producer_of_version_2_commits_through_the_fleet(
    fleet: LocalFleet, kafka_tool: Tool, make_topic: Callable[..., str]
) -> None:
    """With version 2 each transaction ends an epoch of its producer; before, the epoch stayed."""
    topic = make_topic()
    bootstrap, transactional_id = ("--bootstrap-server", fleet.bootstrap()), f"id-{topic}"
    kafka_tool(
        PRODUCER,
        *(*bootstrap, "--topic", topic, "--transactional-id", transactional_id),
        *("--num-records", str(RECORDS), "--record-size", "100", "--throughput", "500"),
        *("--transaction-duration-ms", "200"),
    )
    state: dict[str, str] = {}

    def is_complete() -> bool:
        """The producer ends before the markers of its last transaction are written."""
        described = kafka_tool(TRANSACTIONS, *bootstrap, "describe", "--transactional-id", transactional_id)
        names, values = (line.split("\t") for line in described.splitlines() if "\t" in line)
        state.update((name.strip(), value.strip()) for name, value in zip(names, values, strict=False))
        return state["TransactionState"] == "CompleteCommit"

    wait_for(is_complete, "the last transaction is complete")
    assert state["TransactionalId"] == transactional_id
    assert int(state["ProducerEpoch"]) >= 3
    committed = {"isolation.level": "read_committed"}
    assert len(read_all(fleet.bootstrap(), topic, RECORDS, config=committed)) == RECORDS


@pytest.mark.size("test")
@pytest.mark.proves("franz-go", "transactions")
def test_franz_go_commits_aborts_is_fenced_and_carries(
    fleet: LocalFleet, make_topic: Callable[..., str]
) -> None:
    """The last records of each partition are committed: a reader of these has received all before them."""
    source, target = make_topic(), make_topic()

    def values(topic: str, isolation: str, expected: int) -> list[str]:
        read = read_all(fleet.bootstrap(), topic, expected, config={"isolation.level": isolation})
        return sorted((each.value() or b"").decode() for each in read)

    events = run("transact", fleet.bootstrap(), source, source, str(FRANZ_GO_TRANSACTIONS))
    committed, aborted = sorted(events["committed"]), events["aborted"]
    assert (len(committed), len(aborted)) == (5 * 12, 4 * 12)
    assert events["epoch"] == [str(FRANZ_GO_TRANSACTIONS)], (
        "version 2: each transaction, committed or not, ends one"
    )
    assert events["fenced"] == ["47"]  # INVALID_PRODUCER_EPOCH. Source: Errors.java
    assert values(source, "read_committed", len(committed)) == committed
    all_values = sorted(committed + aborted)
    assert values(source, "read_uncommitted", len(all_values)) == all_values

    # A successor continues where the transactions of the first one have brought the group.
    half = str(len(committed) // 2)
    first_run, second_run = (run("carry", fleet.bootstrap(), source, target, target, half) for _ in range(2))
    assert sorted(first_run["carried"] + second_run["carried"]) == committed
    assert values(target, "read_committed", len(committed)) == committed
    all_values = sorted(committed + first_run["aborted"] + second_run["aborted"])
    assert len(all_values) > len(committed)
    assert values(target, "read_uncommitted", len(all_values)) == all_values
