"""A producer of aiokafka with its own source address, which sends more to some partitions than to others.

`python -m tests.long.skewed SPEC` is its process. SIGTERM makes it wait for what is outstanding; it then
prints the number of acknowledged records, and ends with 1 if a record was refused.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from asyncio import Future
from collections import Counter
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

_TICK_S = 0.05
_VALUE = b"." * 500


class SourceAddressLoop(asyncio.SelectorEventLoop):
    """An event loop whose connections all come from one address: Kafka's clients have no setting for it."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self._host = host

    async def create_connection(self, *arguments: Any, **options: Any) -> Any:
        return await super().create_connection(*arguments, **options, local_addr=(self._host, 0))


async def produce(
    bootstrap: str, topic: str, rate_per_s: float, parts: list[float], seed: int
) -> Counter[str]:
    """Produce until SIGTERM. Returns: the outcomes of the records.

    Args:
        parts: the share of each partition, in any unit.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    chance = random.Random(seed)
    found: Counter[str] = Counter()
    outstanding: set[Future[Any]] = set()

    def settle(future: Future[Any]) -> None:
        outstanding.discard(future)
        error = future.exception()
        found["acknowledged" if error is None else repr(error)] += 1

    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    await producer.start()
    try:
        began_s, sent = loop.time(), 0
        while not stopping.is_set():
            due = int((loop.time() - began_s) * rate_per_s)
            for partition in chance.choices(range(len(parts)), parts, k=due - sent):
                try:
                    future = await producer.send(topic, _VALUE, partition=partition)
                except KafkaError as error:
                    found[repr(error)] += 1
                else:
                    outstanding.add(future)
                    future.add_done_callback(settle)
            sent = due
            await asyncio.sleep(_TICK_S)
        while outstanding:
            await asyncio.wait(outstanding)
    finally:
        await producer.stop()
    return found


def main() -> int:
    host, *spec = json.loads(sys.argv[1])
    with asyncio.Runner(loop_factory=lambda: SourceAddressLoop(host)) as runner:
        found = runner.run(produce(*spec))
    print(json.dumps(found))
    return 0 if set(found) == {"acknowledged"} else 1


if __name__ == "__main__":
    sys.exit(main())
