"""A producer and a consumer group in a process of their own, which record every event.

`Workload` is the handle; `python -m fleet.drills.workload.clients SPEC` is the process. On SIGTERM the
process stops producing, waits for outstanding acknowledgements, consumes to the end of the log, and exits.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from fleet.admin.client_settings import LIBRDKAFKA_TAKEOVER
from fleet.core.errors import ConfigError, DemoError
from fleet.core.file_faults import encoding_fault, read_fault
from fleet.drills.cluster.spawn import end, spawn_module, tail
from fleet.drills.workload.history import NO_OFFSET, Event, HistoryReader, HistoryWriter, Record

ClientSettings = Literal["default", "recommended"]
Acks = Literal["all", "1", "0"]
GroupProtocol = Literal["classic", "consumer"]
CLIENTS: Final = MappingProxyType(
    {
        "default": MappingProxyType({}),
        "recommended": MappingProxyType({each.name: each.value for each in LIBRDKAFKA_TAKEOVER}),
    }
)
"""Settings of librdkafka: its defaults, and the settings that shorten a takeover."""
DRAIN_LIMIT_S = 90.0
REPLICATION_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What a workload produces and consumes, and where it records its histories.

    Args:
        folder: folder of the histories and the log.
        rate_per_s: records per second, spread evenly over the partitions.
        acks: Kafka's `acks` of the producer. Only with "all" the producer is idempotent.
        group_protocol: "consumer" is the protocol of KIP-848.
        keys: number of keys of each partition, which its records use cyclically; 0 for records without keys.
        client_config: a file with further settings of the clients; see `properties`.
    """

    bootstrap_servers: str
    topic: str
    folder: str
    group: str = "fleet-demo"
    partitions: int = 12
    rate_per_s: int = 1200
    record_bytes: int = 200
    client: ClientSettings = "default"
    acks: Acks = "all"
    group_protocol: GroupProtocol = "classic"
    keys: int = 0
    client_config: str = ""

    def path(self, history: str) -> Path:
        return Path(self.folder) / f"{history}.history"

    def client_settings(self) -> dict[str, Any]:
        """Settings that all clients of the workload share."""
        return {
            **CLIENTS[self.client],
            **properties(self.client_config),
            "bootstrap.servers": self.bootstrap_servers,
        }


class Workload:
    """The handle of a workload that runs in its own process. Start it from the main thread.

    Args:
        module: the module that runs in the process: this module, or another that calls `run_workload`.
    """

    def __init__(self, spec: WorkloadSpec, module: str = "fleet.drills.workload.clients") -> None:
        self.spec = spec
        self._module = module
        self.log = Path(spec.folder) / "workload.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start producing and consuming. Raises: DemoError: the process cannot be started."""
        self._process = spawn_module(self._module, json.dumps(asdict(self.spec)), log=self.log)

    def reported(self) -> list[str]:
        """Errors that clients reported to the application. Lines that librdkafka only logs begin with %."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [line for line in lines if not line.startswith("%")]

    def check(self) -> None:
        """Check that the workload runs and delivers. Raises: DemoError: it has ended, or lost a record."""
        failed = next(HistoryReader(self.spec.path("failed")).read(), None)
        if failed is not None:
            reason = KafkaError(failed.offset).str()
            raise DemoError(f"a record of partition {failed.partition} was not delivered: {reason}")
        if self._process is None or self._process.poll() is not None:
            raise DemoError(f"the workload has ended; see {self.log}:\n{tail(self.log)}")

    def stop(self, *, strict: bool = True) -> None:
        """Stop producing, and wait until all outstanding records are delivered and consumed.

        Args:
            strict: whether an undelivered record is an error.
        Raises: DemoError: the workload did not finish in time; its histories are complete up to then.
        """
        if self._process is None:
            return
        if strict:
            self.check()
        end([self._process], patience_s=2 * DRAIN_LIMIT_S)
        code = self._process.returncode
        if code != 0:
            raise DemoError(f"the workload ended with code {code}; see {self.log}:\n{tail(self.log)}")

    def kill(self) -> None:
        """Kill the process at once. Outstanding records are lost."""
        if self._process is not None:
            end([self._process], 0.0)

    def acknowledged(self) -> list[Event]:
        return list(self.acknowledgements().read())

    def received(self) -> list[Event]:
        return list(self.deliveries().read())

    def productions(self) -> HistoryReader:
        """A new reader of the times at which records were passed to the producer."""
        return HistoryReader(self.spec.path("produced"))

    def acknowledgements(self) -> HistoryReader:
        """A new reader of the producer's acknowledgements."""
        return HistoryReader(self.spec.path("acknowledged"))

    def deliveries(self) -> HistoryReader:
        """A new reader of the consumer group's deliveries."""
        return HistoryReader(self.spec.path("received"))


def properties(path: Path | str | None) -> dict[str, str]:
    """Read settings of librdkafka from a file of ``key=value`` lines, and comments that begin with #.

    A file keeps credentials off the command line, where other users can read them.

    Raises: ConfigError: the file cannot be read, or has another kind of line.
    """
    if not path:
        return {}
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        rule, fix = read_fault(error)
        raise ConfigError(f"{path}: {rule}; {fix}") from error
    try:
        lines = raw.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        rule, fix = encoding_fault(raw) or ("is not UTF-8 text", "save it as UTF-8")
        raise ConfigError(f"{path}: {rule}; {fix}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        key, equals, value = line.strip().partition("=")
        if not key or key.startswith("#"):
            continue
        if not equals:
            raise ConfigError(
                f"{path}:{number}: not a key=value line; write one setting of librdkafka on each line"
            )
        found[key.strip()] = value.strip()
    return found


def read_log(
    bootstrap_servers: str, topic: str, limit_s: float = 60.0, *, client_config: str = ""
) -> list[Event]:
    """Read all entries of a topic, each partition in the order of its offsets.

    Records of uncommitted transactions are left out.

    Raises: DemoError: the log cannot be read, or its end was not reached in time.
    """
    reader = Consumer(
        {
            **properties(client_config),
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"{topic}-audit",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,  # the end is after transaction markers, which are not records
            "log_level": 0,
        }
    )
    deadline_s = time.monotonic() + limit_s
    entries: list[Event] = []
    try:
        unread = set(reader.list_topics(topic, 10).topics[topic].partitions)
        reader.assign([TopicPartition(topic, partition, 0) for partition in unread])
        while unread:
            if time.monotonic() > deadline_s:
                raise DemoError(
                    f"the end of partitions {sorted(unread)} was not reached within {limit_s:.0f} s"
                )
            for message in reader.consume(1000, 0.2):
                if message.error() is None:
                    entries.append(_event(message))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise DemoError(f"cannot read the log: {message.error().str()}")
    finally:
        reader.close()
    return entries


def _event(message: Message) -> Event:
    return Event(time.monotonic(), message.partition(), Record.decode(message.value()), message.offset())


# ----------------------------------------------------------------------------------- the workload's process


def produce(spec: WorkloadSpec, stopping: threading.Event) -> None:
    """Produce at a steady rate until `stopping` is set, then wait for outstanding acknowledgements."""
    produced, acknowledged, failed = (
        HistoryWriter(spec.path(history)) for history in ("produced", "acknowledged", "failed")
    )
    producer_id = random.getrandbits(63)
    producer = Producer(
        {
            **spec.client_settings(),
            "enable.idempotence": spec.acks == "all",
            "acks": spec.acks,
            "client.id": f"{spec.topic}-producer",
            "error_cb": report_error,
        }
    )

    def report(record: Record) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            offset = NO_OFFSET if offset is None or offset < 0 else offset
            event = Event(time.monotonic(), message.partition(), record, offset)
            if error is None:
                acknowledged.append(event)
            else:
                report_error(error)
                failed.append(Event(event.at_s, event.partition, record, error.code()))

        return delivered

    started_s = time.monotonic()
    number = 0
    while not stopping.is_set():
        due = int((time.monotonic() - started_s) * spec.rate_per_s)
        while number < due:
            record = Record(producer_id, number // spec.partitions)
            value, partition = record.encode(spec.record_bytes), number % spec.partitions
            key = str(record.sequence % spec.keys) if spec.keys else None
            event = Event(time.monotonic(), partition, record, NO_OFFSET)
            try:
                producer.produce(spec.topic, value, key, partition, on_delivery=report(record))
            except BufferError:  # the queue is full until records are acknowledged
                break
            produced.append(event)
            number += 1
        producer.poll(0.004)
        for history in (produced, acknowledged, failed):
            history.flush()
    outstanding = producer.flush(DRAIN_LIMIT_S)
    for history in (produced, acknowledged, failed):
        history.close()
    if outstanding:
        raise DemoError(f"{outstanding} records were not acknowledged within {DRAIN_LIMIT_S:.0f} s")


def consume(spec: WorkloadSpec, finishing: threading.Event, problems: list[str]) -> None:
    """Consume as a group until `finishing` is set and the end of every partition is reached."""
    received = HistoryWriter(spec.path("received"))
    consumer = Consumer(
        {
            **spec.client_settings(),
            "group.id": spec.group,
            "group.protocol": spec.group_protocol,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "client.id": f"{spec.topic}-consumer",
            "error_cb": report_error,
        }
    )
    consumer.subscribe([spec.topic])
    next_offset = dict.fromkeys(range(spec.partitions), 0)
    deadline_s = float("inf")
    ends: dict[int, int] | None = None
    try:
        while ends is None or any(next_offset[partition] < high for partition, high in ends.items()):
            message = consumer.poll(0.05)
            if message is None:
                pass
            elif message.error() is None:
                received.append(_event(message))
                next_offset[message.partition()] = message.offset() + 1
            elif message.error().code() == KafkaError._PARTITION_EOF:
                # With transactions the end is after a marker, which is not a record.
                next_offset[message.partition()] = max(next_offset[message.partition()], message.offset())
            else:
                report_error(message.error())
            received.flush()
            if finishing.is_set() and ends is None:
                deadline_s = time.monotonic() + DRAIN_LIMIT_S
                ends = ends_of_log(spec)
            if time.monotonic() > deadline_s:
                raise DemoError(f"the group did not reach the end of the log within {DRAIN_LIMIT_S:.0f} s")
        consumer.close()
    except Exception as error:
        problems.append(repr(error))
    finally:
        received.close()


def ends_of_log(spec: WorkloadSpec) -> dict[int, int]:
    """The offset after the last record of each partition.

    An admin client sends the query: on the consumer's connections every answer waits for the long poll before
    it. With acks=1, the high watermark may not have reached an acknowledged record yet. The query is repeated
    for at most `REPLICATION_LIMIT_S`, because a broker may have lost the record.
    """
    client = AdminClient({**spec.client_settings(), "error_cb": report_error})
    latest = {
        TopicPartition(spec.topic, partition): OffsetSpec.latest() for partition in range(spec.partitions)
    }
    acknowledged = {
        event.partition: event.offset for event in HistoryReader(spec.path("acknowledged")).read()
    }
    deadline_s = time.monotonic() + REPLICATION_LIMIT_S
    while True:
        found = client.list_offsets(latest, request_timeout=30)
        ends = {place.partition: answer.result().offset for place, answer in found.items()}
        is_replicated = all(ends[partition] > offset for partition, offset in acknowledged.items())
        if is_replicated or time.monotonic() > deadline_s:
            return ends
        time.sleep(0.05)


def report_error(error: KafkaError) -> None:
    """Print an error with the time, for `Workload.reported`."""
    print(f"{time.monotonic():.3f} {error.str()} ({error.name()})", flush=True)


def run_workload(produce: Callable[[WorkloadSpec, threading.Event], None]) -> int:
    """Run the workload of the command line's one argument until SIGTERM. Returns: the exit code."""
    spec = WorkloadSpec(**json.loads(sys.argv[1]))
    stopping, finishing = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    problems: list[str] = []
    consumer = threading.Thread(target=consume, args=(spec, finishing, problems), name="consumer")
    consumer.start()
    try:
        produce(spec, stopping)
    except Exception as error:
        problems.append(repr(error))
    finishing.set()
    consumer.join()
    for problem in problems:
        print(problem, flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(run_workload(produce))
