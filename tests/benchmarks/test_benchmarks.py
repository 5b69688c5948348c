"""The parts of the benchmark that need no Kafka: figures, peers, the CPU clock, the report."""

from __future__ import annotations

import io
import json
import math
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import click
import jsonschema
import pytest
from click.testing import CliRunner
from rich.console import Console

import benchmarks.__main__
from benchmarks import (
    connections,
    debian,
    goals,
    haproxy,
    metadata_client,
    peers,
    race,
    report,
    storm,
    tls,
)
from benchmarks.__main__ import parse_names
from benchmarks.assign_scale import measure_size
from benchmarks.cluster import Stage, Target, iterate_rounds
from benchmarks.connections import can_open_files, max_to_mean
from benchmarks.cpu import cpu_s, process_cpu_s
from benchmarks.errors import BenchError
from benchmarks.peers import PeerPlaces
from benchmarks.results import Sample, document, figures, measures
from benchmarks.sample_store import SampleStore
from benchmarks.workloads import MEASURED, SPEC, Measured, Name, Spec
from fleet.core.model import Endpoint
from fleet.drills.cluster.ports import free_ports

ROOT = Path(__file__).parents[2]
PEERS_OF_TWO = peers.PEERS.with_name("peers_of_two.yaml")
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "bench.schema.json").read_text())


def samples(measure: str, **by_target: list[float]) -> list[Sample]:
    return [
        Sample("sync", measure, target, number, value)
        for target, values in by_target.items()
        for number, value in enumerate(values)
    ]


# ---- figures


def test_figure_is_the_median_with_its_spread() -> None:
    found = figures(samples("cpu_us_per_request", haproxy=[10, 40, 20], fleet=[15, 44, 40]))
    haproxy_, fleet = found
    assert (haproxy_.value, haproxy_.least, haproxy_.most, haproxy_.to_haproxy) == (20, 10, 40, 1)
    assert (fleet.value, fleet.least, fleet.most) == (40, 15, 44)
    assert fleet.to_haproxy == 1.5  # of 1.5, 1.1 and 2.0; the ratio of the medians is 2.0
    assert fleet.to_direct is None


def test_ratio_uses_only_rounds_that_measured_both() -> None:
    direct = [Sample("sync", "p50_us", "direct", 1, 100), Sample("sync", "p50_us", "direct", 2, 0)]
    (_, fleet) = figures([*direct, *samples("p50_us", fleet=[500, 300, 400])])
    assert fleet.to_direct == 3
    other_measure = samples("p99_us", fleet=[1])
    assert figures([*direct, *other_measure])[1].to_direct is None


def test_figures_are_sorted_by_measure_then_target() -> None:
    mixed = [
        *(Sample("sync", measure, "b", 0, 1) for measure in ("m1", "m2")),
        *(Sample("sync", measure, "a", 0, 1) for measure in ("m1", "m2")),
        *(Sample("small", measure, "a", 0, 1) for measure in ("m2", "m1")),
    ]
    assert [(each.workload, each.measure, each.target) for each in figures(mixed)] == [
        ("sync", "m1", "b"),
        ("sync", "m1", "a"),
        ("sync", "m2", "b"),
        ("sync", "m2", "a"),
        ("small", "m2", "a"),
        ("small", "m1", "a"),
    ]


def test_cpu_is_reported_per_request_or_per_gigabyte() -> None:
    small = measures("small", Measured(1_000, 100_000, 2.0), 0.05, 0.06)
    assert small == {
        "cpu_us_per_request": pytest.approx(50),
        "member_cpu_us_per_request": pytest.approx(60),
        "requests_per_s": 500,
    }
    assert measures("sparse", Measured(100, 10_000, 0.1, 900.0, 4_000.0), 0.05, 0.06) == {
        "p50_us": 900,
        "p99_us": 4_000,
        "cpu_us_per_record": pytest.approx(500),
        "member_cpu_us_per_record": pytest.approx(600),
    }
    large = measures("consume", Measured(500_000, 500_000_000, 10.0), 0.4, 0.5)
    assert large == {"cpu_s_per_gb": 0.8, "member_cpu_s_per_gb": 1.0, "mb_per_s": 50}


def test_direct_target_has_latency_and_no_cpu() -> None:
    assert measures("sync", Measured(10, 1_000, 1.0, 200.0, 900.0), None, None) == {
        "p50_us": 200.0,
        "p99_us": 900.0,
        "requests_per_s": 10,
    }


def test_document_matches_its_schema() -> None:
    found = figures([*samples("p50_us", direct=[3.0], fleet=[4.123456]), *race_metadata()])
    printed = document(found)
    jsonschema.validate(printed, SCHEMA)
    assert printed[1] == {
        "workload": "sync",
        "measure": "p50_us",
        "target": "fleet",
        "value": 4.123,
        "to_direct": 1.374,
        "to_haproxy": None,
    }
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([{**printed[0], "value": None}], SCHEMA)


# ---- Metadata


def race_metadata() -> list[Sample]:
    return list(race.metadata(rounds=1))


def test_metadata_patching_costs_less_than_decoding() -> None:
    by_target = {each.target: each.value for each in race_metadata() if each.measure == "cpu_us_3x10000"}
    assert by_target.keys() == {"fleet", "patch", "kio"}
    assert 0 < by_target["fleet"] < by_target["kio"] / 20


# ---- assign


def test_kill_moves_only_identities_of_the_dead_proxy() -> None:
    found = measure_size(30, 5)
    assert (found["death_moved"], found["death_moved_of_others"]) == (6, 0)
    assert found["fresh_max_to_mean"] == 1 <= found["death_max_to_mean"]
    assert 0 < found["join_moved"] <= 30 / 6
    assert min(found[f"{each}_ms"] for each in ("fresh", "death", "join")) > 0


# ---- CPU


def test_cpu_clock_belongs_to_the_process() -> None:
    before_s, ours_before_s = process_cpu_s(os.getpid()), time.process_time()
    deadline_s = time.process_time() + 0.05
    while time.process_time() < deadline_s:
        pass
    grown_s, ours_s = process_cpu_s(os.getpid()) - before_s, time.process_time() - ours_before_s
    assert grown_s == pytest.approx(ours_s, abs=0.005)
    assert cpu_s([]) == 0


def test_cpu_time_of_ended_threads_counts() -> None:
    def work() -> None:
        deadline_s = time.thread_time() + 0.05
        while time.thread_time() < deadline_s:
            pass

    before_s = process_cpu_s(os.getpid())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert process_cpu_s(os.getpid()) - before_s >= 0.05


def test_ended_process_is_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait(20)
    with pytest.raises(BenchError, match=str(child.pid)):
        process_cpu_s(child.pid)


# ---- peers


def places(folder: Path) -> PeerPlaces:
    ports = free_ports(3)
    return PeerPlaces(
        {known: Endpoint("127.0.0.1", ports[known - 1]) for known in (1, 2, 3)},
        {known: Endpoint("127.0.0.9", 9000 + known) for known in (1, 2, 3)},
        folder,
    )


def test_default_peers_are_haproxy_and_forwarder() -> None:
    lines = peers.load()
    assert {"haproxy", "forwarder"} <= lines.keys()
    assert "nbthread 1" in lines["haproxy"].files["haproxy.cfg"]
    assert all(lines[name].forwards for name in ("haproxy", "forwarder"))


def test_peers_of_two_differ_only_in_threads_and_processes() -> None:
    lines = peers.load(PEERS_OF_TWO)
    assert {name: lines[name] for name in ("haproxy", "forwarder")} == peers.load()
    assert dict(lines["haproxy-2"].files) == {
        **lines["haproxy"].files,
        "two.cfg": "global\n  nbthread 2\n",
    }
    one, two = lines["forwarder"].start, lines["forwarder-2"].start
    assert one is not None
    assert two == one.replace("forwarder ", "forwarder --processes 2 ", 1)


@pytest.mark.parametrize(
    "text",
    [
        "a: {forwards: true}",
        "a: {process: [1]}",
        "a: {start: x, port: 1}",
        "a: 1",
        "[",
        "a: {start: x, forwards: maybe}",
        "[" * 5_000,
    ],
)
def test_invalid_peer_file_is_rejected(tmp_path: Path, text: str) -> None:
    file = tmp_path / "peers.yaml"
    file.write_text(text)
    with pytest.raises(BenchError, match=r"peers\.yaml"):
        peers.load(file)


# ---- HAProxy


def test_installed_haproxy_is_used_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "haproxy"
    own.write_text("#!/bin/sh\necho HAProxy version 9.8.7-1 2030/01/01 - https://haproxy.org/\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert haproxy.find() == own
    assert haproxy.version(own) == "9.8.7-1"


def test_missing_haproxy_is_reported_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_apt(package: str, program: str, folder: Path) -> None:
        raise FileNotFoundError("apt-get")

    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(haproxy, "FOLDER", tmp_path / "haproxy")
    monkeypatch.setattr(debian, "unpack_debian_program", no_apt)
    with pytest.raises(BenchError, match=r"apt-get install haproxy.*--targets"):
        haproxy.find()


# ---- the forwarder


# ---- samples that are kept


def test_results_survive_the_failure_of_another_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Found: 66 minutes of a benchmark were lost with a part that found no ports.
    def failing(_: int) -> Iterator[Sample]:
        yield Sample("control", "commit_ms", "fleet", 1, 1.0)
        raise BenchError("no ports [today]")

    def going(_: int) -> Iterator[Sample]:
        yield Sample("control", "commit_ms", "fleet", 0, 2.0)

    def once(_: int) -> Iterator[Sample]:
        yield Sample("assign", "ms", "fleet", 0, 34.0)

    kept = tmp_path / "samples.jsonl"
    monkeypatch.setattr(benchmarks.__main__, "SEPARATE_BENCHMARKS", {"control": failing, "assign": once})
    run = partial(CliRunner().invoke, benchmarks.__main__.main)
    failed = run(["--only", "control,assign", "--samples", str(kept), "--json"])
    assert failed.exit_code == 1
    assert "1 part(s) failed, and nothing was written: no ports [today]" in failed.output

    monkeypatch.setattr(benchmarks.__main__, "SEPARATE_BENCHMARKS", {"control": going, "assign": failing})
    done = run(["--only", "control", "--samples", str(kept), "--json"])
    assert done.exit_code == 0
    values = {each["workload"]: each["value"] for each in json.loads(done.stdout)}
    assert values == {"assign": 34.0, "control": 2.0}
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [(each["workload"], each["round"]) for each in lines] == [("assign", 0), ("control", 0)]
    before = (tmp_path / "samples.jsonl.before").read_text().splitlines()
    assert [json.loads(line)["value"] for line in before] == [1.0, 34.0]


def test_file_without_samples_is_reported_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text('{"workload": "sync"}\n')
    with pytest.raises(BenchError, match=r"notes\.txt, line 1: not a sample of a benchmark: b'{\"workload"):
        SampleStore(path, ("sync",))
    assert path.read_text() == '{"workload": "sync"}\n'
    with pytest.raises(BenchError, match="Is a directory"):
        SampleStore(tmp_path, ("sync",))
    path.write_text("")
    (tmp_path / "notes.txt.before").mkdir()
    (tmp_path / "notes.txt.before" / "notes.txt").mkdir()
    with pytest.raises(BenchError, match=r"notes\.txt\.before: Is a directory"):
        SampleStore(path, ("sync",))


# ---- the race


class FakeStage:
    """Records the creation and deletion of topics; a target's address has its name."""

    def __init__(self, *names: str) -> None:
        self.targets = tuple(Target(name, f"{name}:1") for name in names)
        self.events: list[str] = []

    def create_topic(self, what: str, brokers: tuple[int, ...]) -> str:
        self.events.append(f"create {what} on {len(brokers)}")
        return what

    def delete_topic(self, name: str) -> None:
        self.events.append(f"delete {name}")


def raced(stage: FakeStage, plan: race.Plan, rounds: int) -> list[Sample]:
    """The samples of a number of rounds."""
    run = partial(race.race, cast(Stage, stage), plan, say=lambda _: None)
    return [sample for number in range(rounds) for sample in run(number=number)]


def test_targets_are_interleaved_and_begin_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = FakeStage("direct", "haproxy", "fleet")
    runs: list[tuple[str, Spec]] = []

    def fake_run(target: Target, spec: Spec) -> dict[str, float]:
        stage.events.append(f"run {spec.workload} {target.name}")
        runs.append((target.name, spec))
        return {"m": float(len(runs))}

    monkeypatch.setattr(race, "run", fake_run)
    crowds = (16, 256)
    plan = race.Plan(("sync", "consume"), 0.5, crowds, runs={"sync": 7, "consume": 1}, crowd_runs=1)
    found = raced(stage, plan, 2)
    turns = (("direct", "haproxy", "fleet"), ("haproxy", "fleet", "direct"))
    assert [(spec.workload, spec.connections, name) for name, spec in runs] == [
        ("produce", 1, "direct"),  # what is consumed
        *(("sync", crowd, name) for crowd in crowds for name in turns[0]),
        *(("consume", 1, name) for name in turns[0]),
        ("produce", 1, "direct"),
        *(("sync", crowd, name) for crowd in crowds for name in turns[1]),
        *(("consume", 1, name) for name in turns[1]),
    ]
    assert all(spec.bootstrap_servers == f"{name}:1" for name, spec in runs)
    assert {spec.count for _, spec in runs if spec.workload in ("produce", "consume")} == {375_000}
    assert {spec.count for _, spec in runs if spec.workload == "sync"} == {race.CROWD_REQUESTS / 2}
    assert list(dict.fromkeys(each.measure for each in found)) == ["m_16", "m_256", "m"]
    assert [each.round for each in found] == [0] * 9 + [1] * 9
    assert stage.events.count("delete sync") == stage.events.count("create sync on 1") == 12
    assert stage.events.count("create consume on 3") == 2  # one in each round
    assert "delete consume" not in stage.events


def test_runs_of_a_round_share_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def fake_run(target: Target, spec: Spec) -> dict[str, float]:
        counts.append(spec.count)
        return {"m": 1.0}

    monkeypatch.setattr(race, "run", fake_run)
    plan = race.Plan(("produce",), counts={"produce": 9_000}, runs={"produce": 3})
    found = raced(FakeStage("direct", "fleet"), plan, 2)
    assert counts == [3_000] * 12
    assert [(each.round, each.target) for each in found] == [
        (0, "direct"), (0, "fleet"),
        (1, "fleet"), (1, "direct"),
        (2, "direct"), (2, "fleet"),
        (3, "fleet"), (3, "direct"),
        (4, "direct"), (4, "fleet"),
        (5, "fleet"), (5, "direct"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("workload", "partitions", "measure"),
    [
        ("sync", 1, "p50_us"),
        ("sparse", 1, "p50_us"),
        ("small", 3, "requests_per_s"),
        ("deep", 3, "requests_per_s"),
    ],
)
def test_small_record_clients_start_together_and_alternate(
    monkeypatch: pytest.MonkeyPatch, workload: Name, partitions: int, measure: str
) -> None:
    # Found: runs of one target, one after another, differed by two thirds.
    stage = FakeStage("forwarder", "fleet")

    @contextmanager
    def fake_client(_: str, work: str, *, what: str, target: str) -> Iterator[metadata_client.StartWork]:
        count = SPEC.validate_json(work).count
        stage.events.append(f"{target} is ready for {what}")

        def go() -> str:
            stage.events.append(f"{target} sends {count}")
            return MEASURED.dump_json(Measured(count, 100 * count, 2.0, 900.0, 4_000.0)).decode()

        yield go
        stage.events.append(f"{target} is gone")

    monkeypatch.setattr(race, "client", fake_client)
    monkeypatch.setattr(race, "REST_S", 0.001)
    plan = race.Plan((workload,), crowds=(1,), counts={workload: 60}, runs={workload: 3})
    found = raced(stage, plan, 2)
    one, other = "forwarder sends 20", "fleet sends 20"
    ready = [f"create {workload} on {partitions}", f"forwarder is ready for {workload}"]
    ready += [f"create {workload} on {partitions}", f"fleet is ready for {workload}"]
    gone = ["fleet is gone", "forwarder is gone", f"delete {workload}", f"delete {workload}"]
    first = [*ready, one, other, other, one, one, other, *gone]
    assert stage.events == [*first, *ready, other, one, one, other, other, one, *gone]
    assert [each.round for each in found if (each.measure, each.target) == (measure, "fleet")] == [*range(6)]

    # Found: medians of ten turns of the same clients were 1.02 to 1.32 times the forwarder's.
    stage.events.clear()
    monkeypatch.setattr(race, "TURNS_PER_CLIENT", 2)
    raced(stage, plan, 1)
    assert stage.events == [*ready, one, other, other, one, *gone, *ready, one, other, *gone]


def test_idle_proxies_report_each_figure_separately() -> None:
    # 100 records in 10 s take 40 ms of CPU time; 5 ms of them are 0.5 ms at rest in each second.
    share = race.Share({"cpu_us_per_record": 400.0}, s_per_record=0.1)
    assert share.with_rest(0.0005) == {
        "cpu_us_per_record": 400.0,
        "cpu_us_per_record_over_rest": pytest.approx(350.0),
        "rest_cpu_ms_per_s": pytest.approx(0.5),
    }
    assert race.Share({"p50_us": 900.0}, s_per_record=0.1).with_rest(0.0) == {"p50_us": 900.0}  # no proxies


def test_failing_client_is_reported() -> None:
    dead = "import sys; print('ready', flush=True); sys.stdin.readline(); sys.exit(1)"
    with (
        pytest.raises(BenchError, match="sync failed with fleet"),
        metadata_client.client("timeit", "-n1", "-r1", dead, what="sync", target="fleet") as go,
    ):
        go()


def test_progress_without_terminal_prints_a_line_at_intervals() -> None:
    # Found: `make bench` printed nothing for an hour and a half if standard error was no terminal.
    out = io.StringIO()
    now_s = 100.0
    with report.progress(Console(file=out, width=80), clock=lambda: now_s) as say:
        say("round 1 of 3: sync, [direct]")
        now_s += report.LINE_EVERY_S - 1
        say("round 1 of 3: sync, fleet")
        now_s += 1
        say("round 1 of 3: small, fleet")
    assert out.getvalue() == "round 1 of 3: sync, [direct]\nround 1 of 3: small, fleet\n"


def test_sparse_workload_is_shorter_with_tls() -> None:
    plain = race.Plan(tls.WORKLOADS)
    plan = race.Plan(tls.WORKLOADS, counts=tls.COUNTS, runs=tls.RUNS)
    assert "sparse" in plan.workloads
    assert plan.count("sparse") * plan.runs["sparse"] < plain.count("sparse") * plain.runs["sparse"] == 400
    assert plan.count("sync") * plan.runs["sync"] == plain.count("sync") * plain.runs["sync"]


@pytest.mark.parametrize(
    ("processes", "allowed", "enough"),
    [(0, 20_000, True), (0, 10_000, False), (1, 20_000, False), (1, 25_000, True), (2, 20_000, True)],
)
def test_ten_thousand_connections_need_open_files_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, *, processes: int, allowed: int, enough: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    target = Target("it", "127.0.0.1:1", lambda: tuple(range(processes)))
    assert can_open_files(target, 10_000) is enough


def test_crowds_repeat_in_a_round_and_memory_is_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fake_crowd(target: Target, size: int, empty_bytes: int) -> dict[str, float]:
        assert empty_bytes == 0
        return {"cpu": float(size), "memory_mb": 1.0}

    monkeypatch.setattr(connections, "measure_crowd", fake_crowd)
    stage = cast(Stage, FakeStage("direct", "fleet"))
    runs = {100: 2, 1_000: 1}
    found = [each for number in range(2) for each in connections.crowds(stage, number, lambda _: None, runs)]
    assert [(each.measure, each.round, each.target) for each in found] == [
        ("cpu_100", 0, "direct"), ("memory_mb_100", 0, "direct"),
        ("cpu_100", 0, "fleet"), ("memory_mb_100", 0, "fleet"),
        ("cpu_100", 1, "fleet"), ("cpu_100", 1, "direct"),
        ("cpu_1000", 0, "direct"), ("memory_mb_1000", 0, "direct"),
        ("cpu_1000", 0, "fleet"), ("memory_mb_1000", 0, "fleet"),
        ("cpu_100", 2, "direct"), ("memory_mb_100", 2, "direct"),
        ("cpu_100", 2, "fleet"), ("memory_mb_100", 2, "fleet"),
        ("cpu_100", 3, "fleet"), ("cpu_100", 3, "direct"),
        ("cpu_1000", 1, "fleet"), ("memory_mb_1000", 1, "fleet"),
        ("cpu_1000", 1, "direct"), ("memory_mb_1000", 1, "direct"),
    ]  # fmt: skip


def test_each_round_has_its_own_folder_removed_afterwards(tmp_path: Path) -> None:
    lines: list[str] = []
    places = []
    for number, say, place in iterate_rounds(2, lines.append, tmp_path):
        say(f"turn {number}")
        (place / "log").touch()
        places.append(place)
        assert sorted(tmp_path.iterdir()) == [place]
    assert lines == ["round 1 of 2: turn 0", "round 2 of 2: turn 1"]
    assert len(set(places)) == 2
    assert not list(tmp_path.iterdir())


def test_storms_repeat_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def fake_staged(_: Path, brokers: int, *__: object) -> Iterator[list[Target]]:
        yield [Target(name, f"{name}:{brokers}") for name in ("forwarder", "fleet")]

    monkeypatch.setattr(storm, "staged", fake_staged)
    monkeypatch.setattr(storm, "storm", lambda target, _: {"cpu_us": float(len(target.name))})
    found = list(storm.samples(2, (), {}, runs={(3, 10): 2, (100, 10): 1}))
    assert [(each.measure, each.round, each.target) for each in found] == [
        ("storm_cpu_us_3x10", 0, "forwarder"), ("storm_cpu_us_3x10", 0, "fleet"),
        ("storm_cpu_us_3x10", 1, "fleet"), ("storm_cpu_us_3x10", 1, "forwarder"),
        ("storm_cpu_us_3x10", 2, "forwarder"), ("storm_cpu_us_3x10", 2, "fleet"),
        ("storm_cpu_us_3x10", 3, "fleet"), ("storm_cpu_us_3x10", 3, "forwarder"),
        ("storm_cpu_us_100x10", 0, "forwarder"), ("storm_cpu_us_100x10", 0, "fleet"),
        ("storm_cpu_us_100x10", 1, "fleet"), ("storm_cpu_us_100x10", 1, "forwarder"),
    ]  # fmt: skip


def test_tls_without_a_target_that_speaks_it_is_rejected() -> None:
    with pytest.raises(
        BenchError, match="tls: none of fleet-pure is among direct, haproxy, forwarder, fleet"
    ):
        next(tls.samples(1, ("fleet-pure",), 1.0, lambda _: None))


# ---- the report


def test_table_omits_members_equal_to_their_proxy() -> None:
    found = figures(
        [
            *samples("cpu_us", haproxy=[10, 12], fleet=[14, 1416.4]),
            *samples("member_cpu_us", haproxy=[1], fleet=[2]),
        ]
    )
    assert report.rows(found) == [
        ("sync", "cpu_us", "haproxy", "11.0", "10.0 … 12.0", "", "1.00"),
        ("sync", "cpu_us", "fleet", "715", "14.0 … 1,416", "", "59.72"),
        ("sync", "member_cpu_us", "fleet", "2.00", "", "", "2.00"),
    ]


def test_results_go_between_the_marks_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n")
    ran = [
        Sample("sync", "p50_us", "direct", 0, 3.0),
        Sample("small", "cpu_us_per_request", "haproxy", 0, 2.0),
    ]
    ran.append(Sample("small", "cpu_us_per_request", "fleet", 0, 3.0))
    found = figures(ran)
    for _ in range(2):  # the second time changes nothing
        report.write_docs(found, goals.verdicts(ran), "On some day.", page)
        text = page.read_text()
        assert text.startswith(f"# Title\n\n{report.BEGIN}\n\nOn some day.\n\n| goal |")
        assert (
            "| CPU per small request, pipelined, over HAProxy | ≤ 1 times | 1.50 times | **missed** |" in text
        )
        assert "![CPU time compared with HAProxy's](page.svg)" in text
        picture = (tmp_path / "page.svg").read_text()
        assert "small: cpu_us_per_request" in picture
        assert "sync: p50_us" not in picture
        assert "| sync | p50_us | direct | 3.00 |" in text
        assert text.endswith(f"\n{report.END}\n\nafter\n")
        assert "old" not in text


def test_page_without_marks_is_unchanged(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{report.END} {report.BEGIN}")
    with pytest.raises(BenchError, match=r"page\.md"):
        report.write_docs([], [], "", page)
    assert page.read_text() == f"{report.END} {report.BEGIN}"


def test_performance_page_has_the_marks() -> None:
    text = report.PAGE.read_text()
    assert text.index(report.BEGIN) < text.index(report.END)


def test_machine_description_omits_its_name() -> None:
    said = report.about("2.6.12", 5, 0.31, [71.2, 68.0, 139.6])
    assert socket.gethostname() not in said
    assert "HAProxy 2.6.12, 5 interleaved rounds, load average 0.3 before" in said
    assert "took 68 to 140 ms" in said
    assert "HAProxy" not in report.about(None, 5, 0.0, [70.0])
    assert "before" not in said.partition("after the last.")[2]
    earlier = report.about(None, 5, 0.0, [70.0], ("sync", "tls"))
    assert earlier.endswith("after the last. The figures of sync, tls are from an earlier run.")


# ---- the command line


def test_names_are_chosen_in_the_order_given_and_once() -> None:
    assert parse_names("b, a,b,", ("a", "b", "c"), "--only") == ("b", "a")


@pytest.mark.parametrize("text", ["d", "a,d", "", " , "])
def test_unknown_names_are_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter, match="a, b, c"):
        parse_names(text, ("a", "b", "c"), "--only")


# ---- goals


def verdict(what: str, ran: list[Sample]) -> tuple[float, bool]:
    (found,) = [each for each in goals.verdicts(ran) if each.goal.description == what]
    return found.value, found.met


def test_goal_against_a_target_is_the_median_of_round_ratios() -> None:
    both = {"haproxy": (1.0, 10.0, 2.0), "fleet": (0.9, 8.0, 4.0)}
    ran = [
        Sample("produce", "cpu_s_per_gb", target, number, value)
        for target, values in both.items()
        for number, value in enumerate(values)
    ]
    assert verdict("CPU per GB produced, over HAProxy", ran) == (0.9, True)
    assert verdict("CPU per GB produced, over HAProxy", ran[:3] + ran[5:]) == (2.0, False)


def test_added_latency_is_compared_with_haproxys() -> None:
    ran = [
        Sample("sync", "p50_us", target, 0, value)
        for target, value in (("direct", 100.0), ("haproxy", 150.0), ("fleet", 165.0))
    ]
    what = "p50 added, one in flight, over what HAProxy adds"
    assert verdict(what, ran) == (1.3, False)

    # Found: the p99 was lower with HAProxy than without, and the page reported `not measured`.
    ran[1] = replace(ran[1], value=95.0)
    assert verdict(what, ran) == (math.inf, False)
    assert (what, "≤ 1.2 times", "HAProxy adds nothing", "**missed**") in report.goals(goals.verdicts(ran))
    ran[2] = replace(ran[2], value=100.0)
    assert verdict(what, ran) == (0.0, True)


def test_spread_of_connections_is_the_maximum_over_the_mean() -> None:
    assert max_to_mean([10, 12], [110, 112]) == 1.0
    assert max_to_mean([10, 10], [10, 210]) == 2.0


def test_goals_without_measurements_are_omitted() -> None:
    assert goals.verdicts([Sample("sync", "p50_us", "fleet", 0, 1.0)]) == []
    assert len({each.description for each in goals.GOALS}) == len(goals.GOALS)


def test_goals_refer_to_existing_measures() -> None:
    """The page has the last written run: a measure that was renamed since would be missing."""
    text = report.PAGE.read_text()
    assert all(f"| {each.description} |" in text for each in goals.GOALS)
    assert "not measured" not in text.partition(report.BEGIN)[2].partition(report.END)[0]
