"""Kafka's own command-line tools, straight at the brokers and through a fleet: both print the same.

What is compared is what they print of one topic, one group and one cluster, with addresses and what differs
from one run to the next taken out: see ``NORMALIZATIONS``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from confluent_kafka import Consumer

from fleet.core.model import BrokerId, Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.conformance.releases import advertised
from tests.integration.clients import produce, read_all

Verdict: TypeAlias = Literal["same", "differs"]

PARTITIONS: Final = 6
RECORDS: Final = 60
GROUP: Final = "{group}"
TOPIC: Final = "{topic}"

TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "kafka-topics": ("org.apache.kafka.tools.TopicCommand", "--describe", "--topic", TOPIC),
    "kafka-configs": (
        *("kafka.admin.ConfigCommand", "--describe", "--all"),
        *("--entity-type", "topics", "--entity-name", TOPIC),
    ),
    "kafka-configs (broker)": (
        *("kafka.admin.ConfigCommand", "--describe", "--all"),
        *("--entity-type", "brokers", "--entity-name", "2"),
    ),
    "kafka-consumer-groups": (
        *("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--describe", "--offsets"),
        *("--group", GROUP),
    ),
    "kafka-transactions": ("org.apache.kafka.tools.TransactionsCommand", "list"),
    "kafka-transactions (producers)": (
        *("org.apache.kafka.tools.TransactionsCommand", "describe-producers"),
        *("--topic", TOPIC, "--partition", "0"),
    ),
    "kafka-reassign-partitions": ("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", "--list"),
    "kafka-leader-election": (
        *("org.apache.kafka.tools.LeaderElectionCommand", "--election-type", "preferred"),
        *("--topic", TOPIC, "--partition", "0"),
    ),
    "kafka-log-dirs": ("org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", TOPIC),
    "kafka-acls": ("org.apache.kafka.tools.AclCommand", "--list"),
    "kafka-metadata-quorum": ("org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--status"),
    "kafka-metadata-quorum (replication)": (
        *("org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--replication"),
    ),
    "kafka-get-offsets": ("org.apache.kafka.tools.GetOffsetShell", "--topic", TOPIC),
    "kafka-cluster": ("org.apache.kafka.tools.ClusterTool", "cluster-id"),
    "kafka-cluster (endpoints)": ("org.apache.kafka.tools.ClusterTool", "list-endpoints"),
    "kafka-features": ("org.apache.kafka.tools.FeatureCommand", "describe"),
}
"""Name → the class and what it is told, besides `--bootstrap-server`."""

_ALTER_TOPIC = ("--entity-type", "topics", "--entity-name", TOPIC)
_ACL = ("--allow-principal", "User:conformance", "--operation", "Read", "--topic", TOPIC, "--force")
REASSIGNMENT: Final = "{reassignment}"
DELETION: Final = "{deletion}"
_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"

CHANGES: Final[Mapping[str, tuple[str, ...]]] = {
    "kafka-topics (create)": (
        *("org.apache.kafka.tools.TopicCommand", "--create", "--topic", TOPIC),
        *("--replica-assignment", "1:2:3"),
    ),
    "kafka-console-producer": ("org.apache.kafka.tools.ConsoleProducer", "--topic", TOPIC),
    "kafka-console-consumer": (
        *("org.apache.kafka.tools.consumer.ConsoleConsumer", "--topic", TOPIC, "--group", GROUP),
        *("--from-beginning", "--max-messages", f"{RECORDS}", "--timeout-ms", "60000"),
    ),
    "kafka-consumer-groups (reset)": (
        *(_GROUPS, "--reset-offsets", "--group", GROUP, "--topic", TOPIC),
        *("--shift-by", "-7", "--execute"),
    ),
    "kafka-consumer-groups (after it)": (_GROUPS, "--describe", "--offsets", "--group", GROUP),
    "kafka-reassign-partitions (execute)": (
        *(_REASSIGN, "--execute", "--reassignment-json-file", REASSIGNMENT),
    ),
    "kafka-configs (alter)": (
        *("kafka.admin.ConfigCommand", "--alter", "--add-config", "retention.ms=7200000", *_ALTER_TOPIC),
    ),
    "kafka-leader-election (preferred)": (
        *("org.apache.kafka.tools.LeaderElectionCommand", "--election-type", "preferred"),
        *("--topic", TOPIC, "--partition", "0"),
    ),
    "kafka-reassign-partitions (verify)": (
        *(_REASSIGN, "--verify", "--reassignment-json-file", REASSIGNMENT),
    ),
    "kafka-delete-records": (
        *("org.apache.kafka.tools.DeleteRecordsCommand", "--offset-json-file", DELETION),
    ),
    "kafka-topics (alter)": (
        *("org.apache.kafka.tools.TopicCommand", "--alter", "--topic", TOPIC, "--partitions", "2"),
        *("--replica-assignment", "2:3:1,3:1:2"),
    ),
    "kafka-acls (add)": ("org.apache.kafka.tools.AclCommand", "--add", *_ACL),
    "kafka-topics (after it all)": (
        "org.apache.kafka.tools.TopicCommand",
        *("--describe", "--topic", TOPIC),
    ),
    "kafka-get-offsets (after it all)": (
        *("org.apache.kafka.tools.GetOffsetShell", "--time", "earliest", "--topic", TOPIC),
    ),
    "kafka-acls (remove)": ("org.apache.kafka.tools.AclCommand", "--remove", *_ACL),
    "kafka-consumer-groups (delete)": (_GROUPS, "--delete", "--group", GROUP),
    "kafka-topics (delete)": ("org.apache.kafka.tools.TopicCommand", "--delete", "--topic", TOPIC),
    "kafka-cluster (unregister)": ("org.apache.kafka.tools.ClusterTool", "unregister", "--id", "99"),
}
"""The same for what changes something, in this order: of a topic and a group that are there for it alone."""

REFUSED: Final = ("kafka-cluster (unregister)",)
"""What fails straight as well: there is no such broker."""

NORMALIZATIONS: Final = (
    (r"(advertised\.listeners|listeners|controller\.quorum\.voters)=\S*(.*)", r"\1=ADDRESS"),
    (r'"CONTROLLER://[^"]*:\d+"', '"CONTROLLER://ADDRESS"'),
    (r"(?m)^\d{4}-\d\d-\d\dT\S+ WARN .*$", ""),
    (r"(?m)^\d{4}-\d\d-\d\dT\S+ ", ""),
    (r"TopicId: \S+", "TopicId: ID"),
    (r"(?m)^(\d+)\s+([\w-]{22})\s+\d+\s+\d+\s+-?\d+\s+-?\d+\s+(\w+)", r"\1 \2 \3"),
    (r"(LeaderEpoch|HighWatermark|MaxFollowerLag|MaxFollowerLagTimeMs):\s+-?\d+", r"\1: N"),
    (r"FinalizedVersionLevel: (\S+)\s+Epoch: \d+", r"FinalizedVersionLevel: \1 Epoch: N"),
    (r'"offsetLag":\d+', '"offsetLag":N'),
    (r"[ \t]+", " "),
)
"""What is no difference: addresses, which the fleet blanks or replaces; and what goes on while tools run, or
is only logged."""


@dataclass(frozen=True)
class Printed:
    """What one tool printed, straight and through the fleet, normalized.

    Args: leaks: lines with a broker's host that came through the fleet, as they were printed.
    """

    straight: str
    through: str
    leaks: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return "same" if self.straight == self.through else "differs"


def compare(kafka: KafkaCluster, fleet: LocalFleet, topic: str, group: str) -> dict[str, Printed]:
    """Run every tool twice.

    Args: topic, group: that are there, and at rest, as the fleet is.
    """
    same = {TOPIC: topic, GROUP: group}
    return _both(kafka, fleet, TOOLS, same, same)


def compare_changes(kafka: KafkaCluster, fleet: LocalFleet, folder: Path) -> dict[str, Printed]:
    """Run every tool that changes something, each way on a topic and a group of its own.

    Args: folder: for files that they read.
    """
    straight, through = (
        _of_its_own(f"changed-{os.getpid()}-{way}", folder) for way in ("straight", "by-fleet")
    )
    return _both(kafka, fleet, CHANGES, straight, through)


def _of_its_own(name: str, folder: Path) -> dict[str, str]:
    where = {"topic": name, "partition": 0}
    moved, deleted = folder / f"{name}-moved.json", folder / f"{name}-deleted.json"
    moved.write_text(json.dumps({"version": 1, "partitions": [{**where, "replicas": [2, 3, 1]}]}))
    deleted.write_text(json.dumps({"version": 1, "partitions": [{**where, "offset": 5}]}))
    return {TOPIC: name, GROUP: name, REASSIGNMENT: str(moved), DELETION: str(deleted)}


def _both(
    kafka: KafkaCluster,
    fleet: LocalFleet,
    tools: Mapping[str, tuple[str, ...]],
    straight: Mapping[str, str],
    through: Mapping[str, str],
) -> dict[str, Printed]:
    """Run tools, both ways at the same time.

    Args: straight, through: what stands for what in their arguments.
    """
    real = {broker_id: Endpoint(each.host, each.port) for broker_id, each in kafka.brokers.items()}
    ways = (
        (kafka.bootstrap_servers, real, straight),
        (fleet.bootstrap(), advertised(fleet), through),
    )

    def run(way: tuple[str, Mapping[BrokerId, Endpoint], Mapping[str, str]]) -> list[str]:
        servers, _, names = way
        return [_print(kafka, tool, servers, names, told) for tool, *told in tools.values()]

    def comparable(text: str, way: int) -> str:
        _, addresses, names = ways[way]
        return normalized(text, addresses).replace(names[TOPIC], TOPIC)

    hosts = [each.host for each in real.values()]
    with ThreadPoolExecutor(len(ways)) as pool:
        printed = dict(zip(tools, zip(*pool.map(run, ways), strict=True), strict=True))
    return {
        name: Printed(
            comparable(raw_straight, 0),
            comparable(raw_through, 1),
            tuple(line for line in raw_through.splitlines() if any(host in line for host in hosts)),
        )
        for name, (raw_straight, raw_through) in printed.items()
    }


def _print(
    kafka: KafkaCluster, tool: str, servers: str, names: Mapping[str, str], told: Sequence[str]
) -> str:
    for each, name in names.items():
        told = [argument.replace(each, name) for argument in told]
    lines = "".join(f"{number}\n" for number in range(RECORDS))
    where = ("--bootstrap-server", servers)
    # Found by one that printed its usage, both ways: of kafka-cluster it belongs behind what is to be done.
    arguments = (*told, *where) if tool.endswith("ClusterTool") else (*where, *told)
    done = kafka.tool(tool, *arguments, stdin=lines, limit_s=180.0)
    return f"{done.stdout}\n{done.stderr}\nexit code {done.returncode}"


def normalized(text: str, addresses: Mapping[BrokerId, Endpoint]) -> str:
    """Without addresses, and with its lines in order."""
    for broker_id, each in addresses.items():
        text = re.sub(rf"\b{re.escape(each.host)}(:|\s+){each.port}\b", f"BROKER-{broker_id}", text)
    for pattern, instead in NORMALIZATIONS:
        text = re.sub(pattern, instead, text)
    return "\n".join(sorted(line.strip() for line in text.splitlines() if line.strip()))


def leave_a_group(servers: str, topic: str, group: str) -> None:
    """Records in a topic, and a group at rest that has committed where it is."""
    produce(servers, topic, [b"%d" % number for number in range(RECORDS)])
    read_all(servers, topic, RECORDS, partitions=PARTITIONS)
    config = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    # Without a commit of the consumer's own, which can leave nothing for commit() to commit.
    consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe([topic])
    seen = 0
    while seen < RECORDS:
        seen += len(consumer.consume(RECORDS, 1.0))
    consumer.commit(asynchronous=False)
    consumer.close()
