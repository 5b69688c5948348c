"""Findings of ``fleet doctor``: what is wrong, and the fix for each fault. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final

from fleet.admin.documents import Finding, OwnershipDocument, Verdict
from fleet.admin.status import best_answer
from fleet.cli.doctor.facts import Facts, ShownCertificate
from fleet.core.errors import FleetError
from fleet.core.model import BrokerId, Endpoint

MOST_OFFSET_S: Final = 1.0
"""Between clocks. Nothing of the fleet's depends on them; the times of its events do."""
EXPIRES_SOON: Final = timedelta(days=14)


def judge(facts: Facts) -> tuple[Finding, ...]:
    """Every finding, in the order in which to fix them.

    Raises: AdminError: no member has answered, so that there is nothing to judge by.
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
    given = []
    for proxy_id, answer in facts.answers.items():
        if isinstance(answer, FleetError):
            fix = f"start it (fleet node --node {proxy_id}), or read its log"
            yield Finding("members", proxy_id, "failed", str(answer), fix)
        else:
            given.append(answer)
    for member in best.members:
        if member.drained:
            fix = f"fleet undrain {member.proxy_id}, once its maintenance is over"
            yield Finding("members", member.proxy_id, "warning", "it is drained: it owns no identity", fix)
        elif member.ready is False:
            fix = f"see {member.admin}/readyz for the check that fails"
            yield Finding("members", member.proxy_id, "failed", "it is not ready", fix)
    for answer in given:
        if answer.raft_error is not None:
            fix = f"fleet journal check --node {answer.proxy_id}"
            yield Finding("members", answer.proxy_id, "failed", answer.raft_error, fix)
        for each in answer.machine_troubles:
            yield Finding("members", answer.proxy_id, "warning", each.trouble, each.fix)
    distrusted = {(voter, answer.proxy_id) for answer in given for voter in answer.distrusted_voters}
    for voter, proxy_id in sorted(distrusted):
        detail = f"{proxy_id} counts none of its votes: its disk was emptied, or restored from a copy"
        fix = "start all voters: it votes again once it has heard of all others and caught up"
        yield Finding("members", voter, "failed", detail, fix)
    silent = {each.proxy_id for answer in given for each in answer.members if each.has_voter_digest is False}
    for proxy_id in sorted(silent):
        detail = "it does not say which voters it counts (a release before 0.3.0)"
        fix = "finish the upgrade; until then compare its `voter:` fields with the others' by hand"
        yield Finding("members", proxy_id, "warning", detail, fix)
    if not best.quorum.present:
        detail = f"no quorum of {', '.join(best.quorum.voters)} for {best.quorum.lost_s:.0f} s"
        yield Finding("members", "quorum", "failed", detail, "start voters until more than half of them run")
    leaders = {answer.leader for answer in given}
    if best.quorum.present and len(leaders) > 1:
        named = ", ".join(sorted(str(each or "nobody") for each in leaders))
        detail = f"members name different leaders: {named}"
        yield Finding(
            "members", "leader", "warning", detail, "ask again; links between members may be broken"
        )
    versions = sorted({answer.version for answer in given})
    if len(versions) > 1:
        fix = "finish the upgrade: fleet rolling-restart"
        yield Finding("members", "versions", "warning", f"members run {', '.join(versions)}", fix)
    if not any(isinstance(answer, FleetError) for answer in facts.answers.values()) and best.quorum.present:
        detail = f"all {len(given)} answer; {best.leader or 'nobody'} leads, generation {best.generation}"
        yield Finding("members", best.fleet, "ok", detail)


def _clocks(facts: Facts) -> Iterator[Finding]:
    wrong = {name: offset_s for name, offset_s in facts.offsets_s.items() if abs(offset_s) > MOST_OFFSET_S}
    for proxy_id, offset_s in wrong.items():
        side = "ahead of" if offset_s > 0 else "behind"
        detail = f"its clock is {abs(offset_s):.1f} s {side} this machine's"
        yield Finding("clocks", proxy_id, "warning", detail, "synchronize the clocks (chrony, NTP) of both")
    if facts.offsets_s and not wrong:
        yield Finding("clocks", "all", "ok", f"none differs by more than {MOST_OFFSET_S:g} s")


def _addresses(facts: Facts) -> Iterator[Finding]:
    silent = {address: why for address, why in facts.addresses.items() if why is not None}
    for address, why in silent.items():
        fix = (
            f"make {address.endpoint} reach {address.proxy_id} from here: names, firewalls, port mappings,"
            " load balancers; or correct the address that it advertises"
        )
        yield Finding("addresses", str(address), "failed", why, fix)
    if facts.addresses and not silent:
        yield Finding(
            "addresses", "all", "ok", f"{len(facts.addresses)} advertised addresses lead to a member"
        )


def _leaks(facts: Facts, best: OwnershipDocument) -> Iterator[Finding]:
    real = {Endpoint(each.host, each.port) for each in best.brokers}
    own = {address.endpoint for address in facts.addresses}
    clean = 0
    for asked in facts.metadata:
        if asked.table is None:
            if _reaches_none(facts.answers.get(asked.address.proxy_id)):
                detail = "not looked at: this member reaches no broker"
                fix = "fix the connection from this member to the brokers first: see the findings on brokers"
                yield Finding("leaks", str(asked.address), "warning", detail, fix)
                continue
            fix = "ask with your own client: kafka-broker-api-versions --command-config FILE"
            yield Finding("leaks", str(asked.address), "warning", f"not looked at: {asked.why}", fix)
            continue
        found = _strangers(asked.table.items(), own)
        for broker_id, endpoint in found:
            whose = "its real address" if endpoint in real else "no address of any member's"
            detail = f"clients are told {endpoint} for broker {broker_id}: {whose}"
            fix = "check that clients connect to this member directly; if they do, report a bug"
            yield Finding("leaks", str(asked.address), "failed", detail, fix)
        clean += not found
    if clean and clean == len(facts.metadata):
        yield Finding("leaks", "all", "ok", f"Metadata of {clean} bootstrap addresses names members alone")


def _reaches_none(answer: OwnershipDocument | FleetError | None) -> bool:
    if not isinstance(answer, OwnershipDocument):
        return False
    return all(each.up is False for each in answer.brokers)


def _strangers(
    table: Iterable[tuple[BrokerId, Endpoint]], own: set[Endpoint]
) -> list[tuple[BrokerId, Endpoint]]:
    """Addresses that lead past the fleet. Port 0 leads nowhere: the broker has no port here (`_brokers`)."""
    return [(broker_id, endpoint) for broker_id, endpoint in table if endpoint not in own and endpoint.port]


def _brokers(facts: Facts, best: OwnershipDocument) -> Iterator[Finding]:
    said = {
        each.broker_id: each.trouble
        for answer in facts.answers.values()
        if isinstance(answer, OwnershipDocument)
        for each in answer.broker_troubles
    }
    for broker in best.brokers:
        up = {
            each.up
            for answer in facts.answers.values()
            if isinstance(answer, OwnershipDocument)
            for each in answer.brokers
            if each.broker_id == broker.broker_id
        }
        if False in up:
            who, verdict = _unreached(True in up)
            why = said.pop(broker.broker_id, "")
            fix = f"check the way from members to {broker.host}:{broker.port}: names, routes, firewalls"
            yield Finding("brokers", f"broker {broker.broker_id}", verdict, f"{who}{why and ': '}{why}", fix)
    for broker_id, why in said.items():
        fix = "correct the configuration of the fleet or of the broker"
        yield Finding("brokers", f"broker {broker_id}", "failed", why, fix)
    around = [(broker_id, at) for (broker_id, at), why in facts.brokers.items() if why is None]
    for broker_id, at in around:
        detail = f"{at} answers from here: a client that knows it can go around the fleet"
        fix = "allow only members to connect to the brokers, unless this machine is a member's"
        yield Finding("brokers", f"broker {broker_id}", "warning", detail, fix)
    if not best.brokers:
        fix = "see the members' logs; `bootstrap_servers` and `upstream` in the configuration"
        yield Finding("brokers", "all", "failed", "the fleet knows of no broker", fix)
    elif not around:
        yield Finding("brokers", "all", "ok", f"none of {len(best.brokers)} can be reached from here")


def _unreached(by_others: bool) -> tuple[str, Verdict]:
    if by_others:
        return "some members cannot reach it", "warning"
    return "no member can reach it", "failed"


def _certificate_fix(shown: ShownCertificate, *, expired: bool) -> str:
    if shown.who.endswith("ca"):
        return "add a new authority's certificate next to it, at all members; then issue the others with it"
    if expired:
        return "replace it; members load the new one without a restart"
    return "renew it (fleet certs renew, or your authority)"


def _certificates(facts: Facts) -> Iterator[Finding]:
    fine = 0
    for shown in facts.certificates:
        if shown.expires is None:
            fix = "run fleet doctor on a machine that can reach it"
            yield Finding("certificates", shown.who, "warning", f"not seen: {shown.why}", fix)
            continue
        left = shown.expires - facts.now
        when = f"{shown.expires:%Y-%m-%d %H:%M} UTC"
        if left <= timedelta():
            fix = _certificate_fix(shown, expired=True)
            yield Finding("certificates", shown.who, "failed", f"expired at {when}", fix)
        elif left < EXPIRES_SOON:
            detail, fix = f"expires at {when}, in {left.days} days", _certificate_fix(shown, expired=False)
            yield Finding("certificates", shown.who, "warning", detail, fix)
        else:
            fine += 1
    if fine and fine == len(facts.certificates):
        yield Finding("certificates", "all", "ok", f"{fine} are valid for {EXPIRES_SOON.days} days and more")
