"""Compares the output of Kafka's command-line tools: directly at the brokers, and through a fleet.

The tools print one topic, one group and one cluster. Addresses and what differs between any two runs are
removed: see ``NORMALIZATIONS``.
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
RECORD_COUNT: Final = 60
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
"""The class and the arguments of each tool, without `--bootstrap-server`."""

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
        *("--from-beginning", "--max-messages", f"{RECORD_COUNT}", "--timeout-ms", "60000"),
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
"""Tools that change something, in this order, on a topic and a group of their own."""

FAILING_TOOLS: Final = ("kafka-cluster (unregister)",)
"""The tools that also fail without a fleet: the broker does not exist."""

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
"""What is not a difference: addresses, which the fleet blanks or replaces, values that change while tools
run,
and log lines."""


@dataclass(frozen=True)
class Printed:
    """The output of one tool, directly and through the fleet, normalized.

    Args: leaks: raw lines with a broker's host that came through the fleet.
    """

    direct: str
    proxied: str
    leaks: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return "same" if self.direct == self.proxied else "differs"


def compare(kafka: KafkaCluster, fleet: LocalFleet, topic: str, group: str) -> dict[str, Printed]:
    """Run every tool twice.

    Args: topic, group: an existing topic and group, idle like the fleet.
    """
    same = {TOPIC: topic, GROUP: group}
    return _compare_tools(kafka, fleet, TOOLS, same, same)


def compare_changes(kafka: KafkaCluster, fleet: LocalFleet, folder: Path) -> dict[str, Printed]:
    """Run every tool that changes something, directly and through the fleet, each on its own topic and group.

    Args: folder: folder for the files that the tools read.
    """
    direct, proxied = (
        _own_placeholders(f"changed-{os.getpid()}-{route}", folder) for route in ("straight", "by-fleet")
    )
    return _compare_tools(kafka, fleet, CHANGES, direct, proxied)


def _own_placeholders(name: str, folder: Path) -> dict[str, str]:
    partition = {"topic": name, "partition": 0}
    reassignment_file, deletion_file = folder / f"{name}-moved.json", folder / f"{name}-deleted.json"
    reassignment_file.write_text(
        json.dumps({"version": 1, "partitions": [{**partition, "replicas": [2, 3, 1]}]})
    )
    deletion_file.write_text(json.dumps({"version": 1, "partitions": [{**partition, "offset": 5}]}))
    return {TOPIC: name, GROUP: name, REASSIGNMENT: str(reassignment_file), DELETION: str(deletion_file)}


def _compare_tools(
    kafka: KafkaCluster,
    fleet: LocalFleet,
    tools: Mapping[str, tuple[str, ...]],
    direct: Mapping[str, str],
    proxied: Mapping[str, str],
) -> dict[str, Printed]:
    """Run tools both ways at the same time.

    Args: straight, through: the values of the placeholders in their arguments.
    """
    real = {broker_id: Endpoint(each.host, each.port) for broker_id, each in kafka.brokers.items()}
    routes = (
        (kafka.bootstrap_servers, real, direct),
        (fleet.bootstrap(), advertised(fleet), proxied),
    )

    def run(route: tuple[str, Mapping[BrokerId, Endpoint], Mapping[str, str]]) -> list[str]:
        servers, _, placeholders = route
        return [
            _run_tool(kafka, tool, servers, placeholders, arguments_of_tool)
            for tool, *arguments_of_tool in tools.values()
        ]

    def comparable(text: str, route: int) -> str:
        _, addresses, placeholders = routes[route]
        return normalized(text, addresses).replace(placeholders[TOPIC], TOPIC)

    hosts = [each.host for each in real.values()]
    with ThreadPoolExecutor(len(routes)) as pool:
        printed = dict(zip(tools, zip(*pool.map(run, routes), strict=True), strict=True))
    return {
        name: Printed(
            comparable(raw_direct, 0),
            comparable(raw_proxied, 1),
            tuple(line for line in raw_proxied.splitlines() if any(host in line for host in hosts)),
        )
        for name, (raw_direct, raw_proxied) in printed.items()
    }


def _run_tool(
    kafka: KafkaCluster,
    tool: str,
    servers: str,
    placeholders: Mapping[str, str],
    arguments_of_tool: Sequence[str],
) -> str:
    for each, name in placeholders.items():
        arguments_of_tool = [argument.replace(each, name) for argument in arguments_of_tool]
    lines = "".join(f"{number}\n" for number in range(RECORD_COUNT))
    bootstrap_option = ("--bootstrap-server", servers)
    # ClusterTool requires the option after its command; in front it prints its usage, both ways.
    arguments = (
        (*arguments_of_tool, *bootstrap_option)
        if tool.endswith("ClusterTool")
        else (*bootstrap_option, *arguments_of_tool)
    )
    process = kafka.tool(tool, *arguments, stdin=lines, limit_s=180.0)
    return f"{process.stdout}\n{process.stderr}\nexit code {process.returncode}"


def normalized(text: str, addresses: Mapping[BrokerId, Endpoint]) -> str:
    """Remove addresses and sort the lines."""
    for broker_id, each in addresses.items():
        text = re.sub(rf"\b{re.escape(each.host)}(:|\s+){each.port}\b", f"BROKER-{broker_id}", text)
    for pattern, replacement in NORMALIZATIONS:
        text = re.sub(pattern, replacement, text)
    return "\n".join(sorted(line.strip() for line in text.splitlines() if line.strip()))


def create_idle_group(servers: str, topic: str, group: str) -> None:
    """Produce records to a topic, and leave an idle group that has committed its offsets."""
    produce(servers, topic, [b"%d" % number for number in range(RECORD_COUNT)])
    read_all(servers, topic, RECORD_COUNT, partitions=PARTITIONS)
    config = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    # Without automatic commits, which can leave nothing for commit() to commit.
    consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe([topic])
    received = 0
    while received < RECORD_COUNT:
        received += len(consumer.consume(RECORD_COUNT, 1.0))
    consumer.commit(asynchronous=False)
    consumer.close()
