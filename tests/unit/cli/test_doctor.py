"""What the doctor makes of what was seen: little where all is well, and a word for each thing that is not."""

from __future__ import annotations

import asyncio
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
from fleet.cli.doctor.certificate_expiry import read, told
from fleet.cli.doctor.facts import Address, Asked, Facts, ShownCertificate
from fleet.cli.doctor.rules import judge
from fleet.core.errors import AdminError
from fleet.core.model import Endpoint
from fleet.core.text import no_port
from fleet.runtime.ephemeral_ports import PortTrouble
from fleet.tls.access import OPEN
from tests.unit.admin.sample_snapshot import view

NOW: Final = datetime(2026, 11, 23, 12, tzinfo=UTC)
REFUSED: Final = "[Errno 111] Connection refused"
EXPOSED: Final = MachineTroubleDocument("port 40000 is in the range of outgoing connections", "reserve it")
OWN: Final = {
    Address("p1", "external", Endpoint("proxy1.test", 9100)): None,
    Address("p1", "external", Endpoint("proxy1.test", 9101), 1): None,
    Address("p3", "external", Endpoint("proxy3.test", 9300)): None,
}
DOORS: Final = tuple(each for each in OWN if each.broker_id is None)
TABLE: Final = {1: Endpoint("proxy1.test", 9101)}


def answer(proxy_id: str, **changes: Any) -> OwnershipDocument:
    """Of a fleet that is whole: all are ready, and all brokers are up."""
    told = ownership_document(view(me=proxy_id))
    members = tuple(replace(each, ready=True) for each in told.members)
    brokers = tuple(replace(each, up=True) for each in told.brokers)
    return replace(told, **({"proxy_id": proxy_id, "members": members, "brokers": brokers} | changes))


WHOLE: Final = {each: answer(each) for each in ("p1", "p2", "p3")}
SILENT: Final = tuple(replace(each, has_voter_digest=each.proxy_id != "p3") for each in WHOLE["p2"].members)
BROKERS: Final = {(each.broker_id, Endpoint(each.host, each.port)): REFUSED for each in WHOLE["p1"].brokers}
WELL: Final = Facts(
    answers=WHOLE,
    offsets_s={"p1": 0.0, "p2": 0.3, "p3": -0.9},
    addresses=OWN,
    metadata=tuple(Asked(each, TABLE) for each in DOORS),
    brokers=BROKERS,
    certificates=(ShownCertificate("p1 external", NOW + timedelta(days=15)),),
    now=NOW,
)


def test_member_tells_of_ports_that_the_kernel_may_give_away() -> None:
    told = ownership_document(replace(view(), port_trouble=PortTrouble("port 40000", "reserve it")))
    assert told.machine_troubles == (MachineTroubleDocument("port 40000", "reserve it"),)
    assert ownership_document(view()).machine_troubles == ()


def wrong(facts: Facts) -> list[Finding]:
    return [each for each in judge(facts) if each.verdict != "ok"]


def test_of_a_fleet_that_is_well_each_check_says_so_once() -> None:
    found = judge(WELL)
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
    ("changes", "check", "subject", "verdict", "said"),
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
            {"answers": {**WHOLE, "p2": answer("p2", members=SILENT)}},
            *("members", "p3", "warning", "does not say which voters it counts"),
        ),
        (
            {"answers": {**WHOLE, "p2": answer("p2", leader="p2")}},
            *("members", "leader", "warning", "different leaders: p1, p2"),
        ),
        (
            {"answers": {**WHOLE, "p2": answer("p2", machine_troubles=(EXPOSED,))}},
            *("members", "p2", "warning", "port 40000 is in the range"),
        ),
        ({"offsets_s": {"p1": 0.0, "p2": 1.5}}, "clocks", "p2", "warning", "1.5 s ahead of"),
        ({"offsets_s": {"p1": -700.0, "p2": 0.5}}, "clocks", "p1", "warning", "700.0 s behind"),
        (
            {"addresses": {**OWN, Address("p3", "external", Endpoint("proxy3.test", 9302), 2): "no answer"}},
            *("addresses", "p3 external broker 2 at proxy3.test:9302", "failed", "no answer"),
        ),
        (
            {"metadata": (Asked(DOORS[0], {2: Endpoint("kafka2.test", 9092)}), Asked(DOORS[1], TABLE))},
            *(
                "leaks",
                "p1 external bootstrap at proxy1.test:9100",
                "failed",
                "kafka2.test:9092 for broker 2: its real",
            ),
        ),
        (
            {"metadata": (Asked(DOORS[0], {2: Endpoint("elsewhere", 1)}), Asked(DOORS[1], TABLE))},
            *("leaks", "p1 external bootstrap at proxy1.test:9100", "failed", "no address of any member's"),
        ),
        (
            {"metadata": (Asked(DOORS[0], None, "SASL"), Asked(DOORS[1], TABLE))},
            *("leaks", "p1 external bootstrap at proxy1.test:9100", "warning", "not looked at: SASL"),
        ),
        (
            {"brokers": {**BROKERS, (2, Endpoint("kafka2.test", 9092)): None}},
            *("brokers", "broker 2", "warning", "kafka2.test:9092 answers from here"),
        ),
        (
            {"certificates": (ShownCertificate("p1 admin", NOW - timedelta(seconds=1)),)},
            *("certificates", "p1 admin", "failed", "expired at 2026-11-23 11:59"),
        ),
        (
            {"certificates": (ShownCertificate("p1 admin", NOW + timedelta(days=13, hours=1)),)},
            *("certificates", "p1 admin", "warning", "in 13 days"),
        ),
        (
            {"certificates": (ShownCertificate("p2 peer_tls.certificate", NOW + timedelta(days=1)),)},
            *("certificates", "p2 peer_tls.certificate", "warning", "in 1 days"),
        ),
        (
            {"certificates": (ShownCertificate("p2 upstream.tls.ca", NOW - timedelta(days=1)),)},
            *("certificates", "p2 upstream.tls.ca", "failed", "expired at 2026-11-22 12:00"),
        ),
        (
            {"certificates": (ShownCertificate("p1 admin", None, "refused"),)},
            *("certificates", "p1 admin", "warning", "not seen: refused"),
        ),
    ],
)
def test_each_thing_that_is_wrong_is_said_with_what_to_do(
    changes: dict[str, Any], check: str, subject: str, verdict: str, said: str
) -> None:
    (found,) = wrong(replace(WELL, **changes))
    assert (found.check, found.subject, found.verdict) == (check, subject, verdict)
    assert said in found.detail
    assert found.fix


def test_members_that_are_drained_or_not_ready_are_told_of() -> None:
    told = answer("p1", generation=99)
    drained, unready, fine = told.members
    members = (replace(drained, drained=True), replace(unready, ready=False), fine)
    first, second = wrong(replace(WELL, answers={**WHOLE, "p1": replace(told, members=members)}))
    assert (first.subject, first.verdict) == ("p1", "warning")
    assert first.fix.startswith("fleet undrain p1")
    assert (second.subject, second.verdict) == ("p2", "failed")
    assert "/readyz" in second.fix


@pytest.mark.parametrize(("up", "verdict"), [(True, "warning"), (False, "failed")])
def test_a_broker_that_members_cannot_reach_is_worse_where_none_can(up: bool, verdict: str) -> None:
    lame = {each: answer(each) for each in WHOLE}
    for proxy_id, reaches in (("p1", up), ("p2", False), ("p3", False)):
        first, *others = lame[proxy_id].brokers
        lame[proxy_id] = replace(lame[proxy_id], brokers=(replace(first, up=reaches), *others))
    (found,) = wrong(replace(WELL, answers=lame))
    assert (found.check, found.subject, found.verdict) == ("brokers", "broker 1", verdict)


def test_what_members_have_found_is_said_and_nothing_is_guessed() -> None:
    why = "broker 1 at kafka-1:9092 cannot be reached: certificate verify failed"
    lame = {
        each: replace(
            answer(each),
            brokers=tuple(replace(broker, up=False) for broker in answer(each).brokers[:1]),
            broker_troubles=(BrokerTroubleDocument(1, why),),
        )
        for each in WHOLE
    }
    hung_up = tuple(Asked(each, None, "whoever asks has to be known (SASL)") for each in DOORS)
    found = wrong(replace(WELL, answers=lame, metadata=hung_up, brokers={}))
    assert {each.detail for each in found if each.check == "leaks"} == {
        "not looked at: this member reaches no broker"
    }
    (broken,) = [each for each in found if each.check == "brokers"]
    assert broken.detail == f"no member can reach it: {why}"
    assert "up?" not in broken.fix


def test_broker_without_a_port_is_no_leak() -> None:
    said = no_port(7, ["external"])
    told = {each: answer(each, broker_troubles=(BrokerTroubleDocument(7, said),)) for each in WHOLE}
    table = {**TABLE, 7: Endpoint("proxy-1.example", 0)}
    metadata = tuple(Asked(each, table) for each in DOORS)
    (found,) = wrong(replace(WELL, answers=told, metadata=metadata))
    assert (found.check, found.subject, found.verdict) == ("brokers", "broker 7", "failed")
    assert found.detail == "broker 7 has no port on listener external: widen `identities`"


def test_without_a_quorum_and_without_brokers_nothing_is_well() -> None:
    lost = QuorumDocument(False, ("p1", "p2", "p3"), 7.0)
    alone = answer("p1", quorum=lost, brokers=())
    found = wrong(replace(WELL, answers={"p1": alone}, brokers={}))
    assert [(each.check, each.verdict) for each in found] == [("members", "failed"), ("brokers", "failed")]
    assert "for 7 s" in found[0].detail


def test_there_is_nothing_to_judge_by_where_nobody_answers() -> None:
    with pytest.raises(AdminError, match="no member answered"):
        judge(replace(WELL, answers={"p1": AdminError("gone")}))


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


def test_members_tell_of_certificates_that_nobody_shows_from_here() -> None:
    found = {each.who: each.expires for each in read("p2", METRICS)}
    assert set(found) == {
        "p2 admin.tls.ca",
        "p2 listener_tls.external.probe_certificate",
        "p2 peer_tls.certificate",
        "p2 upstream.tls.certificate",
    }
    assert found["p2 peer_tls.certificate"] == datetime.fromtimestamp(1_795_400_000, UTC)
    assert read("p2", "fleet_takeovers_total 1.0\n") == ()


async def test_a_member_whose_metrics_cannot_be_had_is_told_of() -> None:
    """Whoever listens there has answered, and says no more."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        (shown,) = await told({"p1": f"http://127.0.0.1:{port}"}, 5.0, OPEN)
    assert (shown.who, shown.expires) == ("p1 files", None)
    assert "cannot be reached" in shown.why
