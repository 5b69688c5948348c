"""Kafka's verifiable clients in Java: each runs in a virtual machine and prints JSON lines for its records.

Start them from the main thread (see `fleet.drills.cluster.spawn`).
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from fleet.core.errors import DemoError
from fleet.drills.cluster.kafka import java
from fleet.drills.cluster.kafka_jars import CHECKOUT_LIBS
from fleet.drills.cluster.spawn import end, spawn
from fleet.drills.workload.clients import DRAIN_LIMIT_S, WorkloadSpec, ends_of_log, properties
from fleet.drills.workload.history import NO_OFFSET, Event, HistoryWriter, Record

Line = dict[str, Any]

_HEAP = ("-Xms32m", "-Xmx128m")
_EVERY_S = 0.05
_IDEMPOTENT: Final = MappingProxyType(
    {
        "enable.idempotence": "true",
        "retries": str(2**31 - 1),  # the tool sets 0
        "partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner",
    }
)
_LOGGING = """\
status=ERROR
appender.console.type=Console
appender.console.name=console
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%%%d{ISO8601} %-5p %c{1} %m %throwable{short.message}%n
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
"""
"""Lines that a client only logs begin with %, as librdkafka's do."""


class Tool:
    """A running verifiable client.

    Args:
        name: class in `org.apache.kafka.tools`.
        settings: settings of the client; its configuration file overrides them.
    """

    def __init__(
        self,
        name: str,
        spec: WorkloadSpec,
        *arguments: str,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._name = name
        folder = Path(spec.folder)
        logging, config = folder / "log4j2.properties", folder / f"{name}.properties"
        logging.write_text(_LOGGING)
        tool_properties = {**settings, **properties(spec.client_config)}
        config.write_text("".join(f"{key}={value}\n" for key, value in tool_properties.items()))
        command = java(CHECKOUT_LIBS, logging, *_HEAP, f"org.apache.kafka.tools.{name}")
        command += ["--bootstrap-server", spec.bootstrap_servers, "--topic", spec.topic]
        command += ["--command-config", str(config), *arguments]
        self._process = spawn(command, folder / "workload.log", piped=True)
        self._closed = False
        self._reading = threading.Thread(target=self._read, name=name, daemon=True)
        self._reading.start()

    def check(self) -> None:
        """Check the tool. Raises: DemoError: the tool has ended, or a line is not valid."""
        if not self._reading.is_alive():
            raise DemoError(f"{self._name} has ended")

    def stop(self) -> None:
        """Let the tool close its client. Raises: DemoError: the client is not closed in time."""
        end([self._process], DRAIN_LIMIT_S)
        self._reading.join()
        if not self._closed:
            raise DemoError(f"{self._name} did not close its client within {DRAIN_LIMIT_S:.0f} s")

    def take(self, line: Line) -> None:
        """Process a printed event. Called in a thread."""
        raise NotImplementedError

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            self._closed = self._closed or line["name"] == "shutdown_complete"
            self.take(line)


class Producer(Tool):
    """An idempotent producer that spreads its records evenly over the partitions."""

    def __init__(self, spec: WorkloadSpec) -> None:
        self._acknowledged = HistoryWriter(spec.path("acknowledged"))
        self._failed = HistoryWriter(spec.path("failed"))
        self._stopping = False
        arguments = ["--throughput", str(spec.rate_per_s), "--value-prefix", str(random.getrandbits(31))]
        super().__init__("VerifiableProducer", spec, *arguments, settings=_IDEMPOTENT)

    def stop(self) -> None:
        self._stopping = True
        super().stop()

    def take(self, line: Line) -> None:
        if line["name"] == "producer_send_success":
            self._acknowledged.append(_event(line))
            self._acknowledged.flush()
        elif line["name"] == "producer_send_error" and not self._comes_too_late(line):
            _say(f"{line['exception']}: {line['message']}")
            self._failed.append(_event({**line, "partition": 0, "offset": NO_OFFSET}))
            self._failed.flush()

    def _comes_too_late(self, line: Line) -> bool:
        """Whether the tool used its client again after closing it."""
        return self._stopping and line["exception"] == "class java.lang.IllegalStateException"


class Member(Tool):
    """A consumer, the only member of its group."""

    def __init__(self, name: str, spec: WorkloadSpec, *arguments: str) -> None:
        self._spec = spec
        self._received = HistoryWriter(spec.path("received"))
        self._offsets: dict[int, set[int]] = {partition: set() for partition in range(spec.partitions)}
        super().__init__(name, spec, "--group-id", spec.group, "--verbose", *arguments)

    def stop(self) -> None:
        """Consume the whole log, and close the client. Raises: DemoError: the time is over."""
        ends, deadline_s = ends_of_log(self._spec), time.monotonic() + DRAIN_LIMIT_S
        while any(len(self._offsets[partition]) < high for partition, high in ends.items()):
            self.check()
            if time.monotonic() > deadline_s:
                raise DemoError(f"the group did not get the whole log within {DRAIN_LIMIT_S:.0f} s")
            time.sleep(_EVERY_S)
        super().stop()

    def take(self, line: Line) -> None:
        if line["name"] == "record_data":
            self._received.append(_event(line))
            self._offsets[line["partition"]].add(line["offset"])
        elif line["name"] == "records_consumed":
            self._received.flush()
        elif not line.get("success", True):
            _say(f"{line['name']}: {line.get('error', 'it failed')}")


def _event(line: Line) -> Event:
    """The event of a printed line. Its wall-clock time is converted to the monotonic clock."""
    at_s = line["timestamp"] / 1000.0 - time.time() + time.monotonic()
    return Event(at_s, line["partition"], Record.decode(line["value"].encode()), line["offset"])


def _say(what: str) -> None:
    print(f"{time.monotonic():.3f} {what}", flush=True)
