"""The clients accept the settings that `fleet client-config` prints, and reach the fleet with them.

Spark's is not among them: its connector to Kafka is not here. Its settings are Java's, and two of its own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from fleet.admin.client_settings import CLIENT_SETTINGS, Client
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.integration.clients import LIMIT_S, read_all
from tools.bootstrap import (
    FRANZ_GO_SOURCE,
    KAFKA_GO_SOURCE,
    KCAT,
    ROOT,
    SARAMA_SOURCE,
    bring_node_client,
)

pytestmark = pytest.mark.size("test-all")

MakeTopic = Callable[..., str]
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
GO_PROGRAM = """\
package main

import (
\t"context"
\t"crypto/tls"
\t"time"

\t"{module}"
)

var _ = tls.Config{{}}
var _ = time.Second
var _ = context.Background

func main() {{
\t{snippet}
\tif err := send(); err != nil {{
\t\tpanic(err)
\t}}
}}
"""
GO_CLIENTS: Mapping[Client, tuple[Path, str, str]] = {
    "franz-go": (
        FRANZ_GO_SOURCE,
        "github.com/twmb/franz-go/pkg/kgo",
        """\
\tclient, err := kgo.NewClient(options...)
\tif err != nil {
\t\tpanic(err)
\t}
\tsend := func() error {
\t\trecord := &kgo.Record{Topic: "TOPIC", Value: []byte("franz-go")}
\t\treturn client.ProduceSync(context.Background(), record).FirstErr()
\t}
""",
    ),
    "sarama": (
        SARAMA_SOURCE,
        "github.com/IBM/sarama",
        """\
\tconfig.Producer.Return.Successes = true // which its synchronous producer requires
\tproducer, err := sarama.NewSyncProducer(brokers, config)
\tif err != nil {
\t\tpanic(err)
\t}
\tsend := func() error {
\t\tvalue := sarama.StringEncoder("sarama")
\t\t_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: "TOPIC", Value: value})
\t\treturn err
\t}
""",
    ),
    "kafka-go": (
        KAFKA_GO_SOURCE,
        "github.com/segmentio/kafka-go",
        """\
\twriter.Topic = "TOPIC"
\treader.Topic = writer.Topic
\tsend := func() error {
\t\trecord := kafka.Message{Value: []byte("kafka-go")}
\t\tif err := writer.WriteMessages(context.Background(), record); err != nil {
\t\t\treturn err
\t\t}
\t\t_, err := kafka.NewReader(*reader).FetchMessage(context.Background())
\t\treturn err
\t}
""",
    ),
}
"""Where the program is compiled, what it imports, and what it does with the settings: produce a record."""

NODE_PROGRAM = """\
{snippet}
const {{ Kafka, Partitioners }} = require("kafkajs")
const kafka = new Kafka(settings.client)

async function main() {{
  const createPartitioner = Partitioners.DefaultPartitioner
  const producer = kafka.producer({{ ...settings.producer, createPartitioner }})
  await producer.connect()
  await producer.send({{ topic: "{topic}", messages: [{{ value: "kafkajs" }}] }})
  await producer.disconnect()
  const consumer = kafka.consumer({{ groupId: "{topic}", ...settings.consumer }})
  await consumer.connect()
  await consumer.subscribe({{ topic: "{topic}", fromBeginning: true }})
  const received = new Promise(resolve =>
    consumer.run({{ eachMessage: async ({{ message }}) => resolve(message) }}))
  console.log((await received).value.toString())
  await consumer.disconnect()
}}

main().then(() => process.exit())
"""


def client_config(fleet: LocalFleet, client: Client) -> str:
    command = [
        sys.executable,
        "-m",
        "fleet",
        "client-config",
        "--client",
        client,
        "--config",
        str(fleet.config),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert all(each.name in done.stdout for each in CLIENT_SETTINGS[client])
    return done.stdout


def run(*command: str | Path, stdin: str = "", cwd: Path | None = None) -> str:
    """Run a client that must succeed. Returns: its standard error."""
    done = subprocess.run(
        [str(each) for each in command],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_librdkafka_accepts_its_settings(fleet: LocalFleet, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic, file = make_topic(1), tmp_path / "client.conf"
    file.write_text(client_config(fleet, "librdkafka"))
    output = run(KCAT, "-F", file, "-P", "-t", topic, "-p", "0", stdin="librdkafka")
    # Found: on a new cluster the first idempotent producer retries, while the transaction coordinator loads.
    failures = [line for line in output.lower().splitlines() if "failed" in line and "retrying" not in line]
    assert not failures
    assert [each.value() for each in read_all(fleet.bootstrap(), topic, 1, 1)] == [b"librdkafka"]


def test_java_accepts_its_settings(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, file = make_topic(1), tmp_path / "client.properties"
    file.write_text(client_config(fleet, "java"))
    done = kafka.tool(
        CONSOLE_PRODUCER,
        *("--bootstrap-server", fleet.bootstrap(), "--topic", topic, "--command-config", str(file)),
        stdin="java\n",
    )
    assert done.returncode == 0, done.stderr
    assert "unknown config" not in (done.stdout + done.stderr).lower()
    assert [each.value() for each in read_all(fleet.bootstrap(), topic, 1, 1)] == [b"java"]


async def test_aiokafka_accepts_its_settings(fleet: LocalFleet, make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    printed: dict[str, Any] = {}
    exec(await asyncio.to_thread(client_config, fleet, "aiokafka"), printed)
    async with AIOKafkaProducer(**printed["settings"]) as producer:
        await producer.send_and_wait(topic, b"aiokafka")
    async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **printed["settings"]) as consumer:
        record = await asyncio.wait_for(consumer.getone(), LIMIT_S)
    assert record.value == b"aiokafka"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", GO_CLIENTS)
def test_go_client_accepts_its_settings(
    fleet: LocalFleet, make_topic: MakeTopic, tmp_path: Path, client: Client
) -> None:
    topic, program = make_topic(1), tmp_path / "main.go"
    source, module, use = GO_CLIENTS[client]
    snippet = client_config(fleet, client).replace("\n", "\n\t") + use.replace("TOPIC", topic)
    program.write_text(GO_PROGRAM.format(snippet=snippet.strip(), module=module))
    run("go", "run", program, cwd=source)
    assert [each.value() for each in read_all(fleet.bootstrap(), topic, 1, 1)] == [client.encode()]


def test_kafkajs_accepts_its_settings(fleet: LocalFleet, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic, program = make_topic(1), tmp_path / "main.cjs"
    modules = bring_node_client("kafkajs").with_name("node_modules")
    snippet = client_config(fleet, "kafkajs")
    program.write_text(NODE_PROGRAM.format(snippet=snippet, topic=topic))
    done = subprocess.run(
        ["node", str(program)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "NODE_PATH": str(modules)},
    )
    assert done.returncode == 0, done
    assert "kafkajs" in done.stdout.splitlines()
    assert [each.value() for each in read_all(fleet.bootstrap(), topic, 1, 1)] == [b"kafkajs"]
