"""A game day's topic, and the reports of its clients."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from fleet.core.errors import ConfigError, GameDayError
from fleet.drills.game_day import clients
from fleet.drills.game_day.clients import Topic, reports_in
from fleet.drills.game_day.plan import Options
from fleet.drills.game_day.verdict import ClientReport
from fleet.drills.workload.clients import WorkloadSpec, properties
from tests.drills.sample_game_day import PLAN

TEXT = "# of the game day\n\nsasl.username = day\nsasl.password=a=b\nbootstrap.servers=elsewhere:1\n"


class Admin:
    """An AdminClient that refuses every request with one error, or accepts every request."""

    def __init__(self, reason: int | None = None) -> None:
        self.settings: dict[str, Any] = {}
        self.topics: list[Any] = []
        self._reason = reason

    def connect(self, settings: dict[str, Any]) -> Admin:
        self.settings = settings
        return self

    def _answer(self, names: list[str]) -> dict[str, Future[None]]:
        futures: dict[str, Future[None]] = {name: Future() for name in names}
        for future in futures.values():
            if self._reason is None:
                future.set_result(None)
            else:
                future.set_exception(KafkaException(KafkaError(self._reason)))
        return futures

    def create_topics(self, topics: list[Any]) -> dict[str, Future[None]]:
        self.topics += topics
        return self._answer([each.topic for each in topics])

    def delete_topics(self, topics: list[str]) -> dict[str, Future[None]]:
        return self._answer(topics)

    delete_consumer_groups = delete_topics


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Topic, Admin]]:
    """Makes a topic at a cluster that may refuse it."""

    def make(reason: int | None = None, **options: Any) -> tuple[Topic, Admin]:
        admin = Admin(reason)
        monkeypatch.setattr(clients, "AdminClient", admin.connect)
        return Topic(PLAN, Options("drain", **options), "p1:9100,p2:9100"), admin

    return make


def test_topic_has_a_leader_on_every_broker(topic: Callable[..., tuple[Topic, Admin]]) -> None:
    made, admin = topic(topic_prefix="team-a.day")
    made.create()
    (asked,) = admin.topics
    assert asked.topic.startswith("team-a.day-2")
    assert {each[0] for each in asked.replica_assignment} == {1, 2, 3}
    assert asked.config == {"min.insync.replicas": "2"}
    made.delete()


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "not allowed to create topic .*set --topic-prefix to an allowed prefix",
        ),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "allow Create, Describe, Write, Read and Delete"),
        (KafkaError._TIMED_OUT, "through the fleet at p1:9100,p2:9100: .*every broker is up"),
        (KafkaError.POLICY_VIOLATION, "cannot create topic .* through the fleet"),
    ],
)
def test_topic_creation_error_names_the_cause(
    topic: Callable[..., tuple[Topic, Admin]], reason: int, why: str
) -> None:
    made, _ = topic(reason)
    with pytest.raises(GameDayError, match=why):
        made.create()
    with pytest.raises(GameDayError, match=r"cannot delete topic .*; delete it by hand"):
        made.delete()


def test_clients_use_the_settings_of_a_file(
    topic: Callable[..., tuple[Topic, Admin]], tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(TEXT)
    assert properties(path) == {
        "sasl.username": "day",
        "sasl.password": "a=b",
        "bootstrap.servers": "elsewhere:1",
    }
    path.write_bytes(codecs.BOM_UTF8 + b"sasl.username=day\n")
    assert properties(path) == {"sasl.username": "day"}
    path.write_text(TEXT)
    assert properties(None) == properties("") == {}
    made, admin = topic(client_config=path)
    made.create()
    spec = WorkloadSpec("p1:9100", "topic", str(tmp_path), client="recommended", client_config=str(path))
    for settings, servers in ((admin.settings, "p1:9100,p2:9100"), (spec.client_settings(), "p1:9100")):
        assert (settings["sasl.password"], settings["bootstrap.servers"]) == ("a=b", servers)


@pytest.mark.parametrize(
    ("text", "why"), [("sasl.username", ":1: not a key=value line"), (None, "cannot be read")]
)
def test_invalid_client_config_is_rejected(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "client.properties"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        properties(path)


def test_client_reports_have_a_time() -> None:
    lines = ["12.500 p1:9101/1: Connection refused (_TRANSPORT)", "Traceback (most recent call last):"]
    assert reports_in(lines) == [ClientReport(12.5, "p1:9101/1: Connection refused (_TRANSPORT)")]
