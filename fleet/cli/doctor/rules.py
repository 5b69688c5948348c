"""Rules of ``fleet doctor``: facts in, findings with a fix for each fault out. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final

from fleet.admin.documents import Finding, OwnershipDocument, Verdict
from fleet.admin.status import best_answer
from fleet.cli.doctor.facts import CertificateExpiry, Facts
from fleet.core.errors import FleetError
from fleet.core.model import BrokerId, Endpoint

MAX_CLOCK_OFFSET_S: Final = 1.0
"""The fleet works with any clocks, but the times of its events come from them."""
EXPIRES_SOON: Final = timedelta(days=14)


def evaluate(facts: Facts) -> tuple[Finding, ...]:
    """All findings, in the order in which to fix them.

    Raises: AdminError: no member has answered
    """
    best = best_answer(facts.answers)
    return (
        *_members(facts, best),
        *_clocks(facts),
        *_addresses(facts),
        *_leaks(facts, best),
        *_brokers(facts, best),
        *_certificates(facts),
    )


def _members(facts: Facts, best: OwnershipDocument) -> Iterator[Finding]:
    answers = []
    for proxy_id, answer in facts.answers.items():
        if isinstance(answer, FleetError):
            fix = f"start the member (fleet node --node {proxy_id}), or read its log"
            yield Finding("members", proxy_id, "failed", str(answer), fix)
        else:
            answers.append(answer)
    for member in best.members:
        if member.drained:
            fix = f"run `fleet undrain {member.proxy_id}` after the maintenance"
            yield Finding("members", member.proxy_id, "warning", "drained: the member owns no brokers", fix)
        elif member.ready is False:
            fix = f"see {member.admin}/readyz for the failing check"
            yield Finding("members", member.proxy_id, "failed", "not ready", fix)
    for answer in answers:
        if answer.raft_error is not None:
            fix = f"run `fleet journal check --node {answer.proxy_id}` on its machine"
            yield Finding("members", answer.proxy_id, "failed", answer.raft_error, fix)
        for each in answer.machine_troubles:
            yield Finding("members", answer.proxy_id, "warning", each.trouble, each.fix)
    distrusted = {(voter, answer.proxy_id) for answer in answers for voter in answer.distrusted_voters}
    for voter, proxy_id in sorted(distrusted):
        detail = (
            f"{proxy_id} counts none of its votes: the disk of {voter} was emptied, or restored from a copy"
        )
        fix = f"start all voters: {voter} votes again after contact with all others, when it has caught up"
        yield Finding("members", voter, "failed", detail, fix)
    without_digest = {
        each.proxy_id for answer in answers for each in answer.members if each.has_voter_digest is False
    }
    for proxy_id in sorted(without_digest):
        detail = "the member does not report which voters it counts (a release before 0.3.0)"
        fix = "finish the upgrade; until then compare its `voter:` fields with those of the others by hand"
        yield Finding("members", proxy_id, "warning", detail, fix)
    if not best.quorum.present:
        detail = f"no quorum of {', '.join(best.quorum.voters)} for {best.quorum.lost_s:.0f} s"
        yield Finding("members", "quorum", "failed", detail, "start voters until more than half of them run")
    leaders = {answer.leader for answer in answers}
    if best.quorum.present and len(leaders) > 1:
        names = ", ".join(sorted(str(each or "none") for each in leaders))
        detail = f"members report different leaders: {names}"
        yield Finding(
            "members",
            "leader",
            "warning",
            detail,
            "run fleet doctor again; if the leaders still differ, check the links between members",
        )
    versions = sorted({answer.version for answer in answers})
    if len(versions) > 1:
        fix = "finish the upgrade: fleet rolling-restart"
        yield Finding("members", "versions", "warning", f"members run {', '.join(versions)}", fix)
    if not any(isinstance(answer, FleetError) for answer in facts.answers.values()) and best.quorum.present:
        detail = f"all {len(answers)} answer; leader {best.leader or 'none'}, generation {best.generation}"
        yield Finding("members", best.fleet, "ok", detail)


def _clocks(facts: Facts) -> Iterator[Finding]:
    wrong = {
        proxy_id: offset_s
        for proxy_id, offset_s in facts.offsets_s.items()
        if abs(offset_s) > MAX_CLOCK_OFFSET_S
    }
    for proxy_id, offset_s in wrong.items():
        direction = "ahead of" if offset_s > 0 else "behind"
        detail = f"its clock is {abs(offset_s):.1f} s {direction} the clock of this machine"
        yield Finding("clocks", proxy_id, "warning", detail, "synchronize both clocks (chrony, NTP)")
    if facts.offsets_s and not wrong:
        yield Finding("clocks", "all", "ok", f"no clock differs by more than {MAX_CLOCK_OFFSET_S:g} s")


def _addresses(facts: Facts) -> Iterator[Finding]:
    failed = {address: reason for address, reason in facts.addresses.items() if reason is not None}
    for address, reason in failed.items():
        fix = (
            f"make {address.endpoint} reach {address.proxy_id} from here (names, firewalls, port mappings,"
            " load balancers), or correct the advertised address"
        )
        yield Finding("addresses", str(address), "failed", reason, fix)
    if facts.addresses and not failed:
        yield Finding(
            "addresses", "all", "ok", f"{len(facts.addresses)} advertised addresses lead to a member"
        )


def _leaks(facts: Facts, best: OwnershipDocument) -> Iterator[Finding]:
    real = {Endpoint(each.host, each.port) for each in best.brokers}
    advertised = {address.endpoint for address in facts.addresses}
    clean = 0
    for answer in facts.metadata:
        if answer.table is None:
            if _reaches_none(facts.answers.get(answer.address.proxy_id)):
                detail = "not checked: this member cannot reach any broker"
                fix = "fix the connection from this member to the brokers first: see the findings on brokers"
                yield Finding("leaks", str(answer.address), "warning", detail, fix)
                continue
            fix = "check with your own client: kafka-broker-api-versions --command-config FILE"
            yield Finding("leaks", str(answer.address), "warning", f"not checked: {answer.reason}", fix)
            continue
        leaks = _leaked(answer.table.items(), advertised)
        for broker_id, endpoint in leaks:
            kind = "its real address" if endpoint in real else "not an address of any member"
            detail = f"clients get {endpoint} for broker {broker_id}: {kind}"
            fix = "check that clients connect directly to this member; if they do, report a bug"
            yield Finding("leaks", str(answer.address), "failed", detail, fix)
        clean += not leaks
    if clean and clean == len(facts.metadata):
        yield Finding("leaks", "all", "ok", f"Metadata of {clean} bootstrap addresses names only members")


def _reaches_none(answer: OwnershipDocument | FleetError | None) -> bool:
    if not isinstance(answer, OwnershipDocument):
        return False
    return all(each.up is False for each in answer.brokers)


def _leaked(
    table: Iterable[tuple[BrokerId, Endpoint]], advertised: set[Endpoint]
) -> list[tuple[BrokerId, Endpoint]]:
    """Addresses that bypass the fleet. Port 0 is no leak: the broker has no port here (see `_brokers`)."""
    return [
        (broker_id, endpoint) for broker_id, endpoint in table if endpoint not in advertised and endpoint.port
    ]


def _brokers(facts: Facts, best: OwnershipDocument) -> Iterator[Finding]:
    answers = [each for each in facts.answers.values() if isinstance(each, OwnershipDocument)]
    reasons = {each.broker_id: each.trouble for answer in answers for each in answer.broker_troubles}
    for broker in best.brokers:
        up = {each.up for answer in answers for each in answer.brokers if each.broker_id == broker.broker_id}
        if False in up:
            detail, verdict = _unreachable(True in up)
            reason = reasons.pop(broker.broker_id, "")
            fix = f"check the path from members to {broker.host}:{broker.port}: names, routes, firewalls"
            detail = f"{detail}: {reason}" if reason else detail
            yield Finding("brokers", f"broker {broker.broker_id}", verdict, detail, fix)
    for broker_id, reason in reasons.items():
        fix = "correct the configuration of the fleet or of the broker"
        yield Finding("brokers", f"broker {broker_id}", "failed", reason, fix)
    exposed = [address for address, reason in facts.brokers.items() if reason is None]
    for broker_id, endpoint in exposed:
        detail = f"{endpoint} answers from here: a client that knows this address can bypass the fleet"
        fix = "allow only members to connect to the brokers (ignore this on the machine of a member)"
        yield Finding("brokers", f"broker {broker_id}", "warning", detail, fix)
    if not best.brokers:
        fix = "see the logs of the members, and `bootstrap_servers` and `upstream` in the configuration"
        yield Finding("brokers", "all", "failed", "the fleet knows no broker", fix)
    elif not exposed:
        detail = f"this machine cannot reach any of the {len(best.brokers)} brokers directly"
        yield Finding("brokers", "all", "ok", detail)


def _unreachable(from_some: bool) -> tuple[str, Verdict]:
    if from_some:
        return "some members cannot reach it", "warning"
    return "no member can reach it", "failed"


def _certificate_fix(certificate: CertificateExpiry, *, is_expired: bool) -> str:
    if certificate.owner.endswith("ca"):
        return "add a new authority's certificate next to it, at all members; then issue the others with it"
    if is_expired:
        return "replace it; members load the new one without a restart"
    return "renew it (fleet certs renew, or your authority)"


def _certificates(facts: Facts) -> Iterator[Finding]:
    valid = 0
    for each in facts.certificates:
        if each.expires is None:
            fix = "run fleet doctor on a machine that can reach it"
            yield Finding("certificates", each.owner, "warning", f"not checked: {each.reason}", fix)
            continue
        left = each.expires - facts.now
        when = f"{each.expires:%Y-%m-%d %H:%M} UTC"
        if left <= timedelta():
            fix = _certificate_fix(each, is_expired=True)
            yield Finding("certificates", each.owner, "failed", f"expired at {when}", fix)
        elif left < EXPIRES_SOON:
            fix = _certificate_fix(each, is_expired=False)
            detail = f"expires at {when}, in {left.days} days"
            yield Finding("certificates", each.owner, "warning", detail, fix)
        else:
            valid += 1
    if valid and valid == len(facts.certificates):
        detail = f"{valid} are valid for at least {EXPIRES_SOON.days} days"
        yield Finding("certificates", "all", "ok", detail)
