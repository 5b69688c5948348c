"""Java programs that are more than a client: Kafka Streams and Kafka Connect."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from fleet.drills.cluster.kafka import LOGGING, KafkaCluster, java
from fleet.drills.cluster.spawn import end, spawn
from tests.integration.clients import LIMIT_S
from tools.bootstrap import KAFKA_CLIENTS


@contextmanager
def clients_running(
    folder: Path, java_class: str, settings: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with a file of properties. At the end it gets SIGTERM, and half a minute to stop."""
    logging, properties = folder / "log4j2.properties", folder / "program.properties"
    logging.write_text(LOGGING)
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    process = spawn(
        java(KAFKA_CLIENTS, logging, "-Xmx256m", java_class, str(properties)), folder / "program.log"
    )
    try:
        yield process
    finally:
        end([process], 30.0)


@contextmanager
def topics_of(kafka: KafkaCluster, prefix: str) -> Iterator[None]:
    """Delete topics and groups with a prefix at the end."""
    try:
        yield
    finally:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        created = [name for name in admin.list_topics(timeout=LIMIT_S).topics if name.startswith(prefix)]
        for deletion in admin.delete_topics(created).values() if created else ():
            deletion.result(LIMIT_S)
