"""The takeover benchmark's figures, from histories and rounds."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from benchmarks import stalls, takeover
from benchmarks.errors import BenchError
from benchmarks.metadata_requests import MetadataRequestCounter, ResponseLog, requests_in
from benchmarks.stalls import Outcome, Stall
from benchmarks.takeover import GOALS, Deliveries, Figures, Kill, _kill, document, figures, missed
from fleet.core.model import Endpoint, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.demo.result import Round
from fleet.drills.demo.rounds import Rounds
from fleet.drills.workload.audit import Audit
from fleet.drills.workload.clients import Workload, WorkloadSpec
from fleet.drills.workload.history import NO_OFFSET, Event, HistoryWriter, Record

CLEAN = Audit(10, 10, 0, 0, 0, 0)


class Histories:
    """Writes histories as a workload does."""

    def __init__(self, folder: Path) -> None:
        self.workload = Workload(WorkloadSpec("127.0.0.1:9", "t", str(folder)))
        self._writers = {
            each: HistoryWriter(folder / f"{each}.history") for each in ("produced", "acknowledged")
        }

    def write(self, history: str, sequence: int, at_s: float, partition: int = 0) -> None:
        writer = self._writers[history]
        writer.append(Event(at_s, partition, Record(7, sequence), NO_OFFSET))
        writer.flush()


@pytest.fixture
def histories(tmp_path: Path) -> Histories:
    return Histories(tmp_path)


def test_longest_delivery_ends_in_the_window(histories: Histories) -> None:
    deliveries = Deliveries(histories.workload)
    for sequence, (produced_s, acknowledged_s) in enumerate(
        [(1.0, 9.0), (9.5, 10.25), (10.5, 12.0), (11.0, 11.1)]
    ):
        histories.write("produced", sequence, produced_s)
        histories.write("acknowledged", sequence, acknowledged_s)
    assert deliveries.longest_ms(10.0, 11.5) == pytest.approx(750.0)


def test_undelivered_record_counts_to_the_end_of_the_window(histories: Histories) -> None:
    deliveries = Deliveries(histories.workload)
    histories.write("produced", 0, 10.0)
    assert deliveries.longest_ms(9.0, 12.0) == pytest.approx(2000.0)
    histories.write("acknowledged", 0, 13.0)
    assert deliveries.longest_ms(12.0, 14.0) == pytest.approx(3000.0)
    assert deliveries.longest_ms(14.0, 15.0) == 0.0


def test_an_acknowledgement_may_be_on_disk_before_its_production(histories: Histories) -> None:
    deliveries = Deliveries(histories.workload)
    histories.write("acknowledged", 0, 10.5)
    assert deliveries.longest_ms(10.0, 11.0) == 0.0
    histories.write("produced", 0, 10.0)
    assert deliveries.longest_ms(10.0, 20.0) == pytest.approx(500.0)


async def test_requests_before_the_kill_are_not_counted(histories: Histories) -> None:
    """Found: a stale answer was counted that came half a second before the kill."""
    stale = {Endpoint("h", 1)}

    class Client:
        def __init__(self) -> None:
            self.requests = 0
            self.answers: list[set[Endpoint]] = []

        def ask(self, answer: set[Endpoint]) -> None:
            self.requests += 1
            self.answers.append(answer)

    class PaperRounds:
        async def aim(self, wish: str) -> tuple[ProxyId, bool]:
            client.ask(stale)
            return "p1", wish == "leader"

        async def kill(self, victim: ProxyId, was_leader: bool) -> Round:
            client.ask(stale)
            client.ask({Endpoint("h", 2)})
            return Round(victim, was_leader, 1.0, 2.0, 3.0, 4.0, 5.0)

    class PaperFleet:
        owner_of = {Endpoint("h", 1): "p1", Endpoint("h", 2): "p2"}.get

    client = Client()
    kill = await _kill(
        cast(LocalFleet, PaperFleet()),
        cast(Rounds, PaperRounds()),
        Deliveries(histories.workload),
        cast(MetadataRequestCounter, client),
        "leader",
    )
    assert (kill.was_leader, kill.metadata_requests, kill.stale_answers) == (True, 2, 1)


def test_partitions_are_measured_separately(histories: Histories) -> None:
    deliveries = Deliveries(histories.workload)
    for partition, took_s in ((0, 0.1), (1, 0.4)):
        histories.write("produced", 0, 10.0, partition)
        histories.write("acknowledged", 0, 10.0 + took_s, partition)
    assert deliveries.longest_ms(10.0, 11.0) == pytest.approx(400.0)


def kill(advertised_ms: float | None, delivery_ms: float) -> Kill:
    return Kill(Round("p1", True, 20.0, advertised_ms, 300.0, 100.0, 100.0), delivery_ms, 2, 0)


def test_median_and_worst_miss_their_goals() -> None:
    kills = [kill(40.0, 100.0), kill(90.0, 140.0), kill(600.0, 2000.0)]
    found = figures(kills)
    assert found["advertised_ms"] == Figures(90.0, 600.0)
    assert found["delivery_ms"] == Figures(140.0, 2000.0)
    assert missed(found, GOALS["recommended"]) == ["advertised_ms: worst 600 ms, goal 500 ms"]
    assert found["metadata_requests"] == Figures(2, 2)
    slower = figures([kill(40.0, 700.0)])
    assert missed(slower, GOALS["default"]) == ["delivery_ms: median 700 ms, goal 600 ms"]


def test_event_that_never_happened_has_no_figure_and_no_goal() -> None:
    kills = [kill(40.0, 100.0), kill(None, 100.0)]
    assert figures(kills)["advertised_ms"] == Figures(None, None)
    said = document("default", CLEAN, kills)["missed"]
    assert said == [
        "advertised_ms: median never, goal 100 ms",
        "advertised_ms: worst never, goal 500 ms",
    ]
    assert len(missed(figures([]), GOALS["default"])) == len(GOALS["default"])


def test_requests_to_all_brokers_are_counted() -> None:
    brokers = {"a": {"req": {"Metadata": 3, "Produce": 9}}, "b": {"req": {}}, "c": {"req": {"Metadata": 1}}}
    assert requests_in({"brokers": brokers}) == 4


def test_responses_are_read_from_librdkafkas_log() -> None:
    """Lines as librdkafka 2.x writes them (`rd_kafka_parse_Metadata`)."""
    answers = ResponseLog()
    for line in (
        "[thrd:main]: 10.0.0.1:19091/1: ===== Received metadata (for 1 requested topics): broker down =====",
        "[thrd:main]: 10.0.0.1:19091/1:   Broker #0/2: 10.0.0.1:19091 NodeId 1",
        "[thrd:main]: 10.0.0.1:19091/1:   Broker #1/2: 10.0.0.2:19092 NodeId 2",
        "[thrd:main]: 10.0.0.1:19091/1:   Topic t with 1 partitions",
        "[thrd:main]: 10.0.0.2:19092/2:   Broker #0/1: 10.0.0.2:19092 NodeId 2",
    ):
        answers.emit(logging.LogRecord("refreshes", logging.DEBUG, __file__, 0, line, None, None))
    first, second = Endpoint("10.0.0.1", 19091), Endpoint("10.0.0.2", 19092)
    assert answers.seen == [{first, second}, {second}]


def outcome(*kills: Kill, late: tuple[str, ...] = ()) -> Callable[..., Awaitable[object]]:
    """A fake run with this result."""

    async def run(*_: object) -> object:
        return CLEAN, kills, list(late)

    return run


def outcomes(**audits: Audit) -> Callable[..., Awaitable[object]]:
    """A fake run of other clients: the leader and a follower were killed once each."""
    stalled = (Stall("p1", True, 300.0, 400.0), Stall("p2", False, 100.0, 200.0))

    async def run(*_: object) -> object:
        return {client: Outcome(audit, stalled) for client, audit in audits.items()}

    return run


def test_kills_become_samples_by_round_victim_and_client(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = kill(40.0, 100.0), kill(None, 200.0)
    follower = replace(follower, round=replace(follower.round, was_leader=False))
    monkeypatch.setattr(takeover, "run", outcome(leader, follower, leader, follower))
    monkeypatch.setattr(stalls, "run", outcomes())
    found = list(takeover.samples(2))
    assert {each.measure for each in found if each.measure.startswith("advertised")} == {
        "advertised_ms_leader_default",
        "advertised_ms_leader_recommended",
    }
    assert [
        (each.round, each.value) for each in found if each.measure == "delivery_ms_follower_recommended"
    ] == [(0, 200.0), (1, 200.0)]


def test_stalls_of_other_clients_become_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "run", outcome())
    monkeypatch.setattr(stalls, "run", outcomes(java=CLEAN, aiokafka=CLEAN))
    found = list(takeover.samples(1))
    assert {each.measure: each.value for each in found} == {
        f"{whose}_stall_ms_{who}_{client}": value
        for client in ("java", "aiokafka")
        for (whose, who), value in {
            ("producer", "leader"): 300.0,
            ("consumer", "leader"): 400.0,
            ("producer", "follower"): 100.0,
            ("consumer", "follower"): 200.0,
        }.items()
    }
    assert {(each.workload, each.target, each.round) for each in found} == {("takeover", "fleet", 0)}


def test_failed_takeover_has_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "run", outcome(late=("p1 did not come back",)))
    with pytest.raises(BenchError, match="p1 did not come back"):
        list(takeover.samples(1))


def test_record_lost_by_another_client_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "run", outcome())
    monkeypatch.setattr(stalls, "run", outcomes(java=CLEAN, aiokafka=replace(CLEAN, lost=1)))
    with pytest.raises(BenchError, match=r"aiokafka: .*lost=1"):
        list(takeover.samples(1))


def test_document_of_another_client_has_stalls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "run", outcomes(java=CLEAN))
    found = CliRunner().invoke(takeover.main, ["--client", "java", "--kills", "2", "--strict", "--json"])
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert said["client"] == "java"
    assert said["kills"][0] == {
        "killed": "p1",
        "was_leader": True,
        "producer_stall_ms": 300.0,
        "consumer_stall_ms": 400.0,
    }
    assert said["figures"] == {
        "producer_stall_ms": {"median": 200.0, "worst": 300.0},
        "consumer_stall_ms": {"median": 300.0, "worst": 400.0},
    }
    assert said["missed"] == []


@pytest.mark.parametrize(
    ("client", "lost", "code"), [("recommended", 0, 0), ("aiokafka", 0, 0), ("aiokafka", 1, 1)]
)
def test_exit_code_is_of_the_requested_client(
    client: str, lost: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "run", outcome(kill(40.0, 100.0)))
    monkeypatch.setattr(stalls, "run", outcomes(aiokafka=replace(CLEAN, lost=lost)))
    assert CliRunner().invoke(takeover.main, ["--client", client]).exit_code == code
