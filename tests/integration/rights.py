"""Everything that ACLs may allow or deny, tried by foreign clients.

Outcomes are text: Kafka's code of the error, 0 where there was none, and of "list" the topics that are seen.
So those of librdkafka, of aiokafka and of Java (Rights.java does the same) can be compared with one another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.integration.clients import LIMIT_S

OPEN, CLOSED = "open", "closed"
"""Topics. The first one has a record in partition 0."""
OWN, FOREIGN = "mine", "theirs"
"""Prefixes of groups, new topics and transactions that principals may use, or may not use."""
PUBLIC = "anybodys"
"""The prefix of groups for everyone: without a group librdkafka does not report what it may not read."""
Outcomes: TypeAlias = Mapping[str, str]

_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID = "29", "30", "31", "53"
"""…_AUTHORIZATION_FAILED. Source: Errors.java"""

EXPECTED: Final[Mapping[str, Outcomes]] = {
    # May do everything with OPEN and with objects whose names begin with OWN, and nothing else.
    "app": {
        "produce open": "0",
        "produce closed": _TOPIC,
        "fetch open": "0",
        "fetch closed": _TOPIC,
        "configs open": "0",
        "configs closed": _TOPIC,
        "configs broker": _CLUSTER,
        "group mine": "0",
        "group theirs": _GROUP,
        "create mine": "0",
        "create theirs": _TOPIC,
        "transaction mine": "0",
        "transaction theirs": _TRANSACTIONAL_ID,
        "delete closed": _TOPIC,
        "list": OPEN,
    },
    # May read OPEN.
    "guest": {
        "produce open": _TOPIC,
        "produce closed": _TOPIC,
        "fetch open": "0",
        "fetch closed": _TOPIC,
        "configs open": _TOPIC,
        "configs closed": _TOPIC,
        "configs broker": _CLUSTER,
        "group mine": _GROUP,
        "group theirs": _GROUP,
        "create mine": _TOPIC,
        "create theirs": _TOPIC,
        "transaction mine": _TRANSACTIONAL_ID,
        "transaction theirs": _TRANSACTIONAL_ID,
        "delete closed": _TOPIC,
        "list": OPEN,
    },
}
"""The expected outcomes by principal."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a client: a password or a token.

    Args: trusted: the authority of a listener with TLS; None for one without.
    """

    mechanism: str
    username: str
    secret: str
    trusted: Path | None = None

    @property
    def librdkafka(self) -> dict[str, Any]:
        common: dict[str, Any] = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": self.mechanism}
        if self.trusted is not None:
            common |= {"security.protocol": "SASL_SSL", "ssl.ca.location": str(self.trusted)}
        common["log_level"] = 0  # denials are expected here
        if self.mechanism == "OAUTHBEARER":
            # librdkafka requests a token repeatedly until one has a lifetime.
            return {**common, "oauth_cb": lambda _: (self.secret, 2**32)}
        return {**common, "sasl.username": self.username, "sasl.password": self.secret}

    @property
    def aiokafka(self) -> dict[str, Any]:
        common: dict[str, Any] = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": self.mechanism,
        }
        if self.mechanism == "OAUTHBEARER":
            return {**common, "sasl_oauth_token_provider": _Token(self.secret)}
        return {**common, "sasl_plain_username": self.username, "sasl_plain_password": self.secret}


class _Token(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


# ------------------------------------------------------------------------------------------------ librdkafka


def by_librdkafka(name: str, bootstrap: str, credentials: Credentials) -> Outcomes:
    """Try everything. `name` makes the names of created objects unique."""
    config = {"bootstrap.servers": bootstrap, **credentials.librdkafka}
    admin = AdminClient(config)

    def produce(topic: str) -> None:
        failed: list[Any] = []
        producer = Producer(config)
        producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(LIMIT_S) == 0
        if failed[0] is not None:
            raise KafkaException(failed[0])

    def consume(topic: str, group: str) -> None:
        consumer = Consumer(
            {**config, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        consumer.subscribe([topic])
        try:
            message = consumer.poll(LIMIT_S)
            assert message is not None, "neither a record nor an error"
            if message.error() is not None:
                raise KafkaException(message.error())
            consumer.commit(message, asynchronous=False)
        finally:
            consumer.close()

    def create(own: str) -> None:
        admin.create_topics([NewTopic(own, 1, 1)])[own].result(LIMIT_S)

    def transaction(own: str) -> None:
        Producer({**config, "transactional.id": own}).init_transactions(LIMIT_S)

    def configs(kind: ResourceType, of: str) -> None:
        (described,) = admin.describe_configs([ConfigResource(kind, of)]).values()
        described.result(LIMIT_S)

    attempts: dict[str, Callable[[], object]] = {}
    for topic in (OPEN, CLOSED):
        attempts[f"produce {topic}"] = partial(produce, topic)
        attempts[f"fetch {topic}"] = partial(consume, topic, f"{PUBLIC}-{name}-{topic}")
        attempts[f"configs {topic}"] = partial(configs, ResourceType.TOPIC, topic)
    for owner_name in (OWN, FOREIGN):
        own = f"{owner_name}-{name}"
        attempts[f"group {owner_name}"] = partial(consume, OPEN, own)
        attempts[f"create {owner_name}"] = partial(create, own)
        attempts[f"transaction {owner_name}"] = partial(transaction, own)
    attempts["configs broker"] = lambda: configs(ResourceType.BROKER, "1")
    attempts["delete closed"] = lambda: admin.delete_topics([CLOSED])[CLOSED].result(LIMIT_S)
    outcomes = {}
    for operation, attempt in attempts.items():
        try:
            attempt()
            outcomes[operation] = "0"
        except KafkaException as error:
            outcomes[operation] = str(error.args[0].code())
    outcomes["list"] = _seen(admin.list_topics(timeout=LIMIT_S).topics)
    return outcomes


def _seen(topics: Any) -> str:
    return ",".join(sorted({OPEN, CLOSED}.intersection(topics)))


# -------------------------------------------------------------------------------------------------- aiokafka


async def by_aiokafka(name: str, bootstrap: str, credentials: Credentials) -> Outcomes:
    """The same attempts as `by_librdkafka`."""
    config = {"bootstrap_servers": bootstrap, **credentials.aiokafka}

    async def produce(topic: str) -> int:
        async with AIOKafkaProducer(**config) as producer:
            await producer.send_and_wait(topic, b"x", partition=0)
        return 0

    async def fetch(topic: str) -> int:
        # Without a group: a consumer with assigned partitions waits forever if it may not read them.
        async with AIOKafkaConsumer(topic, **config, auto_offset_reset="earliest") as consumer:
            await consumer.getone()
        return 0

    async def group(own: str) -> int:
        options = {"group_id": own, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with AIOKafkaConsumer(OPEN, **config, **options) as consumer:
            await consumer.getone()
            await consumer.commit()
        return 0

    async def create(own: str) -> int:
        answer = await admin.create_topics([AioNewTopic(own, 1, 1)])
        return int(answer.topic_errors[0][1])

    async def transaction(own: str) -> int:
        async with AIOKafkaProducer(**config, transactional_id=own):
            return 0

    async def configs(kind: ConfigResourceType, of: str) -> int:
        (answer,) = await admin.describe_configs([AioConfigResource(kind, of)])
        return int(answer.resources[0][0])

    async def delete() -> int:
        answer = await admin.delete_topics([CLOSED])
        return int(answer.topic_error_codes[0][1])

    outcomes: dict[str, str] = {}

    async def report(operation: str, attempt: Awaitable[int]) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                outcomes[operation] = str(await attempt)
        except AioError as error:
            outcomes[operation] = str(error.errno)

    admin = AIOKafkaAdminClient(**config)
    await admin.start()
    try:
        for topic in (OPEN, CLOSED):
            await report(f"produce {topic}", produce(topic))
            await report(f"fetch {topic}", fetch(topic))
            await report(f"configs {topic}", configs(ConfigResourceType.TOPIC, topic))
        for owner_name in (OWN, FOREIGN):
            await report(f"group {owner_name}", group(f"{owner_name}-{name}"))
            await report(f"create {owner_name}", create(f"{owner_name}-{name}"))
            await report(f"transaction {owner_name}", transaction(f"{owner_name}-{name}"))
        await report("configs broker", configs(ConfigResourceType.BROKER, "1"))
        await report("delete closed", delete())
        outcomes["list"] = _seen(await admin.list_topics())
    finally:
        await admin.close()
    return outcomes
