"""How many records planned moves repeat or reorder, for producers of librdkafka that are not idempotent.

    python -m benchmarks.repeats --drains 20 --json

librdkafka drops a connection with requests in flight when Metadata changes the address of its broker id. A
producer that is not idempotent sends those requests again, whether or not the broker has written them. Here
several such producers work while one member is drained, and undrained; then the log is read from the brokers.
A record that is there twice, after a later record, or not at all is counted for the move during which it was
produced. Exit code 1: a record was lost or given up. Repetitions are the result, not a failure.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import click
from confluent_kafka import Consumer, KafkaError, TopicPartition

from benchmarks.errors import BenchError
from benchmarks.plain_producer import FLUSH_LIMIT_S, HEADER, ProducerReport, Spec
from benchmarks.takeover import Figures, spread
from fleet.admin.client import admin_url
from fleet.admin.client import drain as commit_drain
from fleet.core.errors import FleetError
from fleet.core.model import ProxyId
from fleet.drills.cluster.spawn import end, spawn, spawn_module, tail
from fleet.drills.demo.run import Options, Stage, create_topic, delete_topic, stage
from fleet.drills.demo.view import Lines, milliseconds
from fleet.drills.workload.waiting import in_thread

BROKERS: Final = 4
PARTITIONS: Final = 8
REPLICAS: Final = 3
VICTIM: Final[ProxyId] = "p1"
SETTINGS: Final = MappingProxyType(
    {
        "enable.idempotence": "false",
        "acks": "all",
        "max.in.flight.requests.per.connection": "5",
        "reconnect.backoff.max.ms": "1000",  # so that after the pause each move is like a first one
    }
)
TIMING: Final = MappingProxyType({"rest_after_move_s": 12.0})
WATCH_S: Final = 10.0
"""How long a move is watched: longer than a connection may take to move (`move_timeout_s`)."""
CALM_S: Final = 1.0
WARM_S: Final = 5.0
READ_LIMIT_S: Final = 600.0
SLACK_MS: Final = 500
"""A record that is in flight at a move may have been produced this long before."""

When = Literal["drain", "return"]
Row: TypeAlias = tuple[int, int, int, int]
"""A record of the log: producer, partition, sequence, and when it was produced (wall clock, ms)."""


@dataclass(frozen=True, slots=True)
class Move:
    """One planned move.

    Args:
        at_ms: when it began, on the wall clock.
        stall_ms: the longest interval between two acknowledgements of a partition, of any producer.
        calm_ms: the same in the last seconds, when the move is over.
    """

    when: When
    at_ms: int
    stall_ms: float
    calm_ms: float = 0.0
    twice: int = 0
    out_of_order: int = 0


@dataclass(frozen=True, slots=True)
class LogAnalysis:
    """What the log holds.

    Args:
        twice, out_of_order: by the number of the move, -1 for none; records that repeat an earlier record,
            and
            records whose first copy follows a later record of their producer and partition.
        lost: records that were produced and not given up, and are missing.
    """

    records: int
    twice: Mapping[int, int]
    out_of_order: Mapping[int, int]
    lost: int


@dataclass(frozen=True, slots=True)
class RepeatsResult:
    """The result of all moves; `load` is the machine's average over a minute, before and after."""

    load: tuple[float, float]
    proxies: int
    producers: int
    records_per_s: float
    moves: tuple[Move, ...]
    elsewhere: int
    records: int
    lost: int
    given_up: int
    said: Mapping[str, int]
    cut: int

    @property
    def failed(self) -> bool:
        return self.lost > 0 or self.given_up > 0

    def totals(self) -> dict[str, dict[str, object]]:
        """The totals of the drains, and of the returns."""
        found: dict[str, dict[str, object]] = {}
        for when in ("drain", "return"):
            moves = [each for each in self.moves if each.when == when]
            stalls: Figures = spread([each.stall_ms for each in moves])
            found[when] = {
                "moves": len(moves),
                "moves_that_repeat": sum(each.twice > 0 for each in moves),
                "moves_that_reorder": sum(each.out_of_order > 0 for each in moves),
                "twice": sum(each.twice for each in moves),
                "out_of_order": sum(each.out_of_order for each in moves),
                "stall_ms": asdict(stalls),
                "calm_ms": asdict(spread([each.calm_ms for each in moves])),
            }
        return found

    def document(self) -> dict[str, object]:
        """What `--json` prints."""
        return {**asdict(self), "totals": self.totals()}


def examine(rows: Iterable[Row], seen: Sequence[ProducerReport], begun_ms: Sequence[int]) -> LogAnalysis:
    """Compare the log, each partition in the order of its offsets, with the records of the producers.

    Args:
        seen: by the producer's number.
        begun_ms: when each move began.
    """
    there = {
        (number, partition): bytearray(count)
        for number, each in enumerate(seen)
        for partition, count in enumerate(each.produced)
    }
    newest: dict[tuple[int, int], int] = {}
    twice: dict[int, int] = {}
    late: dict[int, int] = {}
    records = 0
    for number, partition, sequence, at_ms in rows:
        records += 1
        line = (number, partition)
        if there[line][sequence]:
            move = bisect.bisect_right(begun_ms, at_ms + SLACK_MS) - 1
            twice[move] = twice.get(move, 0) + 1
            continue
        there[line][sequence] = 1
        if sequence < newest.get(line, -1):
            move = bisect.bisect_right(begun_ms, at_ms + SLACK_MS) - 1
            late[move] = late.get(move, 0) + 1
        else:
            newest[line] = sequence
    for number, each in enumerate(seen):
        for partition, sequence in each.failed:
            there[number, partition][sequence] = 1
    return LogAnalysis(records, twice, late, sum(each.count(0) for each in there.values()))


def longest_ms(seen: Iterable[ProducerReport], since_s: float, until_s: float) -> float:
    """The longest noted interval without an acknowledgement that ended in a window; 0 where none did."""
    return 1000.0 * max(
        (end_s - begin_s for each in seen for _, begin_s, end_s in each.pauses if since_s <= end_s < until_s),
        default=0.0,
    )


def read_rows(brokers: str, topic: str, partitions: int) -> list[Row]:
    """The whole log, from the brokers themselves. Raises: BenchError: the end was not reached in time."""
    reader = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": f"{topic}-audit",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    rows: list[Row] = []
    limit_s = time.monotonic() + READ_LIMIT_S
    left = set(range(partitions))
    try:
        reader.assign([TopicPartition(topic, partition, 0) for partition in left])
        while left:
            if time.monotonic() > limit_s:
                raise BenchError(f"the end of partitions {sorted(left)} was not reached")
            for message in reader.consume(10_000, 0.5):
                error, partition = message.error(), message.partition() or 0
                if error is None:
                    number, sequence = HEADER.unpack_from(message.value() or b"")
                    rows.append((number, partition, sequence, message.timestamp()[1]))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(partition)
                else:
                    raise BenchError(f"the log cannot be read: {error.str()}")
    finally:
        reader.close()
    return rows


class Producers:
    """Running producers, one process each."""

    def __init__(self, running: Stage, topic: str, count: int, rate_per_s: int) -> None:
        self.topic = topic
        self._specs = [
            Spec(
                number,
                running.fleet.bootstrap(),
                topic,
                PARTITIONS,
                rate_per_s,
                str(running.folder / f"producer-{number}.json"),
                dict(SETTINGS),
            )
            for number in range(count)
        ]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = running.folder / "producers.log"

    def start(self) -> None:
        for spec in self._specs:
            self._processes.append(
                spawn_module("benchmarks.plain_producer", json.dumps(asdict(spec)), log=self._log)
            )

    def check(self) -> None:
        """Raises: BenchError: a producer has ended."""
        if any(each.poll() is not None for each in self._processes):
            raise BenchError(f"a producer has ended:\n{tail(self._log)}")

    def finish(self) -> list[ProducerReport]:
        """Let producers deliver outstanding records. Raises: BenchError: a producer could not."""
        self.check()
        end(self._processes, 2 * FLUSH_LIMIT_S)
        if any(each.returncode for each in self._processes):
            raise BenchError(f"a producer has not delivered all:\n{tail(self._log)}")
        return [ProducerReport(**json.loads(Path(spec.seen).read_text())) for spec in self._specs]

    def kill(self) -> None:
        end(self._processes, 0.0)


@asynccontextmanager
async def at_work(running: Stage, count: int, rate_per_s: int, burners: int) -> AsyncIterator[Producers]:
    """Run producers, and processes that keep the CPU busy."""
    topic = f"fleet-repeats-{time.time_ns() // 1_000_000}"
    await in_thread(partial(create_topic, running.brokers, topic, REPLICAS, PARTITIONS))
    with ExitStack() as stack:
        producers = Producers(running, topic, count, rate_per_s)
        stack.callback(producers.kill)
        producers.start()
        burning = [
            spawn([sys.executable, "-c", "while True: pass"], running.folder / "burner.log")
            for _ in range(burners)
        ]
        stack.callback(end, burning, 0.0)
        await asyncio.sleep(WARM_S)
        producers.check()
        yield producers
        end(burning, 0.0)
    await in_thread(partial(delete_topic, running.brokers, topic))


async def measure(
    running: Stage, drains: int, count: int, rate_per_s: int, burners: int, load: float, view: Lines
) -> RepeatsResult:
    """Drain and undrain a member several times while producers work; then read the log.

    Raises: FleetError: the producers, or the fleet, break.
    """
    fleet = running.fleet
    others = [each for each in fleet.members if each != VICTIM]
    begun: list[tuple[When, int, float]] = []
    steps: tuple[tuple[When, Sequence[ProxyId]], ...] = (("drain", others), ("return", fleet.members))
    async with at_work(running, count, rate_per_s, burners) as producers:
        began_s = time.monotonic()
        for number in range(drains):
            for when, owners in steps:
                since_s = time.monotonic()
                urls = [admin_url(fleet.settings.member(each).admin) for each in owners]
                if when == "drain":
                    begun.append((when, time.time_ns() // 1_000_000, since_s))
                await commit_drain(urls, VICTIM, when == "drain")
                if when == "return":
                    await in_thread(partial(_await_move, running, VICTIM))
                    begun.append((when, time.time_ns() // 1_000_000, time.monotonic()))
                await in_thread(partial(fleet.await_settled, running.broker_ids, owners, 120.0))
                await asyncio.sleep(max(WATCH_S, since_s + WATCH_S - time.monotonic()))
                producers.check()
            view.say(f"{number + 1} of {drains}")
        until_s = time.monotonic()
        seen = await in_thread(producers.finish)
        rows = await in_thread(partial(read_rows, running.brokers, producers.topic, PARTITIONS))
    found = examine(rows, seen, [at_ms for _, at_ms, _ in begun])
    ends_s = [*(at_s for _, _, at_s in begun[1:]), until_s]
    moves = tuple(
        Move(
            when,
            at_ms,
            longest_ms(seen, at_s, end_s - CALM_S),
            longest_ms(seen, end_s - CALM_S, end_s),
            found.twice.get(number, 0),
            found.out_of_order.get(number, 0),
        )
        for number, ((when, at_ms, at_s), end_s) in enumerate(zip(begun, ends_s, strict=True))
    )
    said = Counter(text.partition(": ")[2] or text for each in seen for text in each.said)
    return RepeatsResult(
        (load, os.getloadavg()[0]),
        len(fleet.members),
        count,
        sum(map(sum, (each.produced for each in seen))) / (until_s - began_s + WARM_S),
        moves,
        found.twice.get(-1, 0) + found.out_of_order.get(-1, 0),
        found.records,
        found.lost,
        sum(len(each.failed) for each in seen),
        said,
        sum(fleet.log(each).read_text(errors="replace").count("unanswered") for each in fleet.members),
    )


def _await_move(running: Stage, proxy_id: ProxyId) -> None:
    """Wait until a member owns something."""

    def owns() -> bool:
        document = running.fleet.try_ownership(proxy_id)
        return document is not None and any(proxy_id in each.committed for each in document.identities)

    running.fleet.wait_until(owns, f"{proxy_id} owns something", 120.0)


async def run(options: Options, drains: int, producers: int, rate_per_s: int, burners: int) -> RepeatsResult:
    """Start the fleet and measure."""
    load, view = os.getloadavg()[0], Lines()
    async with stage(options, view) as running:
        return await measure(running, drains, producers, rate_per_s, burners, load, view)


def show(measured: RepeatsResult) -> None:
    """Print the figures as text."""
    for when, total in measured.totals().items():
        stalls = [each.stall_ms for each in measured.moves if each.when == when]
        figures = spread(stalls)
        print(
            f"{total['moves']} {when}s: {total['twice']} records twice ({total['moves_that_repeat']} moves), "
            f"{total['out_of_order']} out of order ({total['moves_that_reorder']} moves); longest interval "
            f"between two acknowledgements {milliseconds(figures.median)} / {milliseconds(figures.worst)}",
            file=sys.stderr,
        )
    print(
        f"{measured.records} records, {measured.records_per_s:.0f} per second, {measured.lost} lost, "
        f"{measured.given_up} given up; load average {measured.load[0]:.1f}, then {measured.load[1]:.1f}",
        file=sys.stderr,
    )


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  python -m benchmarks.repeats --drains 20 --json
  taskset -c 1 python -m benchmarks.repeats --burners 1     on one busy CPU
  python -m benchmarks.repeats --proxies 3                  two members give identities back at a time
""",
)
@click.option("--drains", type=click.IntRange(1), default=20, show_default=True, help="Number of drains.")
@click.option("--proxies", type=click.IntRange(2), default=2, show_default=True, help="Members.")
@click.option("--producers", type=click.IntRange(1), default=4, show_default=True, help="Producers.")
@click.option(
    "--rate",
    type=click.IntRange(20),
    default=2000,
    show_default=True,
    help="Records per second of each producer.",
)
@click.option(
    "--burners", type=click.IntRange(0), default=0, show_default=True, help="Processes that only use CPU."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def main(drains: int, proxies: int, producers: int, rate: int, burners: int, as_json: bool) -> None:
    """Drain and undrain a member while producers that are not idempotent work; count repetitions."""
    options = Options(proxies=proxies, brokers_count=BROKERS, timing=TIMING)
    try:
        measured = asyncio.run(run(options, drains, producers, rate, burners))
    except FleetError as error:
        sys.exit(f"repeats: {error}")
    show(measured)
    if as_json:
        print(json.dumps(measured.document()))
    if measured.failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
