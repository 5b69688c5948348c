"""A workload's process: aiokafka with an idempotent producer and a group, and its default settings."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import sys
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from fleet.core.errors import DemoError
from fleet.drills.workload.clients import DRAIN_LIMIT_S, WorkloadSpec, properties
from fleet.drills.workload.history import NO_OFFSET, Event, HistoryWriter, Record

_TICK_S = 0.02
CLOSE_LIMIT_S = 20.0


def _say(what: object) -> None:
    print(f"{time.monotonic():.3f} {what}", flush=True)


def _settings(spec: WorkloadSpec) -> dict[str, Any]:
    """Settings of both clients. From a configuration file only `request.timeout.ms` is used."""
    timeout_ms = properties(spec.client_config).get("request.timeout.ms")
    return {
        "bootstrap_servers": spec.bootstrap_servers,
        "client_id": "fleet-chaos-aiokafka",
        **({"request_timeout_ms": int(timeout_ms)} if timeout_ms else {}),
    }


async def _produce(spec: WorkloadSpec, stopping: asyncio.Event) -> None:
    produced, acknowledged, failed = (
        HistoryWriter(spec.path(history)) for history in ("produced", "acknowledged", "failed")
    )
    producer_id = random.getrandbits(63)
    producer = AIOKafkaProducer(enable_idempotence=True, **_settings(spec))
    outstanding: set[asyncio.Future[object]] = set()

    def settle(future: asyncio.Future[object], record: Record, partition: int) -> None:
        outstanding.discard(future)
        error = future.exception()
        offset = NO_OFFSET if error is not None else future.result().offset  # type: ignore[attr-defined]
        if error is not None:
            _say(f"{type(error).__name__}: {error}")
        (acknowledged if error is None else failed).append(Event(time.monotonic(), partition, record, offset))

    await producer.start()
    try:
        started_s = time.monotonic()
        number = 0
        while not stopping.is_set():
            due = int((time.monotonic() - started_s) * spec.rate_per_s)
            while number < due and not stopping.is_set():
                record, partition = Record(producer_id, number // spec.partitions), number % spec.partitions
                given = Event(time.monotonic(), partition, record, NO_OFFSET)
                try:
                    value = record.encode(spec.record_bytes)
                    future = await producer.send(spec.topic, value, partition=partition)
                except KafkaError as error:  # the batches are full until records are acknowledged
                    _say(f"{type(error).__name__}: {error}")
                    break
                outstanding.add(future)
                future.add_done_callback(lambda done, r=record, p=partition: settle(done, r, p))
                produced.append(given)
                number += 1
            for history in (produced, acknowledged, failed):
                history.flush()
            await asyncio.sleep(_TICK_S)
        if outstanding:
            await asyncio.wait(set(outstanding), timeout=DRAIN_LIMIT_S)
        if outstanding:
            raise DemoError(f"{len(outstanding)} records were not acknowledged in time")
    finally:
        await producer.stop()
        for history in (produced, acknowledged, failed):
            history.close()


async def _consume(spec: WorkloadSpec, finishing: asyncio.Event) -> None:
    received = HistoryWriter(spec.path("received"))
    consumer = AIOKafkaConsumer(
        spec.topic, group_id=spec.group, auto_offset_reset="earliest", **_settings(spec)
    )
    await consumer.start()
    next_offset = dict.fromkeys(range(spec.partitions), 0)
    ends: dict[int, int] | None = None
    deadline_s = float("inf")
    try:
        while ends is None or any(next_offset[partition] < high for partition, high in ends.items()):
            try:
                batches = await consumer.getmany(timeout_ms=50)
                if finishing.is_set() and ends is None:
                    deadline_s = min(deadline_s, time.monotonic() + DRAIN_LIMIT_S)
                    places = [TopicPartition(spec.topic, partition) for partition in range(spec.partitions)]
                    ends = {
                        place.partition: high for place, high in (await consumer.end_offsets(places)).items()
                    }
            except KafkaError as error:
                _say(f"{type(error).__name__}: {error}")
                batches = {}
            for messages in batches.values():
                for message in messages:
                    record = Record.decode(message.value)
                    received.append(Event(time.monotonic(), message.partition, record, message.offset))
                    next_offset[message.partition] = message.offset + 1
            received.flush()
            if time.monotonic() > deadline_s:
                raise DemoError(f"the group did not reach the end of the log within {DRAIN_LIMIT_S:.0f} s")
    finally:
        received.close()
        # aiokafka repeats its last commit forever if it loses its coordinator while it closes.
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await consumer.stop()
        except TimeoutError:
            print(f"% the consumer has not closed within {CLOSE_LIMIT_S:.0f} s: left behind", flush=True)


async def _main(spec: WorkloadSpec) -> None:
    stopping, finishing = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with asyncio.TaskGroup() as group:
        group.create_task(_consume(spec, finishing), name="consumer")
        producing = group.create_task(_produce(spec, stopping), name="producer")
        await asyncio.wait([producing])
        finishing.set()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Lines that are only logged begin with %, as librdkafka's do.
    logging.basicConfig(format="%%%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(_main(WorkloadSpec(**json.loads(sys.argv[1]))))
