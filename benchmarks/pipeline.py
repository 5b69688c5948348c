"""The throughput of the data pipeline, compared with a bare count of the same records, and its state.

    python -m benchmarks.pipeline throughput --json     jobs and a bare count, over the same topics, in turn
    python -m benchmarks.pipeline scaling --json        the same work on one core, and on two, from Parquet
    python -m benchmarks.pipeline stream --minutes 30 --json    a steady stream: state and delay

The benchmark starts a Kafka broker of its own, and makes its own records: there is no fleet. No figure
includes the start of Spark. The first round warms up, and does not count either.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import click
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fleet.core import event_schema
from fleet.core.event_schema import TrafficEvent
from fleet.core.traffic import ApiTraffic
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.pipeline.audit import audit, by_record
from fleet.pipeline.jobs import JOBS, Site, finish, start_ledger, start_load
from fleet.pipeline.kafka_source import produce
from fleet.pipeline.load import Traffic, minutes
from fleet.pipeline.observations import EVENTS, LedgerEntry
from fleet.pipeline.parse import parse_kind
from fleet.pipeline.streams import Kafka, read_records, session
from tests.chaos.seeded.command import say

PREFIX: Final = "bench."
PARTITIONS: Final = 6
IDENTITIES: Final = 60
MEMBERS: Final = 6
BEGIN_MS: Final = 1_790_000_000_000
GOALS: Final = {"traffic": 0.6, "ledger": 0.4}
SCALING_GOAL: Final = 1.4
FILES: Final = 8
"""Files of a replay: several for each core."""


# -- records -------------------------------------------------------------------------------------------------


def traffic(seconds: int, begin_ms: int = BEGIN_MS) -> Iterator[bytes]:
    """The events of a fleet's members in some seconds: one a second, for each member and identity."""
    chance = random.Random(1)
    apis = {
        key: ApiTraffic(chance.randrange(5_000), 3, 1_200, 9_000, {30: 1, 41: 2}) for key in (0, 1, 3, 18)
    }
    for second in range(seconds):
        at_ms = begin_ms + 1000 * second
        for number in range(MEMBERS * IDENTITIES):
            member, broker_id = f"p{number % MEMBERS + 1}", number // MEMBERS
            yield event_schema.EVENTS.encode(
                TrafficEvent(
                    id=f"bench/traffic/{member}/0-4711-19fa/{at_ms}/external/{broker_id}",
                    fleet="bench",
                    told_by=member,
                    listener="external",
                    broker_id=broker_id,
                    at_ms=at_ms,
                    period_ms=1000,
                    opened=2,
                    connections=40,
                    bytes_to_broker=chance.randrange(1_000_000),
                    bytes_to_client=chance.randrange(1_000_000),
                    in_flight_peak=4,
                    apis=apis,
                    clients={"orders-1": 2, "prices-7": 1},
                    requests=sum(each.requests for each in apis.values()),
                )
            )


def ledger(numbers: range, begin_ms: int = BEGIN_MS) -> Iterator[bytes]:
    """The history of some records: for each an acknowledgement, a delivery and an entry of the log."""
    for place, number in enumerate(numbers):
        partition, sequence = number % 12, number // 12
        for what in ("acknowledged", "received", "log"):
            at_us = 1000 * begin_ms + 500 * place
            entry = LedgerEntry("orders", what, partition, 1, sequence, sequence, number, at_us)
            yield EVENTS.encode(entry)


@contextmanager
def cluster() -> Iterator[tuple[KafkaCluster, Path]]:
    """One broker with the topics of the jobs, and a folder next to it."""
    with (
        tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder,
        KafkaCluster(1, Path(folder, "kafka")) as kafka,
    ):
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        topics = (*dict.fromkeys(event_schema.TOPICS.values()), event_schema.OBSERVATIONS)
        made = admin.create_topics([NewTopic(PREFIX + name, PARTITIONS, 1) for name in topics])
        for future in made.values():
            future.result(30)
        yield kafka, Path(folder)


def fill(kafka: KafkaCluster, topic: str, values: Iterator[bytes]) -> int:
    client = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 3, "compression.type": "lz4"}
    return produce(client, ((PREFIX + topic, None, value) for value in values))


# -- throughput ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Throughput:
    """One job.

    Args:
        records: in its topic.
        per_s, count_per_s: records a second, of the job and of a bare count; medians.
        ratio: of the two, the median of the rounds; `least_ratio` is the least of them.
    """

    job: str
    records: int
    per_s: float
    count_per_s: float
    ratio: float
    least_ratio: float
    goal: float


def count(spark: SparkSession, site: Site, topic: str) -> None:
    """The least that a stream can do with the records of a topic."""
    read = read_records(spark, site.kafka, [PREFIX + topic], streaming=True)
    counted = read.groupBy().count().writeStream.outputMode("complete").format("noop")
    finish(counted.option("checkpointLocation", site.checkpoint("count")).trigger(availableNow=True).start())


def load(spark: SparkSession, site: Site) -> None:
    finish(start_load(spark, site, True))


def run_audit(spark: SparkSession, site: Site) -> None:
    """Run the job, and audit its output."""
    finish(start_ledger(spark, site, True))
    found = by_record(spark.read.parquet(site.ledger).drop("day")).persist()
    (verdict,) = audit(found).collect()
    found.unpersist()
    assert (verdict.lost, verdict.duplicated, verdict.out_of_order) == (0, 0, 0), verdict


def measure_throughput(rounds: int, amount: int) -> list[Throughput]:
    with cluster() as (kafka, folder):
        say(f"making {amount} events of traffic, and {amount} entries of a ledger")
        seconds = -(-amount // (MEMBERS * IDENTITIES))
        filled = {
            "traffic": fill(kafka, "traffic", traffic(seconds)),
            "ledger": fill(kafka, event_schema.OBSERVATIONS, ledger(range(amount // 3))),
        }
        spark = session("local[2]")
        numbers = iter(range(1_000))

        def took_s(work: Callable[[SparkSession, Site], None]) -> float:
            site = Site(Kafka(kafka.bootstrap_servers), PREFIX, str(folder / f"out-{next(numbers)}"))
            since_s = time.monotonic()
            work(spark, site)
            return time.monotonic() - since_s

        jobs: Mapping[str, Callable[[SparkSession, Site], None]] = {"traffic": load, "ledger": run_audit}
        topics = {"traffic": "traffic", "ledger": event_schema.OBSERVATIONS}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
        try:
            for number in range(rounds + 1):
                for name, work in jobs.items():
                    bare_s = took_s(partial(count, topic=topics[name]))
                    job_s = took_s(work)
                    say(f"round {number}, {name}: {job_s:.1f} s, a count {bare_s:.1f} s")
                    if number:
                        times[name].append((job_s, bare_s))
        finally:
            spark.stop()
    return [_throughput(name, filled[name], times[name]) for name in jobs]


def _throughput(name: str, filled: int, times: list[tuple[float, float]]) -> Throughput:
    ratios = [bare_s / job_s for job_s, bare_s in times]
    job_s, bare_s = (statistics.median(each) for each in zip(*times, strict=True))
    return Throughput(
        name, filled, filled / job_s, filled / bare_s, statistics.median(ratios), min(ratios), GOALS[name]
    )


# -- scaling -------------------------------------------------------------------------------------------------


def read_load(spark: SparkSession, place: str) -> DataFrame:
    """The work of the job `load`, on events in files."""
    return minutes(parse_kind(spark.read.parquet(place), "traffic", Traffic))


def replay(master: str, place: str, rounds: int) -> list[float]:
    """Run the job several times in this process. Returns: seconds of each run but the first."""
    spark = session(master)
    times = []
    try:
        for _ in range(rounds + 1):
            since_s = time.monotonic()
            read_load(spark, place).write.format("noop").mode("overwrite").save()
            times.append(time.monotonic() - since_s)
    finally:
        spark.stop()
    return times[1:]


def measure_scaling(rounds: int, amount: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder:
        say(f"making {amount} events of traffic")
        values = traffic(-(-amount // (MEMBERS * IDENTITIES)))
        for number in range(FILES):
            table = pa.table({"value": pa.array(islice(values, -(-amount // FILES)), pa.binary())})
            pq.write_table(table, Path(folder, f"{number}.parquet"))
        times = {}
        for cores in (1, 2):
            again = ["replay-alone", f"local[{cores}]", folder, str(rounds)]
            command = [sys.executable, "-m", "benchmarks.pipeline", *again]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            times[cores] = json.loads(done.stdout.splitlines()[-1])
            say(f"local[{cores}]: {', '.join(f'{each:.1f} s' for each in times[cores])}")
    one_s, two_s = (statistics.median(times[cores]) for cores in (1, 2))
    return {
        "records": amount,
        "per_s": {1: amount / one_s, 2: amount / two_s},
        "scaling": one_s / two_s,
        "goal": SCALING_GOAL,
    }


# -- a stream ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamSample:
    """The jobs at one moment.

    Args:
        behind_s: the age of the newest record when its batch was done, of the slowest job.
        state_rows, state_bytes: the state of all jobs together.
        driver_bytes: the resident memory of Spark's process.
    """

    at_s: float
    records: int
    behind_s: float
    state_rows: int
    state_bytes: int
    driver_bytes: int


def measure_stream(minutes_: float, per_s: int) -> dict[str, object]:
    """Run a steady stream for a while.

    Args:
        per_s: entries of the ledger; of traffic there is one for each member and identity.
    """
    samples: list[StreamSample] = []
    with cluster() as (kafka, folder):
        stop = threading.Event()
        written = [0]
        feeder = threading.Thread(target=_write_records, args=(kafka, per_s, stop, written))
        spark = session("local[2]")
        site = Site(Kafka(kafka.bootstrap_servers), PREFIX, str(folder / "out"))
        names = ("load", "ledger", "weights")
        driver = _driver()
        queries: dict[str, StreamingQuery] = {}
        feeder.start()
        try:
            queries = {name: JOBS[name](spark, site, False) for name in names}
            began_s = time.monotonic()
            while time.monotonic() - began_s < 60 * minutes_:
                time.sleep(min(60.0, 6 * minutes_))
                for query in queries.values():
                    if (error := query.exception()) is not None:
                        raise error
                samples.append(
                    _sample_stream(queries, time.monotonic() - began_s, written[0], driver.memory_info().rss)
                )
                say(str(samples[-1]))
        finally:
            stop.set()
            feeder.join()
            for query in queries.values():
                query.stop()
            spark.stop()
    half = len(samples) // 2
    return {
        "minutes": minutes_,
        "records": written[0],
        "per_s": written[0] / (60 * minutes_),
        "behind_s": {
            "median": statistics.median(each.behind_s for each in samples),
            "most": max(each.behind_s for each in samples),
        },
        "state_bytes": {
            "first_half": max(each.state_bytes for each in samples[:half]),
            "second_half": max(each.state_bytes for each in samples[half:]),
        },
        "looks": [asdict(each) for each in samples],
    }


def _driver() -> psutil.Process:
    """Spark's process; it is a child of this one, as Kafka's is."""
    (driver,) = [
        each for each in psutil.Process().children() if any("SparkSubmit" in word for word in each.cmdline())
    ]
    return driver


def _write_records(kafka: KafkaCluster, per_s: int, stop: threading.Event, written: list[int]) -> None:
    """Write the records of each second when the second is over, until the stop event."""
    second = 0
    began_s, began_ms = time.monotonic(), round(time.time() * 1000)
    while not stop.wait(max(0.0, began_s + second - time.monotonic())):
        at_ms = began_ms + 1000 * second
        written[0] += fill(kafka, "traffic", traffic(1, at_ms))
        numbers = range(second * per_s // 3, (second + 1) * per_s // 3)
        written[0] += fill(kafka, event_schema.OBSERVATIONS, ledger(numbers, at_ms))
        second += 1


def _sample_stream(
    queries: Mapping[str, StreamingQuery], at_s: float, written: int, driver_bytes: int
) -> StreamSample:
    progress = [query.lastProgress for query in queries.values() if query.lastProgress is not None]
    state = [part for each in progress for part in each["stateOperators"]]
    behind = [_behind_s(queries[name]) for name in ("load", "ledger")]
    return StreamSample(
        round(at_s, 1),
        written,
        round(max(behind), 1),
        sum(part["numRowsTotal"] for part in state),
        sum(part["memoryUsedBytes"] for part in state),
        driver_bytes,
    )


def _behind_s(query: StreamingQuery) -> float:
    """At most the time since the last batch with records began: all earlier records are processed."""
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    if not batches:
        return 0.0
    return float(batches[-1]["durationMs"]["triggerExecution"]) / 1000


# -- the command ---------------------------------------------------------------------------------------------


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Measure the data pipeline."""


_rounds = click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
_records = click.option(
    "--records", "amount", type=click.IntRange(10_000), default=600_000, show_default=True
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")


@main.command()
@_rounds
@_records
@_json
def throughput(rounds: int, amount: int, as_json: bool) -> None:
    """Compare the jobs with a bare count of the same records."""
    found = measure_throughput(rounds, amount)
    for each in found:
        say(
            f"{each.job}: {each.per_s:,.0f} records/s, a count {each.count_per_s:,.0f}; "
            f"ratio {each.ratio:.2f}, least {each.least_ratio:.2f} (goal {each.goal})"
        )
    if as_json:
        print(json.dumps([asdict(each) for each in found]))


@main.command()
@_rounds
@_records
@_json
def scaling(rounds: int, amount: int, as_json: bool) -> None:
    """Compare the job `load` on one core and on two."""
    found = measure_scaling(rounds, amount)
    say(f"{found['scaling']:.2f} times as fast on two cores (goal {SCALING_GOAL})")
    if as_json:
        print(json.dumps(found))


@main.command(hidden=True)
@click.argument("master")
@click.argument("place")
@click.argument("rounds", type=int)
def replay_alone(master: str, place: str, rounds: int) -> None:
    print(json.dumps(replay(master, place, rounds)))


@main.command()
@click.option("--minutes", "minutes_", type=click.FloatRange(0.5), default=30.0, show_default=True)
@click.option("--per-s", type=click.IntRange(3), default=3_000, show_default=True, help="Of the ledger.")
@_json
def stream(minutes_: float, per_s: int, as_json: bool) -> None:
    """Run a steady stream; report the state of the jobs, and their delay."""
    found = measure_stream(minutes_, per_s)
    if as_json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
