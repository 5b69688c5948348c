"""Traces of a real fleet's takeovers at a real OTLP receiver over HTTP, and without a receiver."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from prometheus_client import Metric
from prometheus_client.openmetrics import parser

from fleet.control.tracing import SEND_TIMEOUT_S
from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.ports import free_ports
from tests.conftest import MakeFleet
from tests.integration.clients import wait_for
from tests.integration.conftest import PATIENT, FleetCommand

pytestmark = pytest.mark.size("test-all")

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
HEADER = "X-Collector-Token"
PARSE: Callable[[str], Iterable[Metric]] = parser.text_string_to_metric_families


@dataclass(frozen=True)
class Exported:
    """A span, and the resource that exported it."""

    by: str
    service: Mapping[str, object]
    name: str
    trace_id: str
    span_id: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, object]


class Collector:
    """The received exports in order."""

    def __init__(self) -> None:
        self.spans: list[Exported] = []
        self.headers: set[str | None] = set()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            service = values(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [
                    Exported(
                        str(service["service.instance.id"]),
                        service,
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        values(span.attributes),
                    )
                    for span in scope.spans
                ]

    def by_name(self, name: str, **expected: object) -> list[Exported]:
        """Spans with a name and these attributes; an underscore replaces a full stop."""
        return [
            each
            for each in list(self.spans)
            if each.name == name
            and all(each.attributes.get(key.replace("_", ".")) == value for key, value in expected.items())
        ]


def values(attributes: Iterable[KeyValue]) -> dict[str, object]:
    return {each.key: value(each.value) for each in attributes}


def value(any_value: AnyValue) -> object:
    kind = any_value.WhichOneof("value")
    assert kind is not None
    if kind == "array_value":
        return [value(each) for each in any_value.array_value.values]
    return getattr(any_value, kind)


@contextmanager
def collector(port: int) -> Iterator[Collector]:
    """Receives OTLP over HTTP, as specified."""
    traces = Collector()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] == "gzip":
                body = gzip.decompress(body)
            if (self.path, self.headers["Content-Type"]) != ("/v1/traces", "application/x-protobuf"):
                self.send_error(404)
                return
            traces.headers.add(self.headers[HEADER])
            traces.take(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Receiver) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield traces
        finally:
            server.shutdown()
            serving.join()


def exemplars(fleet: LocalFleet, proxy_id: ProxyId) -> list[str]:
    """The traces that a member names next to the durations of takeovers."""
    request = Request(
        f"http://{fleet.settings.member(proxy_id).admin}/metrics", headers={"Accept": OPENMETRICS}
    )
    with urlopen(request, timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        families = list(PARSE(answer.read().decode()))
    return [
        sample.exemplar.labels["trace_id"]
        for family in families
        for sample in family.samples
        if family.name == "fleet_takeover_duration_seconds" and sample.exemplar is not None
    ]


def test_survivors_report_a_takeover_in_one_trace(
    kafka: KafkaCluster, make_fleet: MakeFleet, fleet_command: FleetCommand, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    secret = tmp_path / "token"
    secret.touch(0o600)
    secret.write_text("let me in\n")
    with collector(port) as traces:
        tracing = {"endpoint": f"http://127.0.0.1:{port}", "headers": {HEADER: {"file": str(secret)}}}
        fleet = make_fleet(tracing=tracing, timing=PATIENT)
        leader = fleet.leader()
        assert leader is not None
        victim = leader
        fleet.kill(victim)
        fleet.await_settled(frozenset(kafka.brokers), fleet.running)
        survivors = set(fleet.running)

        def takeovers() -> list[Exported]:
            return traces.by_name("fleet.takeover", fleet_member=victim)

        wait_for(lambda: {each.by for each in takeovers()} == survivors, "both survivors report the takeover")
        (trace,) = {each.trace_id for each in takeovers()}
        wait_for(lambda: all(trace in exemplars(fleet, each) for each in survivors), "metrics name it")
        for root in takeovers():
            inside = {each.name: each for each in traces.spans if each.parent == root.span_id}
            assert inside.keys() == {f"fleet.takeover.{part}" for part in ("detect", "advertise", "commit")}
            assert root.parent == ""
            assert root.start_ns == inside["fleet.takeover.detect"].start_ns
            assert root.end_ns == max(each.end_ns for each in inside.values())
            assert {each.trace_id for each in inside.values()} == {trace}
            assert root.attributes["fleet.committed"] is True
            assert root.service["service.name"] == "kafka-proxy-fleet"
            assert root.service["fleet.name"] == root.service["service.namespace"] == "demo"

        def changes() -> list[Exported]:
            """The changes of owners, as the leader at that time reports them."""
            found = traces.by_name("fleet.ownership", fleet_reason="takeover")
            return [each for each in found if each.trace_id == trace]

        wait_for(changes, "the leader reports the change of owners")
        (change,) = changes()
        new_leader = change.by
        wait_for(
            lambda: new_leader in {each.by for each in traces.by_name("fleet.election")},
            "a reported election",
        )

        drained = next(each for each in fleet.running if each != new_leader)
        fleet_command(fleet, "drain", drained)
        wait_for(
            lambda: traces.by_name("fleet.drain", fleet_member=drained, fleet_outcome="applied"), "a drain"
        )
        wait_for(
            lambda: {each.by for each in traces.by_name("fleet.takeover", fleet_reason="drain")} == survivors,
            "what was drained goes to another",
        )
        moves = traces.by_name("fleet.takeover", fleet_reason="drain")
        assert len({each.trace_id for each in moves}) == 1
        assert traces.headers == {"let me in"}


def test_missing_collector_does_not_change_a_takeover(kafka: KafkaCluster, make_fleet: MakeFleet) -> None:
    (port,) = free_ports(1)
    fleet = make_fleet(tracing={"endpoint": f"http://127.0.0.1:{port}"}, timing=PATIENT)
    victim = fleet.running[0]
    fleet.kill(victim)
    fleet.await_settled(frozenset(kafka.brokers), fleet.running)
    for survivor in fleet.running:
        (takeover,) = [each for each in fleet.ownership(survivor).takeovers if each.proxy_id == victim]
        assert takeover.advertised_mono_s is not None
        assert takeover.committed_mono_s is not None
        assert takeover.committed_mono_s - takeover.detected_mono_s < SEND_TIMEOUT_S / 2
    wait_for(lambda: all(warnings(fleet, each) for each in fleet.running), "the line in the log")
    for survivor in fleet.running:
        (warning,) = warnings(fleet, survivor)
        assert f"http://127.0.0.1:{port}/v1/traces" in warning
        assert "refused" in warning


def warnings(fleet: LocalFleet, proxy_id: ProxyId) -> list[str]:
    """The warnings about traces, and about the library, in a member's log."""
    lines = fleet.log(proxy_id).read_text().splitlines()
    return [each for each in lines if "traces" in each or "opentelemetry" in each]
