"""The topics of events, and their creation."""

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
    """One topic; its name has no prefix."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


_BROKER_TIMESTAMPS: Final = {"message.timestamp.type": "LogAppendTime"}
"""The broker stamps each record: Kafka rejects a sender's timestamp that is more than an hour ahead."""

TOPICS: Final = (
    Topic("ownership", 3, {**_BROKER_TIMESTAMPS, "retention.ms": str(365 * _DAY_MS)}),
    Topic(LATEST, 1, {**_BROKER_TIMESTAMPS, "cleanup.policy": "compact"}),
    Topic("members", 3, {**_BROKER_TIMESTAMPS, "retention.ms": str(365 * _DAY_MS)}),
    Topic("traffic", 6, {**_BROKER_TIMESTAMPS, "retention.ms": str(7 * _DAY_MS), "compression.type": "zstd"}),
    Topic(
        "connections",
        6,
        {**_BROKER_TIMESTAMPS, "retention.ms": str(30 * _DAY_MS), "compression.type": "zstd"},
    ),
    Topic(
        OBSERVATIONS, 6, {**_BROKER_TIMESTAMPS, "retention.ms": str(30 * _DAY_MS), "compression.type": "zstd"}
    ),
    Topic(WEIGHTS, 1, {**_BROKER_TIMESTAMPS, "cleanup.policy": "compact"}),
    Topic(DEAD_LETTERS, 1, {**_BROKER_TIMESTAMPS, "retention.ms": str(30 * _DAY_MS)}),
)


async def create_missing(
    admin: AIOKafkaAdminClient, topics: Iterable[Topic], prefix: str, replication_factor: int
) -> None:
    """Create the topics that do not exist. Existing topics keep their settings.

    Raises: KafkaError: a topic could not be created.
    """
    new_topics = [
        NewTopic(prefix + each.name, each.partitions, replication_factor, topic_configs=dict(each.config))
        for each in topics
    ]
    response = await admin.create_topics(new_topics)
    for name, code, *message in response.topic_errors:
        if code not in (0, TopicAlreadyExistsError.errno):
            error: KafkaError = for_code(code)(f"topic {name}: {' '.join(filter(None, message))}")
            raise error
