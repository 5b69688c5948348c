"""The tests' program around kafka-python. The Python of a separate virtual environment runs the program.

    main.py COMMAND BOOTSTRAP ...

The program prints each event in a line, "WHAT\tVALUE": "failed" for each error that an application sees, and
"closed" at the end of a successful run. `Ledger` and the commands are those of ../node/program.js.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

PARTITIONS = 12
PRODUCE_INTERVAL_S = 0.1
TIMEOUT_S = 60.0

_printing = threading.Lock()


def print_event(event: str, value: object = "") -> None:
    with _printing:
        print(f"{event}\t{value}".replace("\n", " "), flush=True)


class EventHandler(logging.Handler):
    """Prints each message of the library's log in a line, "log\tLEVEL MESSAGE"."""

    def emit(self, record: logging.LogRecord) -> None:
        print_event("log", f"{record.levelname} {record.getMessage()}")


def await_true(condition: Callable[[], bool], complaint: str) -> None:
    """Wait for a condition. Raises: TimeoutError: the condition does not hold within LIMIT_S."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{complaint} after {TIMEOUT_S:g} s")
        time.sleep(0.05)


class Ledger:
    """The acknowledged and the received records, and the group's next offset in each partition."""

    def __init__(self) -> None:
        self.acknowledged: set[str] = set()
        self.received: set[str] = set()
        self._next = dict.fromkeys(range(PARTITIONS), 0)

    def acknowledge(self, value: str) -> None:
        self.acknowledged.add(value)
        print_event("acknowledged", value)

    def receive(self, partition: int, offset: int, value: str) -> None:
        """Note a record. A group may repeat records that it has not committed, but may skip none."""
        expected = self._next[partition]
        if offset < expected:
            print_event("repeated", f"{partition} {offset}")
            return
        if offset > expected:
            print_event("skipped", f"{partition} {expected} to {offset}")
        self._next[partition] = offset + 1
        self.received.add(value)
        print_event("received", value)


def produce(producer: Any, topic: str, ledger: Ledger, stopping: threading.Event) -> None:
    number = 0
    while not stopping.wait(PRODUCE_INTERVAL_S):
        for partition in range(PARTITIONS):
            value = f"{partition}-{number}"
            future = producer.send(topic, value.encode(), partition=partition)
            future.add_callback(lambda _, value=value: ledger.acknowledge(value))
            future.add_errback(lambda error: print_event("failed", repr(error)))
        number += 1


def work(bootstrap: Sequence[str], topic: str, group: str, _: str) -> None:
    """A producer and a member of a group until standard input ends."""
    ledger, stopping, flushed = Ledger(), threading.Event(), threading.Event()
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=500,
    )
    # A member that assigns partitions before it has the topic's metadata assigns none, and does not always
    # notice the metadata that arrives meanwhile. On a loaded machine such a group received nothing.
    await_true(lambda: bool(consumer.partitions_for_topic(topic)), f"{topic} has no partitions")
    consumer.subscribe([topic])

    def consume() -> None:
        while not (flushed.is_set() and ledger.acknowledged <= ledger.received):
            for records in consumer.poll(timeout_ms=100).values():
                for record in records:
                    ledger.receive(record.partition, record.offset, record.value.decode())

    producing = threading.Thread(target=produce, args=(producer, topic, ledger, stopping))
    consuming = threading.Thread(target=consume)
    for each in (producing, consuming):
        each.start()
    sys.stdin.read()
    stopping.set()
    producing.join()
    producer.flush(TIMEOUT_S)
    flushed.set()
    consuming.join()
    consumer.close()
    producer.close()


def administer(bootstrap: Sequence[str], name: str, group: str) -> None:
    """Print the answers on topics, their configuration, a group and the cluster."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics({name: {"num_partitions": 5, "replication_factor": 3}}, wait_for_metadata=True)
    (described,) = admin.describe_topics([name])
    print_event("partitions", len(described["partitions"]))

    def configured(kind: Any, resource: str, key: str) -> object:
        found = admin.describe_configs([ConfigResource(kind, resource, {key: None})], config_filter="all")
        return found[kind.name.lower()][resource][key]["value"]

    print_event("retention", configured(ConfigResourceType.TOPIC, name, "retention.ms"))
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "123456789"})])
    # The next answer may come from a broker that does not know the change yet.
    await_true(
        lambda: configured(ConfigResourceType.TOPIC, name, "retention.ms") == "123456789",
        f"retention.ms of {name} is still not 123456789",
    )
    print_event("retention", configured(ConfigResourceType.TOPIC, name, "retention.ms"))
    print_event("advertised", configured(ConfigResourceType.BROKER, "1", "advertised.listeners"))
    listed = [each for each in admin.list_groups() if each["group_id"] == group]
    print_event("group", [each["protocol_type"] for each in listed])
    offsets = admin.list_group_offsets(group)[group]
    print_event("offsets", sorted((each.partition, known.offset) for each, known in offsets.items()))
    cluster = admin.describe_cluster()
    print_event("cluster", cluster["cluster_id"])
    print_event("brokers", sorted(each["broker_id"] for each in cluster["brokers"]))
    admin.delete_topics([name])
    await_true(lambda: name not in admin.list_topics(), f"{name} is still there")
    print_event("deleted")
    admin.close()


def addresses(bootstrap: Sequence[str]) -> None:
    """Print the address of each broker as the client knows the address: "broker", "ID HOST:PORT"."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    for each in admin.describe_cluster()["brokers"]:
        print_event("broker", f"{each['broker_id']} {each['host']}:{each['port']}")
    admin.close()


def quorum(bootstrap: Sequence[str]) -> None:
    """Print the answer to DescribeQuorum: "voter", "ID", and for each controller "node", "ID HOST:PORT"."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    described = admin.describe_metadata_quorum()
    (topic,) = described["topics"]
    (partition,) = topic["partitions"]
    for voter in sorted(each["replica_id"] for each in partition["current_voters"]):
        print_event("voter", voter)
    for node in described.get("nodes", ()):
        for each in node["listeners"]:
            print_event("node", f"{node['node_id']} {each['host']}:{each['port']}")
    admin.close()


def transact(bootstrap: Sequence[str], topic: str, transactional_id: str, number: str) -> None:
    """Transactions with a record in each partition, of which every second one is aborted."""
    options: dict[str, Any] = {"bootstrap_servers": bootstrap, "transactional_id": transactional_id}
    producer = KafkaProducer(**options)
    producer.init_transactions()
    count = int(number)

    def transaction(name: str, *, commit: bool) -> list[str]:
        values = [f"{name}-{partition}" for partition in range(PARTITIONS)]
        producer.begin_transaction()
        futures = [
            producer.send(topic, value.encode(), partition=partition)
            for partition, value in enumerate(values)
        ]
        for each in futures:
            each.get(TIMEOUT_S)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        return values

    for each in range(count):
        commit = (count - each) % 2 == 1
        event = "committed" if commit else "aborted"
        for value in transaction(f"{event}{each}", commit=commit):
            print_event(event, value)
    successor = KafkaProducer(**options)
    successor.init_transactions()
    try:
        transaction("fenced", commit=True)
        print_event("fenced", "committed")
    except KafkaError:  # the class depends on how far the transaction came
        print_event("fenced", "refused")
    successor.close()
    producer.close(timeout=1)


COMMANDS: dict[str, tuple[int, Callable[..., None]]] = {
    "work": (3, work),
    "admin": (2, administer),
    "addresses": (0, addresses),
    "quorum": (0, quorum),
    "transact": (3, transact),
}
"""Each with the number of its arguments."""


def main() -> int:
    command, bootstrap, *arguments = sys.argv[1:]
    count, run = COMMANDS[command]
    if len(arguments) != count:
        sys.exit(f"main.py {command}: {count} arguments after BOOTSTRAP")
    logging.basicConfig(level=logging.WARNING, handlers=[EventHandler()])
    try:
        run(bootstrap.split(","), *arguments)
    except Exception as error:
        print_event("failed", repr(error))
        return 1
    print_event("closed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
