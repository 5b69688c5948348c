"""fleet/control/tracing.py: the spans of each action, and that no collector blocks a member."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
import urllib3.util.connection  # noqa: F401  binds ::1 when it is first imported, not within a unit test
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from fleet.config import TracingSettings
from fleet.control import process
from fleet.control.tracing import MAX_WAITING_SPANS, Tracing, make_exporter
from fleet.core.errors import ConfigError, NoQuorum
from fleet.core.model import Ownership
from fleet.core.replication import RaftStatus, Role
from fleet.core.state import BrokerGone, Command, DrainSet, Outcome, OwnershipSet, PinSet, stamp
from fleet.core.takeover import Moment, Takeover
from tests.unit.config.test_file import changed, parse, tree

COLLECTOR = "http://127.0.0.1:4318"
LIMIT_S = 20.0


def at(seconds: float) -> Moment:
    """An instant. The wall clock starts at a million, and jumps back by an hour at 11 s."""
    return Moment(int(1_000_000 + seconds * 1000) - (3_600_000 if seconds >= 11 else 0), seconds)


def ns(seconds: float) -> int:
    return round((1000 + seconds) * 1e9)


DEATH = Takeover("p2", "reset", at(10), (2, 5), at(10.02), at(11.25), at(9.9504), "p1-c7")


class Clock:
    def __init__(self) -> None:
        self.now_s = 10.0

    def __call__(self) -> Moment:
        return at(self.now_s)


class TracedFleet:
    """The members of a fleet, and the spans that they recorded."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._members: list[tuple[Tracing, InMemorySpanExporter]] = []

    def member(self, me: str = "p1", fleet: str = "demo") -> Tracing:
        memory = InMemorySpanExporter()
        made = Tracing(memory, COLLECTOR, fleet, me, self.clock)
        self._members.append((made, memory))
        return made

    def spans(self) -> list[ReadableSpan]:
        for tracing, _ in self._members:
            tracing.stop(LIMIT_S)
        return [span for _, memory in self._members for span in memory.get_finished_spans()]


@pytest.fixture
def fleet_traces() -> TracedFleet:
    return TracedFleet()


@pytest.fixture(autouse=True)
def library_log() -> Iterator[None]:
    """Restore the library's logger after the test."""
    library = logging.getLogger("opentelemetry")
    handlers, propagate = library.handlers, library.propagate
    yield
    library.handlers, library.propagate = handlers, propagate


def context_of(span: ReadableSpan) -> tuple[str, int]:
    assert span.context is not None
    return f"{span.context.trace_id:032x}", span.context.span_id


def test_takeover_span_ignores_wall_clock_jumps(
    fleet_traces: TracedFleet,
) -> None:
    fleet_traces.member().on_takeover_ended(DEATH)
    spans = {span.name: span for span in fleet_traces.spans()}
    assert {name: (span.start_time, span.end_time) for name, span in spans.items()} == {
        "fleet.takeover": (ns(9.95), ns(11.2496)),
        "fleet.takeover.detect": (ns(9.95), ns(9.9996)),
        "fleet.takeover.advertise": (ns(9.9996), ns(10.0196)),
        "fleet.takeover.commit": (ns(9.9996), ns(11.2496)),
    }
    root = spans.pop("fleet.takeover")
    assert root.parent is None
    assert all(span.parent == root.context for span in spans.values())
    assert root.attributes == {
        "fleet.member": "p2",
        "fleet.reason": "reset",
        "fleet.identities": (2, 5),
        "fleet.committed": True,
    }
    expected = {
        "service.name": "kafka-proxy-fleet",
        "service.namespace": "demo",
        "service.instance.id": "p1",
        "fleet.name": "demo",
    }
    assert expected.items() <= dict(root.resource.attributes).items()


def test_members_share_one_trace_per_change(fleet_traces: TracedFleet) -> None:
    for me, detected in (("p1", 10.0), ("p3", 9.98)):
        seen = Takeover("p2", "reset", at(detected), (2,), at(10.02), at(11.25), change="p1-c7")
        fleet_traces.member(me).on_takeover_ended(seen)
    fleet_traces.member("p1", "another").on_takeover_ended(DEATH)
    fleet_traces.member("p4").on_takeover_ended(
        Takeover("p2", "reset", at(20), (2,), at(21), at(22), change="p1-c8")
    )
    roots = [span for span in fleet_traces.spans() if span.parent is None]
    assert len({context_of(span)[1] for span in roots}) == 4
    first, second, another, next_one = (context_of(span)[0] for span in roots)
    assert first == second == DEATH.trace_id("demo")
    assert len({first, another, next_one}) == 3


def test_unknown_moments_are_left_out(fleet_traces: TracedFleet) -> None:
    drained = Takeover("p2", "drain", at(10), (2,), at(10.5), at(10.25), change="p1-c7")
    came_back = Takeover("p3", "silent", at(10), (3,), at(10.5), alive=at(9))
    tracing = fleet_traces.member()
    tracing.on_takeover_ended(drained)
    tracing.on_takeover_ended(came_back)
    spans = fleet_traces.spans()
    traces = [drained.trace_id("demo"), came_back.trace_id("demo")]
    of_drained, of_return = (
        {each.name.removeprefix("fleet.takeover"): each for each in spans if context_of(each)[0] == trace}
        for trace in traces
    )
    assert of_drained.keys() == {"", ".advertise", ".commit"}
    assert (of_drained[""].start_time, of_drained[""].end_time) == (ns(10), ns(10.5))
    assert of_return.keys() == {"", ".detect", ".advertise"}
    assert dict(of_return[""].attributes or {})["fleet.committed"] is False


@pytest.mark.parametrize(
    ("command", "name", "attributes"),
    [
        (DrainSet("p2", True), "fleet.drain", {"fleet.member": "p2"}),
        (DrainSet("p2", False), "fleet.undrain", {"fleet.member": "p2"}),
        (PinSet(3, "p2"), "fleet.pin", {"fleet.identities": (3,), "fleet.member": "p2"}),
        (PinSet(3, None), "fleet.unpin", {"fleet.identities": (3,)}),
        (
            OwnershipSet(6, {4: Ownership(("p1",)), 2: Ownership(("p1",))}, (9,), "join"),
            "fleet.ownership",
            {"fleet.identities": (2, 4, 9), "fleet.reason": "join"},
        ),
    ],
)
def test_proposer_records_a_command_with_its_outcome(
    fleet_traces: TracedFleet, command: Command, name: str, attributes: dict[str, object]
) -> None:
    outcome: Future[Outcome] = Future()
    fleet_traces.member().on_proposed(stamp(command, "p1-c7", 1), outcome)
    fleet_traces.clock.now_s = 10.5
    outcome.set_result(Outcome(True, "", 7))
    (span,) = fleet_traces.spans()
    assert (span.name, span.start_time, span.end_time) == (name, ns(10), ns(10.5))
    assert span.attributes == {**attributes, "fleet.generation": 7, "fleet.outcome": "applied"}
    assert span.status.status_code is StatusCode.UNSET
    assert context_of(span)[0] == DEATH.trace_id("demo"), "the command belongs to the trace of its takeover"


def fail(outcome: Future[Outcome]) -> None:
    outcome.set_exception(NoQuorum("no leader"))


def cancel(outcome: Future[Outcome]) -> None:
    assert outcome.cancel()


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        (fail, "no leader"),
        (cancel, "cancelled"),
        (lambda outcome: outcome.set_result(Outcome(False, "unknown_member")), "unknown_member"),
        (lambda outcome: outcome.set_result(Outcome(False, "no_change")), None),
    ],
)
def test_failed_operator_command_is_an_error(
    fleet_traces: TracedFleet, ends: Callable[[Future[Outcome]], None], error: str | None
) -> None:
    tracing = fleet_traces.member()
    for command in (DrainSet("p2", True), OwnershipSet(6, {}), BrokerGone(1)):
        outcome: Future[Outcome] = Future()
        tracing.on_proposed(stamp(command, "p1-c7", 1), outcome)
        ends(outcome)
    (span,) = fleet_traces.spans()
    assert (span.name, span.status.description) == ("fleet.drain", error)
    assert (span.status.status_code is StatusCode.ERROR) == (error is not None)


def test_new_leader_records_the_election(fleet_traces: TracedFleet) -> None:
    tracing, other = fleet_traces.member("p1"), fleet_traces.member("p2")
    steps: Sequence[tuple[float, Role, str | None, Role]] = (
        (10.0, "follower", "p3", "follower"),
        (10.1, "follower", None, "follower"),
        (10.2, "candidate", None, "follower"),
        (10.4, "leader", "p1", "follower"),
        (10.5, "leader", "p1", "follower"),
        (10.6, "leader", "p1", "follower"),
    )
    for now_s, role, leader, role_of_other in steps:
        fleet_traces.clock.now_s = now_s
        tracing.on_raft_status(RaftStatus(role, leader, 5, 1, True, None))
        other.on_raft_status(RaftStatus(role_of_other, leader, 5, 1, True, None))
    (span,) = fleet_traces.spans()
    assert (span.name, span.start_time, span.end_time) == ("fleet.election", ns(10.1), ns(10.4))
    assert span.resource.attributes["service.instance.id"] == "p1"
    assert span.attributes == {"fleet.term": 5}


class Collector(SpanExporter):
    """Accepts a batch only when the test releases it, with the result that the test sets."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.answers = threading.Semaphore(0)
        self.takes = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.release()
        self.answers.acquire()
        if self.takes:
            return SpanExportResult.SUCCESS
        logging.getLogger("opentelemetry.exporter").warning("refused %d", len(spans))
        logging.getLogger("opentelemetry.exporter").error("given up")
        return SpanExportResult.FAILURE


def test_refusing_collector_blocks_nothing_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    collector = Collector()
    tracing = Tracing(collector, COLLECTOR, "demo", "p1", Clock())
    for takes in (False, False, True, False):
        tracing.on_takeover_ended(DEATH)
        assert collector.asked.acquire(timeout=LIMIT_S)
        collector.takes = takes
        collector.answers.release()
    tracing.on_takeover_ended(DEATH)
    assert collector.asked.acquire(timeout=LIMIT_S), "the exporter has sent the next batch"
    lines = [each.getMessage() for each in caplog.records]
    for _ in range(MAX_WAITING_SPANS):
        tracing.on_takeover_ended(DEATH)
    tracing.stop(0.01)
    collector.answers.release(MAX_WAITING_SPANS)
    refused = f"collector refuses traces, dropping them (logged once): url={COLLECTOR}: refused 4"
    assert lines == [refused, f"collector accepts traces again: url={COLLECTOR}", refused]


def traced(**fields: object) -> TracingSettings:
    settings = parse(changed("tracing", {"endpoint": COLLECTOR, **fields})).tracing
    assert settings is not None
    return settings


def test_a_header_is_read_when_control_starts(tmp_path: Path) -> None:
    token = tmp_path / "token"
    settings = traced(headers={"Authorization": {"file": str(token)}})
    with pytest.raises(ConfigError, match=r"tracing\.headers\.Authorization: .*token: cannot be read"):
        make_exporter(settings, "fleet.yaml")
    token.touch(0o600)
    token.write_text("Bearer x\n")
    make_exporter(settings, "fleet.yaml").shutdown()


@pytest.mark.parametrize("missing", ["header", "package", "number"])
def test_control_runs_without_traces_when_tracing_fails(
    missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"Authorization": {"env": "NOBODY_SETS_THIS"}} if missing == "header" else {}
    if missing == "package":
        monkeypatch.setitem(sys.modules, "fleet.control.tracing", None)
    if missing == "number":
        monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many")
    settings = parse(changed("tracing", {"endpoint": COLLECTOR, "headers": headers}))
    assert process.make_tracing(settings, "p1") is None
    assert "tracing is off in this control process" in caplog.text
    caplog.clear()
    assert process.make_tracing(parse(tree()), "p1") is None
    assert caplog.text == ""
