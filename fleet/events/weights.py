"""What the pipeline has found each identity to weigh: read from its compacted topic, once or for ever.

The weights of another fleet, and what is no weight, are passed over.
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
"""For all that there is now."""
POLL_S: Final = 1.0
BACKOFF_S: Final = 5.0


async def read_weights(servers: Sequence[Endpoint], access: KafkaAccess, prefix: str, fleet: str) -> Weights:
    """The weights that there are now; none where there is no such topic.

    Raises: AdminError: the brokers do not answer.
    """
    try:
        async with asyncio.timeout(READ_LIMIT_S):
            async for weights in _follow(servers, access, prefix, fleet):
                return weights
    except (KafkaError, *CLIENT_ERRORS) as error:
        where = ", ".join(map(str, servers))
        raise AdminError(f"weights cannot be read at {where}: {type(error).__name__}: {error}") from error
    raise AssertionError("it goes on for ever")


class WeightReader:
    """Follows the topic, in a thread of its own.

    Args:
        servers: where to find brokers, asked before each attempt to connect; called in the thread.
        access: how they let this member in.
        prefix: of the topic.
        on_weights: is given all of them, each time some have changed; called in the thread.
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
        """Ends the work that runs now; for any thread."""
        self._thread = RestartingThread("weights", lambda: run(self._main()))

    @property
    def restarts(self) -> int:
        """How often the thread has ended by an error, and was started again."""
        return self._thread.restarts

    def start(self) -> None:
        self._thread.start()

    def stop(self, limit_s: float) -> None:
        """End; blocks, for so many seconds at most."""
        self._thread.stopping.set()
        with suppress(RuntimeError):  # its loop is closed: the work has ended
            self._cancel()
        self._thread.stop(limit_s)

    async def _main(self) -> None:
        following = asyncio.create_task(self._follow_for_ever())
        self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, following.cancel)
        if self._thread.stopping.is_set():  # before there was something to cancel
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
                    log.warning("weights cannot be read: %s", now)
                trouble = now
            await asyncio.sleep(BACKOFF_S)


async def _follow(
    servers: Sequence[Endpoint], access: KafkaAccess, prefix: str, fleet: str
) -> AsyncIterator[Weights]:
    """All weights, once what is there has been read, and again whenever some have come.

    Raises: KafkaError, and what is in CLIENT_ERRORS.
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
        if topic not in await consumer.topics():  # whoever asks for it by name may have it made
            yield {}
            return
        consumer.subscribe([topic])
        ends: dict[TopicPartition, int] = {}
        caught_up = False
        while True:
            batches = await consumer.getmany(timeout_ms=round(POLL_S * 1000))
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
        # The consumer cancels a task of its own, awaits that, and would hide the error that ended the work.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise


def _weight(value: bytes | None) -> WeightEvent | None:
    """What a record says; None where that is no weight."""
    try:
        event = EVENTS.decode(value or b"")
    except ValueError:
        return None
    return event if isinstance(event, WeightEvent) else None
