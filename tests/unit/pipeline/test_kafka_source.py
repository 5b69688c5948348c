"""Which topics and offsets the Kafka source reads. Reads from real Kafka are in tests/pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from fleet.core.errors import PipelineError
from fleet.pipeline import kafka_source
from fleet.pipeline.kafka_source import StreamReader, Topics


@dataclass
class Cluster:
    """A consumer's view of a cluster.

    Args:
        ends: for each topic with one partition, the offset after its last record.
        errors: for each topic that cannot be read, an error code.
        leader: broker id of the leader of each partition; -1 for none.
    """

    ends: dict[str, int]
    errors: dict[str, int] = field(default_factory=dict)
    leader: int = 1

    def list_topics(self, name: str, timeout: float) -> Any:
        error = None
        if name not in self.ends:
            error = KafkaError(self.errors.get(name, KafkaError.UNKNOWN_TOPIC_OR_PART))
        partitions = {0: SimpleNamespace(leader=self.leader)} if error is None else {}
        return SimpleNamespace(topics={name: SimpleNamespace(topic=name, error=error, partitions=partitions)})

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, self.ends[place.topic]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster({})
    monkeypatch.setattr(kafka_source, "_consumer", lambda _: cluster)
    return cluster


BOTH = {"optional_topics": "new,old"}


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({"new": 5}, {"new/0": (0, 5)}),
        ({"old": 7}, {"old/0": (0, 7)}),
        ({"new": 5, "old": 7}, {"new/0": (0, 5), "old/0": (0, 7)}),
    ],
)
def test_optional_topics_are_read_where_they_exist(
    cluster: Cluster, ends: dict[str, int], expected: dict[str, tuple[int, int]]
) -> None:
    cluster.ends = ends
    assert Topics(BOTH).bounds() == expected


def test_bounds_without_any_topic_fail(cluster: Cluster) -> None:
    with pytest.raises(PipelineError, match="none of the topics new, old exists; create one of them"):
        Topics(BOTH).bounds()


def test_required_topic_that_is_missing_fails(cluster: Cluster) -> None:
    cluster.ends = {"new": 5}
    with pytest.raises(PipelineError, match=r"topic traffic: .*[Uu]nknown topic"):
        Topics({"topics": "traffic", **BOTH}).bounds()


def test_optional_topic_without_permission_fails(cluster: Cluster) -> None:
    cluster.ends, cluster.errors = {"new": 5}, {"old": KafkaError.TOPIC_AUTHORIZATION_FAILED}
    with pytest.raises(PipelineError, match="topic old: "):
        Topics(BOTH).bounds()


def test_optional_topic_without_leader_is_not_read_yet(cluster: Cluster) -> None:
    cluster.ends = {"new": 5}
    topics = Topics(BOTH)
    assert topics.bounds() == {"new/0": (0, 5)}
    cluster.leader = -1
    with pytest.raises(PipelineError, match="none of the topics"):
        topics.bounds()


def test_checkpoint_before_rename_continues_with_both_topics(cluster: Cluster) -> None:
    """A pipeline of 0.2.0 has read `old` up to 7; then the fleet creates `new`."""
    reader = StreamReader(BOTH)
    start = {"old/0": 7}
    cluster.ends = {"old": 9, "new": 3}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"old/0": 9, "new/0": 3}
    spans = [(each.topic, each.first, each.end) for each in reader.partitions(start, end)]  # type: ignore[attr-defined]
    assert sorted(spans) == [("new", 0, 3), ("old", 7, 9)]


def test_offset_of_optional_topic_outlives_its_absence(cluster: Cluster) -> None:
    reader = StreamReader(BOTH)
    start = {"old/0": 7, "new/0": 1}
    cluster.ends = {"new": 3}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert list(end.items()) == [("old/0", 7), ("new/0", 3)]
    spans = [(each.topic, each.first, each.end) for each in reader.partitions(start, end)]  # type: ignore[attr-defined]
    assert spans == [("new", 1, 3)]
