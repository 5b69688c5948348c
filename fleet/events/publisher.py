"""Brings events to Kafka, in a thread of its own: whoever tells of something is never held up.

    memory (bounded) ──► spool on disk (bounded) ──► the topics

What does not fit is dropped and counted. An event is forgotten once Kafka has acknowledged it, so each one
arrives at least once; some arrive twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from fleet.core.errors import SpoolError
from fleet.core.event_schema import EXPENDABLE
from fleet.core.model import Endpoint
from fleet.events.progress import EventsView
from fleet.events.spool import Record, Spool, Spooled
from fleet.events.topics import TOPICS, make_missing
from fleet.runtime.resolving_loop import run
from fleet.runtime.threads import RestartingThread
from fleet.tls.broker_credentials import CLIENT_ERRORS, KafkaAccess

log = logging.getLogger(__name__)

Part: TypeAlias = Literal["stored", "sent"]

QUEUE_LIMIT: Final = 10_000
"""Records in memory, on their way to the disk."""
EXPENDABLE_LIMIT: Final = QUEUE_LIMIT // 2
"""Up to how many those of expendable topics are taken: the rest is for the others."""
STORE_EVERY_S: Final = 0.1
BATCH: Final = 500
DELIVERY_LIMIT_S: Final = 30.0
"""For one batch; then the connection is given up."""
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_LIMIT_S: Final = 30.0


class Publisher:
    """See the module.

    Args:
        client_id: what the brokers see.
        servers: where to find them, asked before each attempt to connect; called in the thread.
        access: how they let this member in.
        prefix: of the topics.
        replication_factor: of topics that have to be made; None for as many as there are brokers, but three
            at most.
    """

    def __init__(
        self,
        client_id: str,
        servers: Callable[[], Sequence[Endpoint]],
        access: KafkaAccess,
        prefix: str,
        spool: Path,
        spool_bytes: int,
        replication_factor: int | None = None,
    ) -> None:
        self._client_id = client_id
        self._servers = servers
        self._access = access
        self._prefix = prefix
        self._path = spool
        self._spool_bytes = spool_bytes
        self._replication_factor = replication_factor
        self._queue: deque[Record] = deque()
        self._overflow = 0
        self._progress = EventsView()
        self._troubles: dict[Part, str] = {}
        self._dropped_before = 0
        """By spools that are closed."""
        self._thread = RestartingThread("events", lambda: run(self._main()))

    @property
    def progress(self) -> EventsView:
        return self._progress

    @property
    def restarts(self) -> int:
        """How often the thread has ended by an error, and was started again."""
        return self._thread.restarts

    def start(self) -> None:
        self._thread.start()

    def put(self, records: Iterable[Record]) -> None:
        """Send records, sometime. Never blocks; from one thread at a time."""
        for record in records:
            if len(self._queue) < (EXPENDABLE_LIMIT if record.topic in EXPENDABLE else QUEUE_LIMIT):
                self._queue.append(record)
            else:
                self._overflow += 1

    def drop(self, count: int) -> None:
        """Count records that nobody has made, for there were too many."""
        self._overflow += count

    def stop(self, limit_s: float) -> None:
        """Bring what there is to the disk, and end; blocks. What Kafka has not got waits for the next start.

        Args:
            limit_s: for how long it may block.
        """
        self._thread.stop(limit_s)

    # -- in the thread -------------------------------------------------------------------------------------

    async def _main(self) -> None:
        while True:
            try:
                with Spool(self._path, self._spool_bytes, EXPENDABLE) as spool:
                    return await self._serve(spool)
            except SpoolError as error:
                self._trouble("stored", str(error))
                if self._thread.stopping.is_set():
                    return None
                await asyncio.sleep(BACKOFF_FIRST_S)

    async def _serve(self, spool: Spool) -> None:
        """Store and send until the end. Raises: SpoolError."""
        stored = asyncio.Event()
        sending = asyncio.create_task(self._send_for_ever(spool, stored))
        try:
            while not (self._thread.stopping.is_set() or sending.done()):
                self._store(spool)
                stored.set()
                await asyncio.sleep(STORE_EVERY_S)
            self._store(spool)
        finally:
            self._dropped_before += spool.dropped
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending

    def _store(self, spool: Spool) -> None:
        """Bring what waits in memory to the disk. Raises: SpoolError: it stays in memory."""
        taken = list(self._queue)
        if taken:
            spool.append(taken)
            for _ in taken:
                self._queue.popleft()
        self._trouble("stored", "")
        dropped = self._overflow + self._dropped_before + spool.dropped
        self._progress = replace(self._progress, waiting=spool.waiting, dropped=dropped)

    async def _send_for_ever(self, spool: Spool, stored: asyncio.Event) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                async with self._producer() as producer:
                    while True:
                        batch = spool.oldest(BATCH)
                        if batch:
                            await self._deliver(producer, batch)
                            spool.forget(batch[-1].number)
                            backoff_s = BACKOFF_FIRST_S
                            self._trouble("sent", "")
                            sent = self._progress.sent + len(batch)
                            self._progress = replace(self._progress, sent=sent, waiting=spool.waiting)
                        else:
                            stored.clear()
                            await stored.wait()
            except (KafkaError, *CLIENT_ERRORS) as error:
                self._trouble("sent", f"{type(error).__name__}: {error}")
            except SpoolError:
                raise
            except Exception as error:  # events are stored all the same, and sent later
                log.exception("events cannot be sent, for a reason that was not foreseen")
                self._trouble("sent", f"{type(error).__name__}: {error}")
            await asyncio.sleep(backoff_s)
            backoff_s = min(BACKOFF_LIMIT_S, 2 * backoff_s)

    @asynccontextmanager
    async def _producer(self) -> AsyncIterator[AIOKafkaProducer]:
        """A producer, and topics for it. Raises: KafkaError, and what is in CLIENT_ERRORS."""
        servers, options = [str(endpoint) for endpoint in self._servers()], self._access.options()
        admin = AIOKafkaAdminClient(bootstrap_servers=servers, client_id=self._client_id, **options)
        try:
            async with asyncio.timeout(DELIVERY_LIMIT_S):
                await admin.start()
                brokers = len((await admin.describe_cluster())["brokers"])
                await make_missing(admin, TOPICS, self._prefix, self._replication_factor or min(3, brokers))
        finally:
            await admin.close()
        producer = AIOKafkaProducer(
            bootstrap_servers=servers, client_id=self._client_id, enable_idempotence=True, **options
        )
        try:
            async with asyncio.timeout(DELIVERY_LIMIT_S):
                await producer.start()
            yield producer
        finally:
            # It would wait for what it cannot deliver, which the spool still has.
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await producer.stop()

    async def _deliver(self, producer: AIOKafkaProducer, batch: Sequence[Spooled]) -> None:
        async with asyncio.timeout(DELIVERY_LIMIT_S):
            sent = [
                await producer.send(self._prefix + each.record.topic, each.record.value, each.record.key)
                for each in batch
            ]
            await asyncio.gather(*sent)

    def _trouble(self, part: Part, text: str) -> None:
        """Note what keeps a part from working, or that nothing does any more."""
        before = self._progress.trouble
        self._troubles[part] = text
        now = "; ".join(filter(None, self._troubles.values()))
        self._progress = replace(self._progress, trouble=now)
        if now and now != before:
            log.warning("events cannot be %s: %s", part, text)
        elif before and not now:
            log.info("events are stored and sent again")
