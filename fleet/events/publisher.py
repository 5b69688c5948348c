"""Sends events to Kafka, in a thread of its own, so that the caller never waits.

    memory (bounded) ──► spool on disk (bounded) ──► the topics

The publisher drops and counts records that do not fit. It forgets an event after Kafka has acknowledged it,
so each event arrives at least once, and some arrive twice.
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
from fleet.events.topics import TOPICS, create_missing
from fleet.runtime.resolving_loop import run
from fleet.runtime.threads import RestartingThread
from fleet.tls.broker_credentials import CLIENT_ERRORS, KafkaAccess

log = logging.getLogger(__name__)

Stage: TypeAlias = Literal["stored", "sent"]

QUEUE_LIMIT_RECORDS: Final = 10_000
"""Records that may wait in memory for the disk."""
EXPENDABLE_LIMIT_RECORDS: Final = QUEUE_LIMIT_RECORDS // 2
"""Records in memory above which expendable topics are dropped: the rest is for the other topics."""
STORE_PERIOD_S: Final = 0.1
BATCH_RECORDS: Final = 500
DELIVERY_LIMIT_S: Final = 30.0
"""Time limit for one batch; after it the publisher closes the connection."""
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_LIMIT_S: Final = 30.0


class Publisher:
    """Stores records in the spool and sends them; see the module.

    Args:
        client_id: client id that the brokers see.
        servers: returns addresses of brokers; called in the thread before each attempt to connect.
        access: credentials and TLS settings for the brokers.
        prefix: prefix of the topic names.
        spool: path of the spool's file.
        spool_bytes: greatest size of that file.
        replication_factor: replicas of the topics that this member creates; None for the number of brokers,
            but at most three.
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
        self._troubles: dict[Stage, str] = {}
        self._dropped_before = 0
        """Records that closed spools have dropped."""
        self._thread = RestartingThread("events", lambda: run(self._main()))

    @property
    def progress(self) -> EventsView:
        return self._progress

    @property
    def restarts(self) -> int:
        """How often the thread has failed and was started again."""
        return self._thread.restarts

    def start(self) -> None:
        self._thread.start()

    def put(self, records: Iterable[Record]) -> None:
        """Queue records for sending. Never blocks. Only one thread at a time may call this method."""
        for record in records:
            limit = EXPENDABLE_LIMIT_RECORDS if record.topic in EXPENDABLE else QUEUE_LIMIT_RECORDS
            if len(self._queue) < limit:
                self._queue.append(record)
            else:
                self._overflow += 1

    def drop(self, count: int) -> None:
        """Add records to the number of dropped ones that the caller could not create: there were too many."""
        self._overflow += count

    def stop(self, limit_s: float) -> None:
        """Store all queued records on the disk and end the thread; blocks.

        Records that Kafka has not acknowledged stay in the spool for the next start.

        Args:
            limit_s: longest time to block.
        """
        self._thread.stop(limit_s)

    # -- in the thread -------------------------------------------------------------------------------------

    async def _main(self) -> None:
        while True:
            try:
                with Spool(self._path, self._spool_bytes, EXPENDABLE) as spool:
                    return await self._serve(spool)
            except SpoolError as error:
                self._set_trouble("stored", str(error))
                if self._thread.stopping.is_set():
                    return None
                await asyncio.sleep(BACKOFF_FIRST_S)

    async def _serve(self, spool: Spool) -> None:
        """Store and send records until the thread is stopped. Raises: SpoolError."""
        stored = asyncio.Event()
        sending = asyncio.create_task(self._send_for_ever(spool, stored))
        try:
            while not (self._thread.stopping.is_set() or sending.done()):
                self._store(spool)
                stored.set()
                await asyncio.sleep(STORE_PERIOD_S)
            self._store(spool)
        finally:
            self._dropped_before += spool.dropped
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending

    def _store(self, spool: Spool) -> None:
        """Move the queued records to the disk. Raises: SpoolError: the records stay in memory."""
        queued = list(self._queue)
        if queued:
            spool.append(queued)
            for _ in queued:
                self._queue.popleft()
        self._set_trouble("stored", "")
        dropped = self._overflow + self._dropped_before + spool.dropped
        self._progress = replace(self._progress, waiting=spool.waiting, dropped=dropped)

    async def _send_for_ever(self, spool: Spool, stored: asyncio.Event) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                async with self._producer() as producer:
                    while True:
                        batch = spool.oldest(BATCH_RECORDS)
                        if batch:
                            await self._deliver(producer, batch)
                            spool.forget(batch[-1].number)
                            backoff_s = BACKOFF_FIRST_S
                            self._set_trouble("sent", "")
                            sent = self._progress.sent + len(batch)
                            self._progress = replace(self._progress, sent=sent, waiting=spool.waiting)
                        else:
                            stored.clear()
                            await stored.wait()
            except (KafkaError, *CLIENT_ERRORS) as error:
                self._set_trouble("sent", f"{type(error).__name__}: {error}")
            except SpoolError:
                raise
            except Exception as error:  # events are still stored, and sent later
                log.exception("cannot send events: unexpected error")
                self._set_trouble("sent", f"{type(error).__name__}: {error}")
            await asyncio.sleep(backoff_s)
            backoff_s = min(BACKOFF_LIMIT_S, 2 * backoff_s)

    @asynccontextmanager
    async def _producer(self) -> AsyncIterator[AIOKafkaProducer]:
        """Create the missing topics and yield a producer.

        Raises: KafkaError, and the errors in CLIENT_ERRORS.
        """
        servers, options = [str(endpoint) for endpoint in self._servers()], self._access.options()
        admin = AIOKafkaAdminClient(bootstrap_servers=servers, client_id=self._client_id, **options)
        try:
            async with asyncio.timeout(DELIVERY_LIMIT_S):
                await admin.start()
                brokers = len((await admin.describe_cluster())["brokers"])
                await create_missing(admin, TOPICS, self._prefix, self._replication_factor or min(3, brokers))
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
            # The producer would wait for records that it cannot deliver. The spool still has these records.
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

    def _set_trouble(self, stage: Stage, text: str) -> None:
        """Record why a stage does not work; an empty text means that it works."""
        before = self._progress.trouble
        self._troubles[stage] = text
        now = "; ".join(filter(None, self._troubles.values()))
        self._progress = replace(self._progress, trouble=now)
        if now and now != before:
            log.warning("events cannot be %s: %s", stage, text)
        elif before and not now:
            log.info("events are stored and sent again")
