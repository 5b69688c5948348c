"""A producer and a consumer group, in a process of their own, that write down all they see.

`Workload` is the handle; `python -m fleet.drills.workload.clients SPEC` is the process. SIGTERM makes it stop
producing, wait for what is outstanding, consume to the end of the log, and exit.
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
"""librdkafka's settings that go through a takeover faster than its defaults, and its defaults."""
DRAIN_LIMIT_S = 90.0
REPLICATION_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What to produce and consume, and where to write it down.

    Args:
        rate_per_s: records per second, spread evenly over the partitions.
        acks: whom the producer waits for; it is idempotent with "all", and not otherwise.
        group_protocol: "consumer" is that of KIP-848.
        keys: how many keys each partition has, which its records take in turn; 0 for records without one.
        folder: where the histories and the log go.
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
        """What all its clients have in common."""
        return {
            **CLIENTS[self.client],
            **properties(self.client_config),
            "bootstrap.servers": self.bootstrap_servers,
        }


class Workload:
    """The handle on a workload that runs in its own process; start it from the main thread.

    Args:
        module: what runs there: this one, or another that ends with `work`.
    """

    def __init__(self, spec: WorkloadSpec, module: str = "fleet.drills.workload.clients") -> None:
        self.spec = spec
        self._module = module
        self.log = Path(spec.folder) / "workload.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start to produce and consume. Raises: DemoError: the process cannot be started."""
        self._process = spawn_module(self._module, json.dumps(asdict(self.spec)), log=self.log)

    def reported(self) -> list[str]:
        """The errors that clients have reported to the application; what they only log begins with %."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [line for line in lines if not line.startswith("%")]

    def check(self) -> None:
        """Raises: DemoError: the workload has ended, or a record could not be delivered."""
        failed = next(HistoryReader(self.spec.path("failed")).read(), None)
        if failed is not None:
            reason = KafkaError(failed.offset).str()
            raise DemoError(f"the producer was refused a record of partition {failed.partition}: {reason}")
        if self._process is None or self._process.poll() is not None:
            raise DemoError(f"the workload has ended; see {self.log}:\n{tail(self.log)}")

    def stop(self, *, strict: bool = True) -> None:
        """Let it deliver and consume what is outstanding, and end.

        Args:
            strict: whether a record that could not be delivered is an error.
        Raises: DemoError: it could not, in time; its histories hold what was seen up to then.
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
        """End it at once, whatever is outstanding."""
        if self._process is not None:
            end([self._process], 0.0)

    def acknowledged(self) -> list[Event]:
        return list(self.acknowledgements().read())

    def received(self) -> list[Event]:
        return list(self.deliveries().read())

    def productions(self) -> HistoryReader:
        """A reader of its own over when each record was given to the producer."""
        return HistoryReader(self.spec.path("produced"))

    def acknowledgements(self) -> HistoryReader:
        """A reader of its own over the producer's history."""
        return HistoryReader(self.spec.path("acknowledged"))

    def deliveries(self) -> HistoryReader:
        """A reader of its own over the consumer group's history."""
        return HistoryReader(self.spec.path("received"))


def properties(path: Path | str | None) -> dict[str, str]:
    """Settings of librdkafka out of a file: ``key=value`` lines, and comments that begin with #.

    In a file, because what clients authenticate with is nobody else's business.

    Raises: ConfigError: it cannot be read, or is something else.
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
                f"{path}:{number}: is no key=value; write one setting of librdkafka on each line"
            )
        found[key.strip()] = value.strip()
    return found


def read_log(
    bootstrap_servers: str, topic: str, limit_s: float = 60.0, *, client_config: str = ""
) -> list[Event]:
    """All entries of a topic, read at the end, each partition in the order of its offsets.

    Of a transaction, those that are committed.

    Raises: DemoError: the end of the log was not reached in time.
    """
    reader = Consumer(
        {
            **properties(client_config),
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"{topic}-audit",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,  # behind the markers of transactions, which are no records
            "log_level": 0,
        }
    )
    deadline_s = time.monotonic() + limit_s
    entries: list[Event] = []
    try:
        open_ = set(reader.list_topics(topic, 10).topics[topic].partitions)
        reader.assign([TopicPartition(topic, partition, 0) for partition in open_])
        while open_:
            if time.monotonic() > deadline_s:
                raise DemoError(
                    f"the end of partitions {sorted(open_)} was not reached within {limit_s:.0f} s"
                )
            for message in reader.consume(1000, 0.2):
                if message.error() is None:
                    entries.append(_event(message))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    open_.discard(message.partition())
                else:
                    raise DemoError(f"the log cannot be read: {message.error().str()}")
    finally:
        reader.close()
    return entries


def _event(message: Message) -> Event:
    return Event(time.monotonic(), message.partition(), Record.decode(message.value()), message.offset())


# ----------------------------------------------------------------------------------- the workload's process


def produce(spec: WorkloadSpec, stopping: threading.Event) -> None:
    """Produce at a steady rate until told to stop, then wait for every outstanding acknowledgement."""
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
            "error_cb": say,
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
                say(error)
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
            given = Event(time.monotonic(), partition, record, NO_OFFSET)
            try:
                producer.produce(spec.topic, value, key, partition, on_delivery=report(record))
            except BufferError:  # the queue is full for as long as nothing is acknowledged
                break
            produced.append(given)
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
    """Consume as a group until told to finish and the end of every partition is reached."""
    received = HistoryWriter(spec.path("received"))
    consumer = Consumer(
        {
            **spec.client_settings(),
            "group.id": spec.group,
            "group.protocol": spec.group_protocol,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "client.id": f"{spec.topic}-consumer",
            "error_cb": say,
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
                # With transactions the end is behind a marker, which is no record.
                next_offset[message.partition()] = max(next_offset[message.partition()], message.offset())
            else:
                say(message.error())
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
    """The offset behind the last record of each partition.

    Not asked of the consumer: on its connections every answer waits for the long poll before it. What was
    acknowledged with acks=1 may not be below the high watermark yet that the brokers tell, and is waited for;
    not for ever, because a broker may have lost it.
    """
    client = AdminClient({**spec.client_settings(), "error_cb": say})
    wanted = {
        TopicPartition(spec.topic, partition): OffsetSpec.latest() for partition in range(spec.partitions)
    }
    acknowledged = {
        event.partition: event.offset for event in HistoryReader(spec.path("acknowledged")).read()
    }
    deadline_s = time.monotonic() + REPLICATION_LIMIT_S
    while True:
        found = client.list_offsets(wanted, request_timeout=30)
        ends = {place.partition: answer.result().offset for place, answer in found.items()}
        whole = all(ends[partition] > offset for partition, offset in acknowledged.items())
        if whole or time.monotonic() > deadline_s:
            return ends
        time.sleep(0.05)


def say(error: KafkaError) -> None:
    print(f"{time.monotonic():.3f} {error.str()} ({error.name()})", flush=True)


def work(produce: Callable[[WorkloadSpec, threading.Event], None]) -> int:
    """Run the workload that the one argument describes, until SIGTERM. Returns: the exit code."""
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
    sys.exit(work(produce))
