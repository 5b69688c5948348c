"""A workload's process: a transactional librdkafka producer and a read-committed group.

Every fourth transaction is aborted on purpose. Its records are in the history `aborted`.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fleet.core.errors import DemoError
from fleet.drills.workload.clients import CLIENTS, WorkloadSpec, report_error, run_workload
from fleet.drills.workload.history import NO_OFFSET, Event, HistoryWriter, Record

_TRANSACTION_S = 0.1
_ABORT_EVERY = 4
_LIMIT_S = 90.0


class _Transactions:
    """One transactional producer, and the histories of its records."""

    def __init__(self, spec: WorkloadSpec) -> None:
        self._spec = spec
        self._histories = {
            name: HistoryWriter(spec.path(name)) for name in ("produced", "acknowledged", "aborted")
        }
        self._delivered: list[Event] = []
        self._given: list[Event] = []
        self._producer_id = random.getrandbits(63)
        self._number = 0
        self._producer = Producer(
            {
                **CLIENTS[spec.client],
                "bootstrap.servers": spec.bootstrap_servers,
                "transactional.id": spec.topic,
                "client.id": "fleet-chaos-transactional",
                "error_cb": report_error,
            }
        )

    def start(self) -> None:
        _insist(self._producer.init_transactions)

    def one(self, abort: bool, until_s: float) -> None:
        """Begin a transaction, produce until a moment, and end it.

        Raises: KafkaException: the producer cannot go on.
        """
        self._given, self._delivered = [], []
        self._producer.begin_transaction()
        try:
            while time.monotonic() < until_s or not self._given:
                self._produce()
                self._producer.poll(self._spec.partitions / self._spec.rate_per_s)
            if abort:
                # The records must reach the log before the abort. If librdkafka aborts before the
                # coordinator has answered AddPartitionsToTxn, the broker refuses EndTxn
                # (INVALID_TXN_STATE), and the producer cannot continue: librdkafka's issue 4849.
                self._producer.flush(_LIMIT_S)
                _insist(self._producer.abort_transaction)
            else:
                _insist(self._producer.commit_transaction)
        except KafkaException as error:
            if not _may_abort(error.args[0]):
                raise
            report_error(error.args[0])
            _insist(self._producer.abort_transaction)
            abort = True
        if abort:
            self._keep("aborted", self._given)
        else:
            at_s = time.monotonic()
            self._keep(
                "acknowledged",
                [Event(at_s, each.partition, each.record, each.offset) for each in self._delivered],
            )

    def close(self) -> None:
        for history in self._histories.values():
            history.close()

    def _produce(self) -> None:
        """Produce one record to each partition."""
        for partition in range(self._spec.partitions):
            record = Record(self._producer_id, self._number)
            given = Event(time.monotonic(), partition, record, NO_OFFSET)
            value = record.encode(self._spec.record_bytes)
            self._producer.produce(
                self._spec.topic, value, partition=partition, on_delivery=self._report(record)
            )
            self._given.append(given)
            self._histories["produced"].append(given)
        self._number += 1

    def _report(self, record: Record) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offset = message.offset()
                offset = NO_OFFSET if offset is None or offset < 0 else offset
                self._delivered.append(Event(time.monotonic(), message.partition(), record, offset))

        return delivered

    def _keep(self, history: str, events: list[Event]) -> None:
        for event in events:
            self._histories[history].append(event)
        for writer in self._histories.values():
            writer.flush()


def _may_abort(error: KafkaError) -> bool:
    """Whether an error requires an abort. A producer that is already in this state reports _STATE."""
    return bool(error.txn_requires_abort()) or error.code() == KafkaError._STATE


def _insist(call: Callable[[float], None]) -> None:
    """Repeat a retriable call until its outcome is known.

    Raises: KafkaException: the call failed permanently; DemoError: the outcome is not known in time.
    """
    deadline_s = time.monotonic() + _LIMIT_S
    while True:
        try:
            call(10.0)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            report_error(error.args[0])
        if time.monotonic() > deadline_s:
            raise DemoError(f"the outcome of a transaction was not known within {_LIMIT_S:.0f} s")


def _produce(spec: WorkloadSpec, stopping: threading.Event) -> None:
    """Run one transaction after the other until `stopping` is set."""
    transactions = _Transactions(spec)
    try:
        transactions.start()
        number = 0
        while not stopping.is_set():
            number += 1
            transactions.one(number % _ABORT_EVERY == 0, time.monotonic() + _TRANSACTION_S)
    finally:
        transactions.close()


if __name__ == "__main__":
    sys.exit(run_workload(_produce))
