"""The archive of Kafka's classes, as a virtual machine keeps them in memory: brokers start in half the time.

    python tools/class_archive.py       writes build/kafka/libs.jsa from the classes that a broker and tools
    load

`fleet.drills.cluster.kafka.java` uses the archive if there is one. A virtual machine of another version, or
with other jars, ignores the archive.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from fleet.drills.cluster.kafka import KafkaCluster, archive_of
from fleet.drills.cluster.kafka_jars import CHECKOUT_LIBS

TOOLS = {
    "org.apache.kafka.tools.TopicCommand": ("--list",),
    "kafka.admin.ConfigCommand": ("--describe", "--entity-type", "brokers"),
    "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand": ("--list",),
}
"""Command lines of tools; each runs once in a virtual machine of its own."""
TOPIC = "classes"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="fleet-classes-") as name:
        folder = Path(name)
        os.environ["JDK_JAVA_OPTIONS"] = f"-XX:DumpLoadedClassList={folder}/%p.lst"
        with KafkaCluster(1, folder / "kafka", libs=CHECKOUT_LIBS) as kafka:
            work(kafka)
        del os.environ["JDK_JAVA_OPTIONS"]
        lines = {line for file in folder.glob("*.lst") for line in file.read_text().splitlines()}
        classes = folder / "classes.lst"
        classes.write_text("".join(f"{line}\n" for line in sorted(lines)))
        dump(classes)
    return 0


def work(kafka: KafkaCluster) -> None:
    """Use brokers and tools, so that they load their usual classes."""
    common: dict[str, Any] = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
    producer = Producer({**common, "enable.idempotence": True})
    producer.produce(TOPIC, b"x")
    producer.flush()
    for protocol in ("classic", "consumer"):
        more = {"group.id": protocol, "group.protocol": protocol, "auto.offset.reset": "earliest"}
        consumer = Consumer({**common, **more})
        consumer.subscribe([TOPIC])
        consumer.poll(20.0)
        consumer.close()
    for tool, arguments in TOOLS.items():
        done = kafka.tool(tool, "--bootstrap-server", kafka.bootstrap_servers, *arguments)
        if done.returncode != 0:
            sys.exit(f"{tool} has failed: {done.stderr}")


def dump(classes: Path) -> None:
    """Write the archive to a temporary file first: an incomplete archive would be worse than none."""
    archive = archive_of(CHECKOUT_LIBS)
    fresh = archive.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    command = ["java", "-XX:+UseSerialGC", "-Xshare:dump", "-Xlog:disable", "-Xlog:all=error:stderr"]
    jars = f"{CHECKOUT_LIBS}/*"
    given = (f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={fresh}", "-cp", jars)
    subprocess.run([*command, *given], check=True, stdout=sys.stderr)
    fresh.replace(archive)


if __name__ == "__main__":
    sys.exit(main())
