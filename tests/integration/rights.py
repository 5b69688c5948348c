"""All that ACLs may allow or deny, tried by clients that nobody here wrote.

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
"""Topics; the former has a record in partition 0."""
MINE, THEIRS = "mine", "theirs"
"""How groups, new topics and transactions of theirs are called that principals may, and may not, use."""
ANYBODYS = "anybodys"
"""How groups are called that everybody may use: without one librdkafka does not tell what it may not read."""
Outcomes: TypeAlias = Mapping[str, str]

_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID = "29", "30", "31", "53"
"""…_AUTHORIZATION_FAILED. Source: Errors.java"""

EXPECTED: Final[Mapping[str, Outcomes]] = {
    # May do everything with OPEN and with what is called MINE, and nothing else.
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
"""By principal."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """How somebody proves who it is: with a password, or with a token.

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
        common["log_level"] = 0  # being denied is what this is about
        if self.mechanism == "OAUTHBEARER":
            # It is asked for as long as the token is not said to last.
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
    """Try everything; `name` makes what is created unlike anybody else's."""
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
        attempts[f"fetch {topic}"] = partial(consume, topic, f"{ANYBODYS}-{name}-{topic}")
        attempts[f"configs {topic}"] = partial(configs, ResourceType.TOPIC, topic)
    for whose in (MINE, THEIRS):
        own = f"{whose}-{name}"
        attempts[f"group {whose}"] = partial(consume, OPEN, own)
        attempts[f"create {whose}"] = partial(create, own)
        attempts[f"transaction {whose}"] = partial(transaction, own)
    attempts["configs broker"] = lambda: configs(ResourceType.BROKER, "1")
    attempts["delete closed"] = lambda: admin.delete_topics([CLOSED])[CLOSED].result(LIMIT_S)
    outcomes = {}
    for what, attempt in attempts.items():
        try:
            attempt()
            outcomes[what] = "0"
        except KafkaException as error:
            outcomes[what] = str(error.args[0].code())
    outcomes["list"] = _seen(admin.list_topics(timeout=LIMIT_S).topics)
    return outcomes


def _seen(topics: Any) -> str:
    return ",".join(sorted({OPEN, CLOSED}.intersection(topics)))


# -------------------------------------------------------------------------------------------------- aiokafka


async def by_aiokafka(name: str, bootstrap: str, credentials: Credentials) -> Outcomes:
    """As `by_librdkafka`."""
    config = {"bootstrap_servers": bootstrap, **credentials.aiokafka}

    async def produce(topic: str) -> int:
        async with AIOKafkaProducer(**config) as producer:
            await producer.send_and_wait(topic, b"x", partition=0)
        return 0

    async def fetch(topic: str) -> int:
        # Without a group; one that is assigned partitions by hand waits for ever where it may not read them.
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

    async def tell(what: str, attempt: Awaitable[int]) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                outcomes[what] = str(await attempt)
        except AioError as error:
            outcomes[what] = str(error.errno)

    admin = AIOKafkaAdminClient(**config)
    await admin.start()
    try:
        for topic in (OPEN, CLOSED):
            await tell(f"produce {topic}", produce(topic))
            await tell(f"fetch {topic}", fetch(topic))
            await tell(f"configs {topic}", configs(ConfigResourceType.TOPIC, topic))
        for whose in (MINE, THEIRS):
            await tell(f"group {whose}", group(f"{whose}-{name}"))
            await tell(f"create {whose}", create(f"{whose}-{name}"))
            await tell(f"transaction {whose}", transaction(f"{whose}-{name}"))
        await tell("configs broker", configs(ConfigResourceType.BROKER, "1"))
        await tell("delete closed", delete())
        outcomes["list"] = _seen(await admin.list_topics())
    finally:
        await admin.close()
    return outcomes
