"""`fleet pipeline run`, as operators run it: killed in the middle, and on what a real fleet has told."""

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
from tests.browser import chromium, complaints, pictures, text
from tests.browser import rows as rows_of
from tests.chaos.harness import await_flow
from tests.chaos.seeded.workloads import PARTITIONS, Client
from tests.conftest import MakeFleet, MakeTopic
from tests.integration.clients import wait_for
from tests.integration.test_events import everything
from tests.pipeline.test_load import passing
from tests.pipeline_samples import found, make_topics, produce, tellings, wanted
from tests.shared_spark import borrowed

pytestmark = pytest.mark.size("test-all")

LIMIT_S = 280.0
ASKED_WITHIN_MS = 5_000
"""Members ask one another every 100 ms, on a machine that has time for it."""
THINNED = 6
"""So many times less traffic than a fleet would tell of: a few batches."""
ENTRIES = [
    LedgerEntry("orders", "acknowledged", number % 3, 1, number // 3, number // 3, number, 1_000 * number)
    for number in range(1_500)
]
Ask = Callable[..., dict[str, Any]]
SUBMITTED = Path(__file__).resolve().parents[2] / "deploy" / "spark" / "pipeline.py"


@pytest.fixture
def ask(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Ask:
    """What a command of this process prints, with the tests' Spark."""

    def asked(words: list[str], code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        with borrowed(spark):
            assert cli.run(words) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return asked


def words_of(config: Path, out: Path, *more: str) -> list[str]:
    return ["run", "--config", str(config), "--out", str(out), "--once", "--json", *more]


def command(config: Path, out: Path, *more: str) -> list[str]:
    own = ("--master", "local[1]")
    return [sys.executable, "-m", "fleet", "pipeline", *words_of(config, out, *own, *more)]


@pytest.mark.timeout(1200)
def test_a_driver_that_is_killed_in_the_middle_leaves_nothing_out_and_nothing_twice(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, kills: int, ask: Ask
) -> None:
    prefix = "killed."
    make_topics(kafka, prefix)
    # Each driver is to find a batch of the timeline that none before it was done with.
    told, traffic = tellings(random.Random(23), 200 * kills), passing(random.Random(5))[::THINNED]
    produce(kafka, f"{prefix}ownership", [event_schema.EVENTS.encode(each) for each in told])
    produce(kafka, f"{prefix}traffic", [event_schema.EVENTS.encode(each) for each in traffic])
    produce(kafka, f"{prefix}observations", [EVENTS.encode(each) for each in ENTRIES])
    config = configuration(kafka, prefix, tmp_path)
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    jobs = [part for job in ("timeline", "load", "ledger", "weights") for part in ("--job", job)]
    small = (*jobs, "--records-per-batch", "250")
    whole = ask(["pipeline", *words_of(config, calm, *small)])
    read = {each["name"]: each["records"] for each in whole["jobs"]}
    assert read.pop("weights") > 0
    assert read == {"timeline": len(told), "load": len(traffic), "ledger": len(ENTRIES)}
    weights = everything(kafka, f"{prefix}weights")

    for kill in range(kills):
        # In the middle of the batches behind the first ones that it says it has done.
        with subprocess.Popen(
            command(config, stormy, *small), stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as driver:
            assert driver.stderr is not None
            lines = iter(driver.stderr)
            for job in ("timeline",) if kill else ("timeline", "ledger"):
                said = next((line for line in lines if line.startswith(f"{job}: batch")), "")
                assert said, f"run {kill} has ended before it could be killed"
            time.sleep(0.1 * kill)
            os.killpg(driver.pid, signal.SIGKILL)
        assert driver.returncode == -signal.SIGKILL
        if not kill:
            assert 0 < committed(stormy, "ledger") < committed(calm, "ledger"), "it was at work"

    # And in the one batch in which all weights are told: it has been begun, and is not done.
    with subprocess.Popen(
        command(config, stormy, *small),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as teller:
        wait_for(
            lambda: begun(stormy, "weights") or teller.poll() is not None,
            "weights are begun",
            LIMIT_S,
            every_s=0.02,  # and not done yet
        )
        os.killpg(teller.pid, signal.SIGKILL)
    assert teller.returncode == -signal.SIGKILL
    assert (begun(stormy, "weights"), committed(stormy, "weights")) == (1, 0)
    document(command(config, stormy, *small))

    def rows(out: Path, table: str) -> list[Any]:
        return sorted(map(str, spark.read.parquet(f"{out}/{table}").collect()))

    for table in ("timeline", "load", "ledger"):
        assert rows(stormy, table) == rows(calm, table) != []
    assert found(spark, Site(Kafka(""), prefix, str(stormy))) == wanted(told)
    again = everything(kafka, f"{prefix}weights")
    assert set(again) == set(weights), "the same ids, and the same weights, however often"
    assert len(again) >= 2 * len(weights) > 0


def begun(out: Path, job: str) -> int:
    """How many batches a job has begun."""
    return sum(each.name.isdigit() for each in out.glob(f"checkpoints/{job}/offsets/*"))


def committed(out: Path, job: str) -> int:
    """How many it is done with."""
    return sum(each.name.isdigit() for each in out.glob(f"checkpoints/{job}/commits/*"))


@pytest.mark.timeout(900)
def test_the_timeline_of_a_real_fleet_is_what_its_members_have_committed(
    spark: SparkSession,
    kafka: KafkaCluster,
    make_fleet: MakeFleet,
    make_topic: MakeTopic,
    tmp_path: Path,
    ask: Ask,
) -> None:
    """And what it says of its availability is what became of the member that was killed."""
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
    tell_of_records(kafka, prefix, stream)
    committed = fleet.ownership(fleet.running[0])
    owners = {each.broker_id: each.committed for each in committed.identities}

    def told() -> set[int]:
        return {json.loads(each)["generation"] for each in everything(kafka, f"{prefix}ownership")}

    wait_for(lambda: max(told(), default=0) == committed.generation, "the last change is told of")
    out = tmp_path / "out"
    printed = document(command(fleet.config, out))
    assert [each["name"] for each in printed["jobs"]] == list(OFFERED)
    rows = found(spark, Site(Kafka(""), prefix, str(out)))
    assert {row[2] for row in rows} == {"interval"}, "neither gaps nor overlaps"
    still = {row[1]: row[4] for row in rows if not row[6]}
    assert still == owners
    for broker_id in owners:
        mine = [row for row in rows if row[1] == broker_id]
        assert [row[6] for row in mine[:-1]] == [row[5] for row in mine[1:]], "without a hole"
    assert any(row[4] == (leader,) and row[6] for row in rows), "the dead leader has lost something"
    assert everything(kafka, f"{prefix}dead_letters") == []

    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]", str(SUBMITTED)]
    some = [part for job in ("timeline", "connections", "load") for part in ("--job", job)]
    again = document([*submit, *words_of(fleet.config, out, *some)])
    more = {each["name"]: each["records"] for each in again["jobs"]}
    assert more.pop("load") > 0, "the fleet tells of its traffic all the time"
    assert more == {"timeline": 0, "connections": 0}, "it goes on where the first run has ended"

    answer = ask(["pipeline", "availability", "--out", str(out), "--json"])
    assert {each["broker_id"] for each in answer["takeovers"]} == taken
    for each in answer["takeovers"]:
        # Asked before it was gone, and answered: what a member knows is never later than the death.
        assert killed_ms - ASKED_WITHIN_MS < each["alive_ms"] <= gone_ms
        assert killed_ms <= each["began_ms"] <= each["advertised_ms"]
        assert each["began_ms"] <= each["first_request_ms"], "a client has asked the new owner"
        assert leader not in each["owners"]
    missing_ms = {each["broker_id"]: each["advertised_ms"] - each["alive_ms"] for each in answer["takeovers"]}
    by_identity = dict.fromkeys(owners, 0)
    for each in answer["identities"]:
        by_identity[each["broker_id"]] += each["unavailable_ms"]
    assert by_identity == {**dict.fromkeys(owners, 0), **missing_ms}

    audited = ask(["pipeline", "audit", "--out", str(out), "--json"], code=1)
    verdicts = {each.pop("client"): each for each in audited["clients"]}
    wanted_verdict = asdict(audit_of(stream))
    one_less = {**wanted_verdict, "received": wanted_verdict["received"] - 1, "lost": 1}
    assert verdicts == {"idempotent": wanted_verdict, "doctored": one_less}
    (takeover,) = audited["takeovers"]
    assert (set(takeover["broker_ids"]), takeover["lost"], takeover["duplicated"]) == (taken, 1, 0)

    page = tmp_path / "report.html"
    reported = ask(["report", "--tables", str(out), "--out", str(page), "--json"])
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
            "acknowledged": str(2 * wanted_verdict["acknowledged"]),
            "lost": "1",
        }
        assert {int(row[0]): int(row[3]) for row in rows_of(browser, "takeover-table")} == missing_ms
        assert min(pictures(browser).values()) > 0
        assert complaints(browser) == []
    odd = ask(["pipeline", "anomalies", "--out", str(out), "--json"])
    assert (odd["flapping"], odd["stale_clients"]) == ([], [])
    assert {each["proxy_id"] for each in odd["one_sided"]} <= {leader}


def tell_of_records(kafka: KafkaCluster, prefix: str, stream: Stream) -> None:
    """Write down what became of them, as an application would; and as one that was not given the last."""
    wall_us = round((time.time() - time.monotonic()) * 1_000_000)
    last = stream.acknowledged[-1]
    given = [
        each for each in stream.received if (each.partition, each.record) != (last.partition, last.record)
    ]
    doctored = replace(stream, name="doctored", received=given)
    entries = [*ledger(stream, wall_us), *ledger(doctored, wall_us)]
    produce(kafka, f"{prefix}observations", [EVENTS.encode(each) for each in entries])


def test_what_is_wrong_is_said(kafka: KafkaCluster, tmp_path: Path, ask: Ask) -> None:
    config = configuration(kafka, "never-made.", tmp_path)
    error = ask(["pipeline", *words_of(config, tmp_path / "out")], code=1)["error"]
    assert error["kind"] == "pipeline"
    assert "topic never-made.ownership" in error["message"]


def test_the_command_offers_every_job() -> None:
    assert set(OFFERED) == set(JOBS)


def document(arguments: list[str], code: int = 0) -> dict[str, Any]:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == code, done.stderr
    # spark-submit has one stream for both: the document is the last line.
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def configuration(kafka: KafkaCluster, prefix: str, folder: Path) -> Path:
    """Of a fleet that nobody starts."""
    example = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "fleet.yaml"
    fields = yaml.safe_load(example.read_text())
    fields["bootstrap_servers"] = kafka.bootstrap_servers.split(",")
    fields["events"] = {"topic_prefix": prefix}
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path
