"""aiokafka behind the fleet: a separate implementation of the protocol in Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.integration.clients import LIMIT_S

pytestmark = pytest.mark.size("test-all")

PARTITIONS = 12
MakeTopic = Callable[..., str]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 (the condition depends on a client's own tasks)
            await asyncio.sleep(0.02)


@pytest.mark.size("test")
@pytest.mark.proves("aiokafka", "produce", "classic group")
async def test_idempotent_producer_and_group_pass_each_record_once(
    fleet: LocalFleet, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    bootstrap = fleet.bootstrap()
    values = [b"%05d" % number for number in range(300)]
    received: list[ConsumerRecord] = []
    config = {"bootstrap_servers": bootstrap, "group_id": topic, "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer(topic, **config) as one, AIOKafkaConsumer(topic, **config) as other:
        await until(lambda: len(one.assignment()) == len(other.assignment()) == PARTITIONS / 2)
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, acks="all"
        ) as producer:
            sent = [
                await producer.send(topic, value, partition=number % PARTITIONS)
                for number, value in enumerate(values)
            ]
            metadata = await asyncio.wait_for(asyncio.gather(*sent), LIMIT_S)
        assert [each.offset for each in metadata] == [number // PARTITIONS for number in range(len(values))]
        async with asyncio.timeout(LIMIT_S):
            while len(received) < len(values):
                for consumer in (one, other):
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        received += records
        await asyncio.wait_for(asyncio.gather(one.commit(), other.commit()), LIMIT_S)
        committed = [await one.committed(TopicPartition(topic, each)) for each in range(PARTITIONS)]
    assert sorted(each.value for each in received) == values
    assert sum(committed) == len(values)


@pytest.mark.proves("aiokafka", "consume", "transactions")
async def test_transactions_abort_and_commit(fleet: LocalFleet, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    bootstrap = fleet.bootstrap()
    async with asyncio.timeout(LIMIT_S):
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"aborted")
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(topic, b"committed")
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            assert (await consumer.getone()).value == b"committed"


@pytest.mark.proves("aiokafka", "administration", "addresses")
async def test_aiokafka_learns_only_fleet_addresses_of_the_cluster(
    fleet: LocalFleet, kafka: KafkaCluster
) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=fleet.bootstrap())
    async with asyncio.timeout(LIMIT_S):
        await admin.start()
        try:
            described = await admin.describe_cluster()
            resources = [ConfigResource(ConfigResourceType.BROKER, "1")]
            (configs,) = await admin.describe_configs(resources)
        finally:
            await admin.close()
    brokers = {each["node_id"]: Endpoint(each["host"], each["port"]) for each in described["brokers"]}
    assert brokers.keys() == kafka.brokers.keys()
    assert None not in {fleet.owner_of(endpoint) for endpoint in brokers.values()}
    values = {name: value for name, value, *_ in configs.resources[0][4]}
    assert values["node.id"] == "1"
    assert (values["listeners"], values["advertised.listeners"]) == ("", "")
