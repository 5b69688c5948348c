"""`fleet pipeline run` as operators run it: killed in the middle, and on the events of a real fleet."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from fleet import cli
from fleet.cli.pipeline import JOBS as OFFERED
from fleet.core import event_schema
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.spark_audit import ledger
from fleet.drills.workload.checker import Stream, audit_of
from fleet.pipeline.jobs import JOBS, Site
from fleet.pipeline.observations import EVENTS, LedgerEntry
from fleet.pipeline.streams import Kafka
from tests.browser import browser_log, chromium, pictures, text
from tests.browser import rows as rows_of
from tests.chaos.harness import await_flow
from tests.chaos.seeded.workloads import PARTITIONS, Client
from tests.conftest import MakeFleet, MakeTopic
from tests.integration.clients import wait_for
from tests.integration.test_events import everything
from tests.pipeline.test_load import make_traffic
from tests.pipeline_samples import expected_timeline, make_reports, make_topics, produce, read_timeline
from tests.shared_spark import commands_use

pytestmark = pytest.mark.size("test-all")

LIMIT_S = 280.0
PROBED_WITHIN_MS = 5_000
"""Upper bound: members probe each other every 100 ms, more slowly on a busy machine."""
TRAFFIC_STEP = 6
"""One of this many traffic events is used, which gives a few batches."""
ENTRIES = [
    LedgerEntry("orders", "acknowledged", number % 3, 1, number // 3, number // 3, number, 1_000 * number)
    for number in range(1_500)
]
RunJson = Callable[..., dict[str, Any]]
SPARK_SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "spark" / "pipeline.py"


@pytest.fixture
def run_json(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> RunJson:
    """Run a command in this process with the tests' Spark; return its JSON."""

    def run(words: list[str], code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        with commands_use(spark):
            assert cli.run(words) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return run


def words_of(config: Path, out: Path, *more: str) -> list[str]:
    return ["run", "--config", str(config), "--out", str(out), "--once", "--json", *more]


def command(config: Path, out: Path, *more: str) -> list[str]:
    own = ("--master", "local[1]")
    return [sys.executable, "-m", "fleet", "pipeline", *words_of(config, out, *own, *more)]


@pytest.mark.timeout(1200)
def test_killed_driver_loses_and_repeats_nothing(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, kills: int, run_json: RunJson
) -> None:
    prefix = "killed."
    make_topics(kafka, prefix)
    # Each driver must find a batch of the timeline that no earlier driver has finished.
    reports = make_reports(random.Random(23), 200 * kills)
    traffic = make_traffic(random.Random(5))[::TRAFFIC_STEP]
    produce(kafka, f"{prefix}ownership", [event_schema.EVENTS.encode(each) for each in reports])
    produce(kafka, f"{prefix}traffic", [event_schema.EVENTS.encode(each) for each in traffic])
    produce(kafka, f"{prefix}observations", [EVENTS.encode(each) for each in ENTRIES])
    config = configuration(kafka, prefix, tmp_path)
    whole_out, killed_out = tmp_path / "whole", tmp_path / "killed"
    jobs = [part for job in ("timeline", "load", "ledger", "weights") for part in ("--job", job)]
    small = (*jobs, "--records-per-batch", "250")
    whole = run_json(["pipeline", *words_of(config, whole_out, *small)])
    read = {each["name"]: each["records"] for each in whole["jobs"]}
    assert read.pop("weights") > 0
    assert read == {"timeline": len(reports), "load": len(traffic), "ledger": len(ENTRIES)}
    weights = everything(kafka, f"{prefix}weights")

    for kill in range(kills):
        # Kill it during the batches after the first batch that it reports.
        with subprocess.Popen(
            command(config, killed_out, *small), stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as driver:
            assert driver.stderr is not None
            lines = iter(driver.stderr)
            for job in ("timeline",) if kill else ("timeline", "ledger"):
                line = next((line for line in lines if line.startswith(f"{job}: batch")), "")
                assert line, f"run {kill} has ended before it could be killed"
            time.sleep(0.1 * kill)
            os.killpg(driver.pid, signal.SIGKILL)
        assert driver.returncode == -signal.SIGKILL
        if not kill:
            assert 0 < committed(killed_out, "ledger") < committed(whole_out, "ledger"), "killed too late"

    # Kill it in the one batch with all weights, after its start and before its end.
    with subprocess.Popen(
        command(config, killed_out, *small),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as weights_driver:
        wait_for(
            lambda: started_batches(killed_out, "weights") or weights_driver.poll() is not None,
            "the batch of weights starts",
            LIMIT_S,
            every_s=0.02,  # before the end of the batch
        )
        os.killpg(weights_driver.pid, signal.SIGKILL)
    assert weights_driver.returncode == -signal.SIGKILL
    assert (started_batches(killed_out, "weights"), committed(killed_out, "weights")) == (1, 0)
    document(command(config, killed_out, *small))

    def rows(out: Path, table: str) -> list[Any]:
        return sorted(map(str, spark.read.parquet(f"{out}/{table}").collect()))

    for table in ("timeline", "load", "ledger"):
        assert rows(killed_out, table) == rows(whole_out, table) != []
    assert read_timeline(spark, Site(Kafka(""), prefix, str(killed_out))) == expected_timeline(reports)
    again = everything(kafka, f"{prefix}weights")
    assert set(again) == set(weights), "repeated weights have the same ids and values"
    assert len(again) >= 2 * len(weights) > 0


def started_batches(out: Path, job: str) -> int:
    """Count the batches that a job has started."""
    return sum(each.name.isdigit() for each in out.glob(f"checkpoints/{job}/offsets/*"))


def committed(out: Path, job: str) -> int:
    """Count the batches that a job has committed."""
    return sum(each.name.isdigit() for each in out.glob(f"checkpoints/{job}/commits/*"))


@pytest.mark.timeout(900)
def test_timeline_of_real_fleet_matches_its_commits(
    spark: SparkSession,
    kafka: KafkaCluster,
    make_fleet: MakeFleet,
    make_topic: MakeTopic,
    tmp_path: Path,
    run_json: RunJson,
) -> None:
    """Its availability matches the death of the member that the test kills."""
    prefix = "timeline-of-a-fleet."
    fleet = make_fleet(events={"topic_prefix": prefix})
    leader = fleet.leader()
    assert leader is not None
    taken = {each.broker_id for each in fleet.ownership(leader).identities if each.committed == (leader,)}
    client = Client("idempotent", fleet.bootstrap(), make_topic(PARTITIONS), tmp_path / "client")
    client.workload.start()
    try:
        await_flow([client])
        killed_ms = time.time_ns() // 1_000_000
        fleet.kill(leader)
        gone_ms = time.time_ns() // 1_000_000
        fleet.await_settled(frozenset(kafka.brokers), fleet.running)
        await_flow([client])
        client.stop()
    finally:
        client.workload.kill()
    stream = client.stream(kafka.bootstrap_servers)
    write_ledgers(kafka, prefix, stream)
    committed = fleet.ownership(fleet.running[0])
    owners = {each.broker_id: each.committed for each in committed.identities}

    def generations() -> set[int]:
        return {json.loads(each)["generation"] for each in everything(kafka, f"{prefix}ownership")}

    wait_for(lambda: max(generations(), default=0) == committed.generation, "an event for the last change")
    out = tmp_path / "out"
    printed = document(command(fleet.config, out))
    assert [each["name"] for each in printed["jobs"]] == list(OFFERED)
    rows = read_timeline(spark, Site(Kafka(""), prefix, str(out)))
    assert {row[2] for row in rows} == {"interval"}, "neither gaps nor overlaps"
    current = {row[1]: row[4] for row in rows if not row[6]}
    assert current == owners
    for broker_id in owners:
        intervals = [row for row in rows if row[1] == broker_id]
        assert [row[6] for row in intervals[:-1]] == [row[5] for row in intervals[1:]], (
            "intervals are contiguous"
        )
    assert any(row[4] == (leader,) and row[6] for row in rows), "the dead leader has lost an identity"
    assert everything(kafka, f"{prefix}dead_letters") == []

    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]", str(SPARK_SCRIPT)]
    some = [part for job in ("timeline", "connections", "load") for part in ("--job", job)]
    again = document([*submit, *words_of(fleet.config, out, *some)])
    more = {each["name"]: each["records"] for each in again["jobs"]}
    assert more.pop("load") > 0, "the fleet writes traffic events continuously"
    assert more == {"timeline": 0, "connections": 0}, "the second run continues after the first"

    answer = run_json(["pipeline", "availability", "--tables", str(out), "--json"])
    assert {each["broker_id"] for each in answer["takeovers"]} == taken
    for each in answer["takeovers"]:
        # The last answered probe was sent before the death, so the time is never later than the death.
        assert killed_ms - PROBED_WITHIN_MS < each["alive_ms"] <= gone_ms
        assert killed_ms <= each["began_ms"] <= each["advertised_ms"]
        assert each["began_ms"] <= each["first_request_ms"], "a client has used the new owner"
        assert leader not in each["owners"]
    missing_ms = {each["broker_id"]: each["advertised_ms"] - each["alive_ms"] for each in answer["takeovers"]}
    by_identity = dict.fromkeys(owners, 0)
    for each in answer["identities"]:
        by_identity[each["broker_id"]] += each["unavailable_ms"]
    assert by_identity == {**dict.fromkeys(owners, 0), **missing_ms}

    audited = run_json(["pipeline", "audit", "--tables", str(out), "--json"], code=1)
    verdicts = {each.pop("client"): each for each in audited["clients"]}
    expected_verdict = asdict(audit_of(stream))
    without_last = {**expected_verdict, "received": expected_verdict["received"] - 1, "lost": 1}
    assert verdicts == {"idempotent": expected_verdict, "doctored": without_last}
    (takeover,) = audited["takeovers"]
    assert (set(takeover["broker_ids"]), takeover["lost"], takeover["duplicated"]) == (taken, 1, 0)

    page = tmp_path / "report.html"
    reported = run_json(["report", "--tables", str(out), "--out", str(page), "--json"])
    assert reported["availability"]["takeovers"] == answer["takeovers"]
    assert {
        each["broker_id"]: tuple(each["owners"]) for each in reported["intervals"] if each["to_ms"] is None
    } == owners
    assert reported["audit"]["takeovers"] == audited["takeovers"]
    with chromium(tmp_path / "profile") as browser:
        browser.get(page.as_uri())
        seen = {name: text(browser, name) for name in ("brokers", "takeovers", "acknowledged", "lost")}
        assert seen == {
            "brokers": str(len(owners)),
            "takeovers": str(len(taken)),
            "acknowledged": str(2 * expected_verdict["acknowledged"]),
            "lost": "1",
        }
        assert {int(row[0]): int(row[3]) for row in rows_of(browser, "takeover-table")} == missing_ms
        assert min(pictures(browser).values()) > 0
        assert browser_log(browser) == []
    anomalies = run_json(["pipeline", "anomalies", "--tables", str(out), "--json"])
    assert (anomalies["flapping"], anomalies["stale_clients"]) == ([], [])
    assert {each["proxy_id"] for each in anomalies["one_sided"]} <= {leader}


def write_ledgers(kafka: KafkaCluster, prefix: str, stream: Stream) -> None:
    """Write the ledger of a client, and that of a client which did not receive the last record."""
    wall_us = round((time.time() - time.monotonic()) * 1_000_000)
    last = stream.acknowledged[-1]
    received = [
        each for each in stream.received if (each.partition, each.record) != (last.partition, last.record)
    ]
    doctored = replace(stream, name="doctored", received=received)
    entries = [*ledger(stream, wall_us), *ledger(doctored, wall_us)]
    produce(kafka, f"{prefix}observations", [EVENTS.encode(each) for each in entries])


def test_missing_topic_is_reported(kafka: KafkaCluster, tmp_path: Path, run_json: RunJson) -> None:
    config = configuration(kafka, "never-made.", tmp_path)
    error = run_json(["pipeline", *words_of(config, tmp_path / "out")], code=1)["error"]
    assert error["kind"] == "pipeline"
    assert "topic never-made.ownership" in error["message"]


def test_command_offers_every_job() -> None:
    assert set(OFFERED) == set(JOBS)


def document(arguments: list[str], code: int = 0) -> dict[str, Any]:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == code, done.stderr
    # spark-submit merges both streams: the document is the last line.
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def configuration(kafka: KafkaCluster, prefix: str, folder: Path) -> Path:
    """Write the configuration of a fleet that does not run."""
    example = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "fleet.yaml"
    fields = yaml.safe_load(example.read_text())
    fields["bootstrap_servers"] = kafka.bootstrap_servers.split(",")
    fields["events"] = {"topic_prefix": prefix}
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path
