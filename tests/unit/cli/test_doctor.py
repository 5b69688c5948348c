"""fleet/cli/doctor: rules turn facts into findings; expiries come from the metrics of members."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from fleet import __version__
from fleet.admin.documents import (
    BrokerTroubleDocument,
    Finding,
    MachineTroubleDocument,
    OwnershipDocument,
    QuorumDocument,
)
from fleet.admin.ownership import ownership_document
from fleet.cli.doctor.certificate_expiry import parse_expiries
from fleet.cli.doctor.facts import Address, CertificateExpiry, Facts, MetadataAnswer
from fleet.cli.doctor.rules import evaluate
from fleet.core.errors import AdminError
from fleet.core.model import Endpoint
from fleet.core.text import no_port
from fleet.runtime.ephemeral_ports import PortTrouble
from tests.unit.admin.sample_snapshot import view

NOW: Final = datetime(2026, 11, 23, 12, tzinfo=UTC)
REFUSED: Final = "[Errno 111] Connection refused"
PORT_TROUBLE: Final = MachineTroubleDocument(
    "port 40000 is in the range of outgoing connections", "reserve it"
)
ADVERTISED: Final = {
    Address("p1", "external", Endpoint("proxy1.test", 9100)): None,
    Address("p1", "external", Endpoint("proxy1.test", 9101), 1): None,
    Address("p3", "external", Endpoint("proxy3.test", 9300)): None,
}
BOOTSTRAPS: Final = tuple(each for each in ADVERTISED if each.broker_id is None)
TABLE: Final = {1: Endpoint("proxy1.test", 9101)}


def answer(proxy_id: str, **changes: Any) -> OwnershipDocument:
    """The answer of a member in a healthy fleet: all members are ready, and all brokers are up."""
    document = ownership_document(view(me=proxy_id))
    members = tuple(replace(each, ready=True) for each in document.members)
    brokers = tuple(replace(each, up=True) for each in document.brokers)
    return replace(document, **({"proxy_id": proxy_id, "members": members, "brokers": brokers} | changes))


WHOLE: Final = {each: answer(each) for each in ("p1", "p2", "p3")}
WITHOUT_DIGEST: Final = tuple(
    replace(each, has_voter_digest=each.proxy_id != "p3") for each in WHOLE["p2"].members
)
BROKERS: Final = {(each.broker_id, Endpoint(each.host, each.port)): REFUSED for each in WHOLE["p1"].brokers}
HEALTHY: Final = Facts(
    answers=WHOLE,
    offsets_s={"p1": 0.0, "p2": 0.3, "p3": -0.9},
    addresses=ADVERTISED,
    metadata=tuple(MetadataAnswer(each, TABLE) for each in BOOTSTRAPS),
    brokers=BROKERS,
    certificates=(CertificateExpiry("p1 external", NOW + timedelta(days=15)),),
    now=NOW,
)


def test_member_reports_ports_that_the_kernel_may_give_away() -> None:
    document = ownership_document(replace(view(), port_trouble=PortTrouble("port 40000", "reserve it")))
    assert document.machine_troubles == (MachineTroubleDocument("port 40000", "reserve it"),)
    assert ownership_document(view()).machine_troubles == ()


def faults(facts: Facts) -> list[Finding]:
    return [each for each in evaluate(facts) if each.verdict != "ok"]


def test_each_check_of_a_healthy_fleet_is_ok() -> None:
    found = evaluate(HEALTHY)
    assert [each.check for each in found] == [
        "members",
        "clocks",
        "addresses",
        "leaks",
        "brokers",
        "certificates",
    ]
    assert {(each.verdict, each.fix) for each in found} == {("ok", "")}


@pytest.mark.parametrize(
    ("changes", "check", "subject", "verdict", "detail"),
    [
        ({"answers": {**WHOLE, "p2": AdminError("refused")}}, "members", "p2", "failed", "refused"),
        ({"answers": {**WHOLE, "p2": answer("p2", raft_error="torn")}}, "members", "p2", "failed", "torn"),
        (
            {"answers": {**WHOLE, "p2": answer("p2", version="0.0.9")}},
            *("members", "versions", "warning", f"members run 0.0.9, {__version__}"),
        ),
        (
            {"answers": {**WHOLE, "p2": answer("p2", distrusted_voters=("p3",))}},
            *("members", "p3", "failed", "p2 counts none of its votes"),
        ),
        (
            {"answers": {**WHOLE, "p2": answer("p2", members=WITHOUT_DIGEST)}},
            *("members", "p3", "warning", "does not report which voters it counts"),
        ),
        (
            {"answers": {**WHOLE, "p2": answer("p2", leader="p2")}},
            *("members", "leader", "warning", "different leaders: p1, p2"),
        ),
        (
            {"answers": {**WHOLE, "p2": answer("p2", machine_troubles=(PORT_TROUBLE,))}},
            *("members", "p2", "warning", "port 40000 is in the range"),
        ),
        ({"offsets_s": {"p1": 0.0, "p2": 1.5}}, "clocks", "p2", "warning", "1.5 s ahead of"),
        ({"offsets_s": {"p1": -700.0, "p2": 0.5}}, "clocks", "p1", "warning", "700.0 s behind"),
        (
            {
                "addresses": {
                    **ADVERTISED,
                    Address("p3", "external", Endpoint("proxy3.test", 9302), 2): "no answer",
                }
            },
            *("addresses", "p3 external broker 2 at proxy3.test:9302", "failed", "no answer"),
        ),
        (
            {
                "metadata": (
                    MetadataAnswer(BOOTSTRAPS[0], {2: Endpoint("kafka2.test", 9092)}),
                    MetadataAnswer(BOOTSTRAPS[1], TABLE),
                )
            },
            *(
                "leaks",
                "p1 external bootstrap at proxy1.test:9100",
                "failed",
                "kafka2.test:9092 for broker 2: its real",
            ),
        ),
        (
            {
                "metadata": (
                    MetadataAnswer(BOOTSTRAPS[0], {2: Endpoint("elsewhere", 1)}),
                    MetadataAnswer(BOOTSTRAPS[1], TABLE),
                )
            },
            *("leaks", "p1 external bootstrap at proxy1.test:9100", "failed", "not an address of any member"),
        ),
        (
            {"metadata": (MetadataAnswer(BOOTSTRAPS[0], None, "SASL"), MetadataAnswer(BOOTSTRAPS[1], TABLE))},
            *("leaks", "p1 external bootstrap at proxy1.test:9100", "warning", "not checked: SASL"),
        ),
        (
            {"brokers": {**BROKERS, (2, Endpoint("kafka2.test", 9092)): None}},
            *("brokers", "broker 2", "warning", "kafka2.test:9092 answers from here"),
        ),
        (
            {"certificates": (CertificateExpiry("p1 admin", NOW - timedelta(seconds=1)),)},
            *("certificates", "p1 admin", "failed", "expired at 2026-11-23 11:59"),
        ),
        (
            {"certificates": (CertificateExpiry("p1 admin", NOW + timedelta(days=13, hours=1)),)},
            *("certificates", "p1 admin", "warning", "in 13 days"),
        ),
        (
            {"certificates": (CertificateExpiry("p2 peer_tls.certificate", NOW + timedelta(days=1)),)},
            *("certificates", "p2 peer_tls.certificate", "warning", "in 1 days"),
        ),
        (
            {"certificates": (CertificateExpiry("p2 upstream.tls.ca", NOW - timedelta(days=1)),)},
            *("certificates", "p2 upstream.tls.ca", "failed", "expired at 2026-11-22 12:00"),
        ),
        (
            {"certificates": (CertificateExpiry("p1 admin", None, "refused"),)},
            *("certificates", "p1 admin", "warning", "not checked: refused"),
        ),
    ],
)
def test_each_fault_is_found_with_a_fix(
    changes: dict[str, Any], check: str, subject: str, verdict: str, detail: str
) -> None:
    (found,) = faults(replace(HEALTHY, **changes))
    assert (found.check, found.subject, found.verdict) == (check, subject, verdict)
    assert detail in found.detail
    assert found.fix


def test_drained_and_unready_members_are_found() -> None:
    newest = answer("p1", generation=99)
    drained, unready, fine = newest.members
    members = (replace(drained, drained=True), replace(unready, ready=False), fine)
    first, second = faults(replace(HEALTHY, answers={**WHOLE, "p1": replace(newest, members=members)}))
    assert (first.subject, first.verdict) == ("p1", "warning")
    assert first.fix.startswith("run `fleet undrain p1`")
    assert (second.subject, second.verdict) == ("p2", "failed")
    assert "/readyz" in second.fix


@pytest.mark.parametrize(("up", "verdict"), [(True, "warning"), (False, "failed")])
def test_unreachable_broker_fails_if_no_member_reaches_it(up: bool, verdict: str) -> None:
    answers = {each: answer(each) for each in WHOLE}
    for proxy_id, reaches in (("p1", up), ("p2", False), ("p3", False)):
        first, *others = answers[proxy_id].brokers
        answers[proxy_id] = replace(answers[proxy_id], brokers=(replace(first, up=reaches), *others))
    (found,) = faults(replace(HEALTHY, answers=answers))
    assert (found.check, found.subject, found.verdict) == ("brokers", "broker 1", verdict)


def test_reasons_of_members_are_reported_without_a_guess() -> None:
    reason = "broker 1 at kafka-1:9092 cannot be reached: certificate verify failed"
    answers = {
        each: replace(
            answer(each),
            brokers=tuple(replace(broker, up=False) for broker in answer(each).brokers[:1]),
            broker_troubles=(BrokerTroubleDocument(1, reason),),
        )
        for each in WHOLE
    }
    refused = tuple(MetadataAnswer(each, None, "the listener requires SASL") for each in BOOTSTRAPS)
    found = faults(replace(HEALTHY, answers=answers, metadata=refused, brokers={}))
    assert {each.detail for each in found if each.check == "leaks"} == {
        "not checked: this member cannot reach any broker"
    }
    (broken,) = [each for each in found if each.check == "brokers"]
    assert broken.detail == f"no member can reach it: {reason}"
    assert "up?" not in broken.fix


def test_broker_without_a_port_is_no_leak() -> None:
    trouble = no_port(7, ["external"])
    answers = {each: answer(each, broker_troubles=(BrokerTroubleDocument(7, trouble),)) for each in WHOLE}
    table = {**TABLE, 7: Endpoint("proxy-1.example", 0)}
    metadata = tuple(MetadataAnswer(each, table) for each in BOOTSTRAPS)
    (found,) = faults(replace(HEALTHY, answers=answers, metadata=metadata))
    assert (found.check, found.subject, found.verdict) == ("brokers", "broker 7", "failed")
    assert found.detail == "broker 7 has no port on listener external: widen `identities`"


def test_lost_quorum_and_missing_brokers_fail() -> None:
    lost = QuorumDocument(False, ("p1", "p2", "p3"), 7.0)
    alone = answer("p1", quorum=lost, brokers=())
    found = faults(replace(HEALTHY, answers={"p1": alone}, brokers={}))
    assert [(each.check, each.verdict) for each in found] == [("members", "failed"), ("brokers", "failed")]
    assert "for 7 s" in found[0].detail


def test_evaluation_without_an_answer_fails() -> None:
    with pytest.raises(AdminError, match="no member answered"):
        evaluate(replace(HEALTHY, answers={"p1": AdminError("refused")}))


METRICS: Final = """\
# HELP fleet_certificate_expiry_timestamp_seconds When the certificates of this member expire.
# TYPE fleet_certificate_expiry_timestamp_seconds gauge
fleet_certificate_expiry_timestamp_seconds{file="admin.tls.ca"} 1.7955e+09
fleet_certificate_expiry_timestamp_seconds{file="admin.tls.certificate"} 1.7955e+09
fleet_certificate_expiry_timestamp_seconds{file="listener_tls.external.certificate"} 1.7955e+09
fleet_certificate_expiry_timestamp_seconds{file="listener_tls.external.probe_certificate"} 1.7955e+09
fleet_certificate_expiry_timestamp_seconds{file="peer_tls.certificate"} 1.7954e+09
fleet_certificate_expiry_timestamp_seconds{file="upstream.tls.certificate"} 1.7953e+09
fleet_takeovers_total{reason="reset"} 1.0
"""


def test_expiries_are_parsed_from_a_members_metrics() -> None:
    found = {each.owner: each.expires for each in parse_expiries("p2", METRICS)}
    assert set(found) == {
        "p2 admin.tls.ca",
        "p2 listener_tls.external.probe_certificate",
        "p2 peer_tls.certificate",
        "p2 upstream.tls.certificate",
    }
    assert found["p2 peer_tls.certificate"] == datetime.fromtimestamp(1_795_400_000, UTC)
    assert parse_expiries("p2", "fleet_takeovers_total 1.0\n") == ()
