"""Kafka's own command-line tools, straight at the brokers and through a fleet: both print the same.

What is compared is what they print of one topic, one group and one cluster, with addresses and what differs
from one run to the next taken out: see ``NORMALIZATIONS``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from confluent_kafka import Consumer

from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LISTENER, LocalFleet
from fleet.model import BrokerId, Endpoint
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
    "kafka-reassign-partitions": ("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", "--list"),
    "kafka-leader-election": (
        *("org.apache.kafka.tools.LeaderElectionCommand", "--election-type", "preferred"),
        *("--topic", TOPIC, "--partition", "0"),
    ),
    "kafka-log-dirs": ("org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", TOPIC),
    "kafka-acls": ("org.apache.kafka.tools.AclCommand", "--list"),
    "kafka-metadata-quorum": ("org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--status"),
    "kafka-get-offsets": ("org.apache.kafka.tools.GetOffsetShell", "--topic", TOPIC),
    "kafka-cluster": ("org.apache.kafka.tools.ClusterTool", "cluster-id"),
    "kafka-cluster (endpoints)": ("org.apache.kafka.tools.ClusterTool", "list-endpoints"),
    "kafka-features": ("org.apache.kafka.tools.FeatureCommand", "describe"),
}
"""Name → the class and what it is told, besides `--bootstrap-server`."""

NORMALIZATIONS: Final = (
    (r"(advertised\.listeners|listeners|controller\.quorum\.voters)=\S*(.*)", r"\1=ADDRESS"),
    (r', "endpoints": \[[^\]]*\]', ""),
    (r"(LeaderEpoch|HighWatermark|MaxFollowerLag|MaxFollowerLagTimeMs):\s+-?\d+", r"\1: N"),
    (r"FinalizedVersionLevel: (\S+)\s+Epoch: \d+", r"FinalizedVersionLevel: \1 Epoch: N"),
    (r'"offsetLag":\d+', '"offsetLag":N'),
    (r"[ \t]+", " "),
)
"""What is no difference: addresses, which the fleet blanks, replaces or, of controllers, does not offer; and
what goes on while tools run."""


def advertised(fleet: LocalFleet) -> dict[BrokerId, Endpoint]:
    """What a fleet at rest says in the place of each broker."""
    found = {}
    for each in fleet.ownership(fleet.members[0]).identities:
        owner = fleet.settings.member(each.committed[0]).advertised(fleet.settings)
        endpoint = owner.endpoint(LISTENER, each.broker_id)
        assert endpoint is not None
        found[each.broker_id] = endpoint
    return found


@dataclass(frozen=True)
class Printed:
    """What one tool printed, straight and through the fleet, normalized."""

    straight: str
    through: str

    @property
    def verdict(self) -> Verdict:
        return "same" if self.straight == self.through else "differs"


def compare(kafka: KafkaCluster, fleet: LocalFleet, topic: str, group: str) -> dict[str, Printed]:
    """Run every tool twice.

    Args: topic, group: that are there, and at rest, as the fleet is.
    """
    real = {broker_id: Endpoint(each.host, each.port) for broker_id, each in kafka.brokers.items()}
    found = {}
    for name, (tool, *told) in TOOLS.items():
        arguments = [each.replace(TOPIC, topic).replace(GROUP, group) for each in told]
        straight, through = (
            normalized(_print(kafka, tool, servers, arguments), addresses)
            for servers, addresses in (
                (kafka.bootstrap_servers, real),
                (fleet.bootstrap(), advertised(fleet)),
            )
        )
        found[name] = Printed(straight, through)
    return found


def _print(kafka: KafkaCluster, tool: str, servers: str, arguments: list[str]) -> str:
    done = kafka.tool(tool, "--bootstrap-server", servers, *arguments, limit_s=120.0)
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
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    seen = 0
    while seen < RECORDS:
        seen += len(consumer.consume(RECORDS, 1.0))
    consumer.commit(asynchronous=False)
    consumer.close()
