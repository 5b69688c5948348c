"""The topics that events go to, and how they are made where they do not exist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from fleet.core.event_schema import DEAD_LETTERS, LATEST, OBSERVATIONS, WEIGHTS

_DAY_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic, without the prefix that all of them have."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


_STAMPED: Final = {"message.timestamp.type": "LogAppendTime"}
"""By the broker: of a member whose clock is more than an hour ahead Kafka would take no record."""

TOPICS: Final = (
    Topic("ownership", 3, {**_STAMPED, "retention.ms": str(365 * _DAY_MS)}),
    Topic(LATEST, 1, {**_STAMPED, "cleanup.policy": "compact"}),
    Topic("members", 3, {**_STAMPED, "retention.ms": str(365 * _DAY_MS)}),
    Topic("traffic", 6, {**_STAMPED, "retention.ms": str(7 * _DAY_MS), "compression.type": "zstd"}),
    Topic("connections", 6, {**_STAMPED, "retention.ms": str(30 * _DAY_MS), "compression.type": "zstd"}),
    Topic(OBSERVATIONS, 6, {**_STAMPED, "retention.ms": str(30 * _DAY_MS), "compression.type": "zstd"}),
    Topic(WEIGHTS, 1, {**_STAMPED, "cleanup.policy": "compact"}),
    Topic(DEAD_LETTERS, 1, {**_STAMPED, "retention.ms": str(30 * _DAY_MS)}),
)


async def make_missing(
    admin: AIOKafkaAdminClient, topics: Iterable[Topic], prefix: str, replication_factor: int
) -> None:
    """Make those that do not exist; those that do stay as they are.

    Raises: KafkaError: a topic could not be made.
    """
    wanted = [
        NewTopic(prefix + each.name, each.partitions, replication_factor, topic_configs=dict(each.config))
        for each in topics
    ]
    response = await admin.create_topics(wanted)
    for name, code, *message in response.topic_errors:
        if code not in (0, TopicAlreadyExistsError.errno):
            error: KafkaError = for_code(code)(f"topic {name}: {' '.join(filter(None, message))}")
            raise error
