"""docs/schemas match the code, and printed documents match the schemas."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest

from fleet.admin import documents, status
from fleet.admin.client_settings import Client, basis_of, settings_for
from fleet.admin.documents import Finding
from fleet.admin.ownership import ownership_document, ready_document
from fleet.admin.snapshot import RaftView
from fleet.admin.traffic import Counts, rate_sources, rates, traffic_document
from fleet.cli import journal_files, node
from fleet.config.file import load
from fleet.core import event_schema as schema_of_events
from fleet.core.errors import AdminError
from fleet.core.liveness import Transition
from fleet.core.model import Liveness, Ownership
from fleet.core.renamed_keys import RENAMED_KEYS
from fleet.core.state import MemberUp, OwnershipSet
from fleet.drills.game_day import report as report_of_game_day
from fleet.drills.game_day import verdict
from fleet.pipeline import observations
from fleet.pipeline.documents import (
    ANOMALIES,
    AUDIT,
    AVAILABILITY,
    PIPELINE,
    REPORT,
    AnomaliesDocument,
    AttainmentDocument,
    AvailabilityDocument,
    FlappingDocument,
    JobDocument,
    OneSidedDocument,
    OutageDocument,
    PipelineDocument,
    StaleClientDocument,
    TakeoverDocument,
)
from tests.chaos.seeded import report
from tests.chaos.seeded.spark_crosscheck import CROSSCHECK, AuditTotals, CrossCheckDocument
from tests.drills.sample_game_day import seen
from tests.tools.sample_chaos import chaos_run
from tests.unit.admin.sample_snapshot import view
from tests.unit.events.test_recorder import P1, Log
from tests.unit.pipeline.sample_report import sample as sample_report
from tools import gen_schemas

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "schemas"


def schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    return loaded


def samples() -> dict[str, list[bytes]]:
    """Documents of each kind, as the code makes them."""
    full = ownership_document(view())
    bare = ownership_document(view(raft=RaftView(), members=(), workers=(), upstream_up={}))
    answers: status.Answers = {"p1": full, "p2": AdminError("gone")}
    urls = {"p1": "http://a", "p2": "http://b"}
    error = documents.ErrorDocument(documents.ErrorDetail("no_quorum", "no majority"))
    files = ("certs/ca.pem", "certs/p1.crt", "certs/p1.key")
    certificates = tuple(
        documents.CertificateDocument("p1", *files, expires) for expires in ("2027-01-01T00:00:00Z", None)
    )
    settings = load(ROOT / "deploy" / "examples" / "fleet.yaml", {})
    taken = TakeoverDocument("demo", 1, 7, ("p2",), 900, 1_000, 1_050, 1_100, None)
    out = OutageDocument("demo", 1, 1_200, None, 3)
    attained = AttainmentDocument("demo", 1, "2026-11-21", 86_400_000, 50, 1 - 50 / 86_400_000, 8_640, 8_590)
    together = dataclasses.replace(attained, broker_id=None)
    available = AvailabilityDocument(1_000, 2_000, 0.9999, (taken,), (out,), (together,), (attained,))
    odd = AnomaliesDocument(
        1_000,
        2_000,
        (FlappingDocument("demo", "p1", "p2", 1_000, 1_500, 3),),
        (OneSidedDocument("demo", "p1", "p2", 1_000, 1_500),),
        (StaleClientDocument("demo", "192.0.2.1", "c", 1, "p1", 1_000, 1_500, 3),),
    )
    return {
        "chaos": [report.CHAOS.encode(report.summarize(results)) for results in ([], [chaos_run()])],
        "certs": [documents.CERTS.encode(documents.CertsDocument("demo", certificates, ("copy them",)))],
        "check": [documents.CHECK.encode(node.config_document(settings))],
        "client-config": [
            documents.CLIENT_CONFIG.encode(
                documents.ClientConfigDocument(
                    each, "external", ("p1:9110",), settings_for(each, secured=True), basis_of(each)
                )
            )
            for each in get_args(Client)
        ],
        "doctor": [
            documents.DOCTOR.encode(
                documents.DoctorDocument("demo", False, (Finding("clocks", "p1", "warning", "late", "NTP"),))
            )
        ],
        "drain": [documents.DRAIN.encode(documents.DrainDocument("p1", True, True, 8))],
        "error": [documents.ERROR.encode(error)],
        "events": [schema_of_events.EVENTS.encode(each) for each in events()],
        "game-day": [
            report_of_game_day.GAME_DAY.encode(verdict.document(each)) for each in (seen(), seen(fault=None))
        ],
        "journal": [journal_files.JOURNAL.encode(journal_files.check(settings, "p1"))],
        "spark-crosscheck": [CROSSCHECK.encode(CrossCheckDocument(9, 0, 0, 1, AuditTotals(0, 1, 2), 0))],
        "live": [documents.LIVE.encode(live_sample())],
        "node": [documents.NODE.encode(documents.NodeDocument("p1", 0))],
        "observations": [
            observations.EVENTS.encode(each)
            for each in (
                observations.LedgerEntry("orders", "acknowledged", 3, 1, 4_711, None, 1, 5),
                observations.ViewEvent("p1", 1, 2, None, 5),
                observations.OutageEvent("o", ("p1",), ("p2",), 5, 6),
            )
        ],
        "ownership": [documents.OWNERSHIP.encode(each) for each in (full, bare)],
        "anomalies": [ANOMALIES.encode(odd)],
        "audit": [AUDIT.encode(sample_report().audit)],
        "availability": [AVAILABILITY.encode(available)],
        "pin": [documents.PIN.encode(documents.PinDocument(1, each, True, 8)) for each in ("p1", None)],
        "pipeline": [
            PIPELINE.encode(
                PipelineDocument("out", (JobDocument("timeline", 7), JobDocument("dead-letters", 9, 2)))
            )
        ],
        "plan": [documents.PLAN.encode(status.plan(answers, ("p1",)))],
        "ready": [documents.READY.encode(ready_document(view()))],
        "report": [REPORT.encode(sample_report())],
        "rolling-restart": [
            documents.ROLLING_RESTART.encode(
                documents.RollingRestartDocument((documents.RestartedMember("p1", True, 9.5),))
            )
        ],
        "status": [documents.STATUS.encode(status.fleet_status(answers, urls))],
        "traffic": [documents.TRAFFIC.encode(traffic_document(view()))],
    }


def live_sample() -> documents.LiveDocument:
    counts: Counts = {"p1": traffic_document(view()), "p2": AdminError("gone")}
    return documents.LiveDocument(ownership_document(view()), rates({}, counts), rate_sources({}, counts))


def events() -> list[schema_of_events.Event]:
    log = Log(MemberUp(P1), OwnershipSet(0, {1: Ownership(("p1",))}, (), "bootstrap"))
    transition = Transition("p1", Liveness.UP, Liveness.SUSPECT, "reset", 1.0)
    return [*log.first_events, *log.recorder.record_transitions([transition], 1)]


SAMPLES = samples()


def test_schema_files_are_up_to_date() -> None:
    rendered: dict[Path, str] = gen_schemas.render()
    assert {path: path.read_text(encoding="utf-8") for path in rendered} == rendered
    assert {path.name.removesuffix(".schema.json") for path in rendered} == set(SAMPLES)


def test_check_reports_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gen_schemas, "FOLDER", tmp_path)
    assert gen_schemas.main(["--check"]) == 1
    assert gen_schemas.main([]) == 0
    assert gen_schemas.main(["--check"]) == 0


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_printed_documents_fit_their_schemas(name: str) -> None:
    checker = jsonschema.Draft202012Validator(schema(name))
    checker.check_schema(checker.schema)
    for sample in SAMPLES[name]:
        checker.validate(json.loads(sample))


def renamed() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Schema, class ("" for the document itself), new key and properties of each renamed key."""
    found = []
    for name in sorted(SAMPLES):
        whole = schema(name)
        for kind, each in {"": whole, **whole.get("$defs", {})}.items():
            properties = each.get("properties", {})
            found += [
                (name, kind, new, properties)
                for new, old in RENAMED_KEYS.items()
                if {new, old} <= properties.keys()
            ]
    return found


def test_renamed_keys_are_in_the_known_documents() -> None:
    found: dict[str, set[tuple[str, str]]] = {}
    for name, kind, new, properties in renamed():
        found.setdefault(new, set()).add((name, kind))
        assert properties[RENAMED_KEYS[new]]["deprecated"] is True
    members, ownership = "MemberDocument", "OwnershipDocument"
    anomalies = {"FlappingDocument", "OneSidedDocument", "StaleClientDocument"}
    assert found == {
        "condition": {("live", members), ("ownership", members), ("status", members)},
        "feasible": {("plan", "")},
        "fix": {("doctor", "Finding")},
        "raft_error": {("live", ownership), ("ownership", ""), ("status", "AnswerDocument")},
        "rate_sources": {("live", "")},
        "reported_by": {("plan", ""), ("status", "")}
        | {(name, kind) for name in ("anomalies", "report") for kind in anomalies},
        "tolerates": {("check", "")},
    }


def rename(node: Any, rewrite: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if isinstance(node, list):
        return [rename(each, rewrite) for each in node]
    if isinstance(node, dict):
        return rewrite({key: rename(value, rewrite) for key, value in node.items()})
    return node


@pytest.mark.parametrize("name", sorted({name for name, *_ in renamed()}))
def test_renamed_key_has_equal_value_and_old_key_is_read(name: str) -> None:
    old_words = {"leaving": "draining"}
    seen = set[str]()

    def as_before(node: dict[str, Any]) -> dict[str, Any]:
        both = {new: old for new, old in RENAMED_KEYS.items() if {new, old} <= node.keys()}
        for new, old in both.items():
            value = node[new]
            assert node[old] == (old_words.get(value, value) if new == "condition" else value)
        seen.update(both)
        return {key: value for key, value in node.items() if key not in both}

    codec = gen_schemas.SCHEMAS[name]
    for sample in SAMPLES[name]:
        before = json.dumps(rename(json.loads(sample), as_before)).encode()
        assert codec.decode(before) == codec.decode(sample)
        assert codec.encode(codec.decode(before)) == sample
    assert seen == {new for each, _, new, _ in renamed() if each == name}


def test_leaving_member_is_draining_by_the_old_key() -> None:
    shown = view()
    leaving = dataclasses.replace(shown.members[0], stopping=True)
    document = ownership_document(dataclasses.replace(shown, members=(leaving,)))
    raw = json.loads(documents.OWNERSHIP.encode(document))
    assert (raw["members"][0]["condition"], raw["members"][0]["state"]) == ("leaving", "draining")
    del raw["members"][0]["condition"]
    assert documents.OWNERSHIP.decode(json.dumps(raw).encode()).members[0].condition == "leaving"


ADDED = frozenset({"distrusted_voters", "broker_troubles", "member_troubles", "machine_troubles", "troubles"})
"""A member of 0.2.0 does not write these fields, and commands of this version read its documents."""


# Events have fields with defaults, which earlier releases may not have written.
@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - {"events", "observations"}))
def test_schema_requires_every_field(name: str) -> None:
    checker = jsonschema.Draft202012Validator(schema(name))
    for sample in SAMPLES[name]:
        whole = json.loads(sample)
        assert whole
        for field in whole.keys() - ADDED:
            assert not checker.is_valid({key: value for key, value in whole.items() if key != field}), field


def test_ownership_of_the_previous_release_is_read() -> None:
    raw = json.loads(documents.OWNERSHIP.encode(ownership_document(view())))
    for field in ADDED & raw.keys():
        del raw[field]
    for each in raw["members"]:
        del each["has_voter_digest"]
    read = documents.OWNERSHIP.decode(json.dumps(raw).encode())
    assert read.distrusted_voters == ()
    assert {each.has_voter_digest for each in read.members} == {None}


def test_reader_ignores_fields_of_a_newer_version() -> None:
    document = ownership_document(view())
    raw = json.loads(documents.OWNERSHIP.encode(document))
    raw["members"][0]["weight"] = raw["colour"] = "new"
    assert documents.OWNERSHIP.decode(json.dumps(raw).encode()) == document


def test_decoding_reverses_encoding() -> None:
    document = ownership_document(view())
    assert documents.OWNERSHIP.decode(documents.OWNERSHIP.encode(document)) == document
    assert dataclasses.asdict(document)["identities"][1]["committed"] == ("p2",)
