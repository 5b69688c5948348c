"""Transactions of version 2 (KIP-890), for which Produce must not be capped below version 12."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.demo.local_fleet import LocalFleet
from tests.integration.clients import read_all
from tests.integration.conftest import Tool

PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
RECORDS = 1_000


@pytest.mark.proves("Java", "transactions")
def test_a_producer_of_version_2_commits_through_the_fleet(
    fleet: LocalFleet, kafka_tool: Tool, make_topic: Callable[..., str]
) -> None:
    """With version 2 each transaction ends an epoch of its producer; before, one lasted for all of them."""
    topic = make_topic()
    bootstrap, transactional_id = ("--bootstrap-server", fleet.bootstrap()), f"id-{topic}"
    kafka_tool(
        PRODUCER,
        *(*bootstrap, "--topic", topic, "--transactional-id", transactional_id),
        *("--num-records", str(RECORDS), "--record-size", "100", "--throughput", "500"),
        *("--transaction-duration-ms", "200"),
    )
    described = kafka_tool(TRANSACTIONS, *bootstrap, "describe", "--transactional-id", transactional_id)
    names, values = (line.split("\t") for line in described.splitlines() if "\t" in line)
    state = {name.strip(): value.strip() for name, value in zip(names, values, strict=False)}
    assert state["TransactionalId"] == transactional_id
    assert state["TransactionState"] == "CompleteCommit"
    assert int(state["ProducerEpoch"]) >= 3
    committed = {"isolation.level": "read_committed"}
    assert len(read_all(fleet.bootstrap(), topic, RECORDS, config=committed)) == RECORDS
