"""How often one client requests Metadata, and which addresses it gets: a librdkafka producer of its own."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Sequence, Set
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaException, Producer

from fleet.core.errors import DemoError
from fleet.core.model import Endpoint
from fleet.drills.workload.clients import CLIENTS, ClientSettings

STATISTICS_EVERY_MS: Final = 20
RECORD_EVERY_S: Final = 0.01
FLUSH_LIMIT_S: Final = 30.0
START_LIMIT_S: Final = 30.0
API: Final = "Metadata"
_BROKER: Final = re.compile(r"Broker #(\d+)/\d+: (\S+):(\d+) NodeId")


class ResponseLog(logging.Handler):
    """Reads the brokers of each Metadata response from librdkafka's debug log."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[set[Endpoint]] = []
        """The addresses in each response, in the order of arrival."""

    def emit(self, record: logging.LogRecord) -> None:
        if found := _BROKER.search(record.getMessage()):
            index, host, port = found.groups()
            if index == "0":
                self.seen.append(set())
            self.seen[-1].add(Endpoint(host, int(port)))


class MetadataRequestCounter:
    """A producer that writes to all partitions in turn, and counts its Metadata requests.

    Args:
        client: which of librdkafka's settings it has.
    """

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int, client: ClientSettings) -> None:
        self._topic = topic
        self._partitions = partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="refreshes")
        self.requests = 0
        """All Metadata requests, up to ``STATISTICS_EVERY_MS`` ago."""
        self._delivered = 0
        self._error: Exception | None = None
        self._answers = ResponseLog()
        logger = logging.Logger("refreshes")
        logger.addHandler(self._answers)
        self._producer = Producer(
            {
                **CLIENTS[client],
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "statistics.interval.ms": STATISTICS_EVERY_MS,
                "stats_cb": self._note,
                "debug": "metadata",
            },
            logger=logger,
        )

    @property
    def answers(self) -> Sequence[Set[Endpoint]]:
        """The addresses in each Metadata response so far."""
        return self._answers.seen

    def __enter__(self) -> Self:
        self._thread.start()
        # Requests at the start of the client do not belong to a takeover.
        deadline_s = time.monotonic() + START_LIMIT_S
        while not (self._delivered and self.requests):
            if time.monotonic() >= deadline_s or not self._thread.is_alive():
                raise DemoError(
                    f"the client that counts its Metadata requests delivers nothing: {self._error}"
                )
            time.sleep(STATISTICS_EVERY_MS / 1000)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        if left := self._producer.flush(FLUSH_LIMIT_S):
            raise KafkaException(f"{left} records of the Metadata-counting client are not delivered")

    def _note(self, statistics: str) -> None:
        self.requests = requests_in(json.loads(statistics))

    def _note_delivery(self, error: object, message: object) -> None:
        self._delivered += error is None

    def _work(self) -> None:
        number = 0
        try:
            while not self._stop.wait(RECORD_EVERY_S):
                partition = number % self._partitions
                self._producer.produce(
                    self._topic, b"?", partition=partition, on_delivery=self._note_delivery
                )
                self._producer.poll(0)
                number += 1
        except Exception as error:
            self._error = error


def requests_in(statistics: dict[str, Any]) -> int:
    """The Metadata requests to all brokers, in one document of librdkafka's statistics."""
    return sum(broker["req"].get(API, 0) for broker in statistics["brokers"].values())
