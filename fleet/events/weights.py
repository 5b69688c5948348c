"""Reads the weight of each identity from a compacted topic, once or continuously.

The pipeline computes the weights. Weights of other fleets, and records that are not weights, are ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Final, TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from fleet.core.errors import AdminError
from fleet.core.event_schema import EVENTS, WEIGHTS, WeightEvent
from fleet.core.model import BrokerId, Endpoint
from fleet.runtime.resolving_loop import run
from fleet.runtime.threads import RestartingThread
from fleet.tls.broker_credentials import CLIENT_ERRORS, KafkaAccess

log = logging.getLogger(__name__)

Weights: TypeAlias = Mapping[BrokerId, float]

READ_LIMIT_S: Final = 30.0
"""Time limit for reading the current weights."""
POLL_LIMIT_S: Final = 1.0
BACKOFF_S: Final = 5.0


async def read_weights(servers: Sequence[Endpoint], access: KafkaAccess, prefix: str, fleet: str) -> Weights:
    """Return the current weights; none if the topic does not exist.

    Raises: AdminError: the brokers do not answer.
    """
    try:
        async with asyncio.timeout(READ_LIMIT_S):
            async for weights in _follow(servers, access, prefix, fleet):
                return weights
    except (KafkaError, *CLIENT_ERRORS) as error:
        where = ", ".join(map(str, servers))
        raise AdminError(f"{where}: cannot read the weights: {type(error).__name__}: {error}") from error
    raise AssertionError("_follow ended without an error")


class WeightReader:
    """Reads weights continuously, in a thread of its own.

    Args:
        servers: returns addresses of brokers; called in the thread before each attempt to connect.
        access: credentials and TLS settings for the brokers.
        prefix: prefix of the topic name.
        fleet: name of the fleet whose weights are read.
        on_weights: called in the thread with all weights, whenever some have changed.
    """

    def __init__(
        self,
        servers: Callable[[], Sequence[Endpoint]],
        access: KafkaAccess,
        prefix: str,
        fleet: str,
        on_weights: Callable[[Weights], None],
    ) -> None:
        self._servers = servers
        self._access = access
        self._prefix = prefix
        self._fleet = fleet
        self._on_weights = on_weights
        self._cancel: Callable[[], object] = lambda: None
        """Cancels the reading task; any thread may call it."""
        self._thread = RestartingThread("weights", lambda: run(self._main()))

    @property
    def restarts(self) -> int:
        """How often the thread has failed and was started again."""
        return self._thread.restarts

    def start(self) -> None:
        self._thread.start()

    def stop(self, limit_s: float) -> None:
        """End the thread; blocks for at most `limit_s`."""
        self._thread.stopping.set()
        with suppress(RuntimeError):  # the event loop is closed: the task has ended
            self._cancel()
        self._thread.stop(limit_s)

    async def _main(self) -> None:
        following = asyncio.create_task(self._follow_for_ever())
        self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, following.cancel)
        if self._thread.stopping.is_set():  # `stop` ran before there was a task to cancel
            following.cancel()
        await asyncio.wait([following])
        if not self._thread.stopping.is_set():
            following.result()

    async def _follow_for_ever(self) -> None:
        trouble = ""
        while True:
            try:
                async for weights in _follow(self._servers(), self._access, self._prefix, self._fleet):
                    self._on_weights(weights)
                    trouble = ""
            except (KafkaError, *CLIENT_ERRORS) as error:
                now = f"{type(error).__name__}: {error}"
                if now != trouble:
                    log.warning("cannot read the weights: %s", now)
                trouble = now
            await asyncio.sleep(BACKOFF_S)


async def _follow(
    servers: Sequence[Endpoint], access: KafkaAccess, prefix: str, fleet: str
) -> AsyncIterator[Weights]:
    """Yield all weights after the current end of the topic is read, and again after each new batch.

    Raises: KafkaError, and the errors in CLIENT_ERRORS.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=[str(each) for each in servers],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **access.options(),
    )
    found: dict[BrokerId, float] = {}
    try:
        await consumer.start()
        topic = prefix + WEIGHTS
        if topic not in await consumer.topics():  # subscribing by name may create the topic
            yield {}
            return
        consumer.subscribe([topic])
        ends: dict[TopicPartition, int] = {}
        caught_up = False
        while True:
            batches = await consumer.getmany(timeout_ms=round(POLL_LIMIT_S * 1000))
            for record in chain.from_iterable(batches.values()):
                event = _weight(record.value)
                if event is not None and event.fleet == fleet:
                    found[event.broker_id] = event.weight
            if caught_up:
                if batches:
                    yield dict(found)
                continue
            ends = ends or await consumer.end_offsets(consumer.assignment())
            caught_up = bool(ends) and all(
                [await consumer.position(each) >= end for each, end in ends.items()]
            )
            if caught_up:
                yield dict(found)
    finally:
        await _stop(consumer)


async def _stop(consumer: AIOKafkaConsumer) -> None:
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        # The consumer cancels a task of its own and awaits it. That would hide the error that ended the work.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise


def _weight(value: bytes | None) -> WeightEvent | None:
    """Decode a record; None if it is not a weight."""
    try:
        event = EVENTS.decode(value or b"")
    except ValueError:
        return None
    return event if isinstance(event, WeightEvent) else None
