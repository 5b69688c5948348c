"""Restarts a whole fleet, member by member, each only when the fleet is whole and at rest.

The operator supplies the command that restarts a member. The members themselves report whether the member has
restarted, and whether the fleet is at rest again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fleet.admin import client
from fleet.admin.documents import OwnershipDocument, RestartedMember, RollingRestartDocument
from fleet.admin.operator_commands import command_for, run_command
from fleet.admin.status import Answers, best_answer, plan
from fleet.core.errors import CommandFailed, RestartFailed
from fleet.core.model import ProxyId
from fleet.tls.access import OPEN, Access

POLL_INTERVAL_S: Final = 0.25
SETTLE_TIME_S: Final = 1.0
"""The fleet must be at rest for this long before the next restart, so that moved clients settle as well."""

Say = Callable[[str], object]


def unrest(answers: Answers) -> str:
    """Why a fleet is not whole and at rest, in words for an operator; empty if it is at rest.

    Args:
        answers: the answer of every configured member.
    """
    for proxy_id, answer in answers.items():
        if not isinstance(answer, OwnershipDocument):
            return f"{proxy_id} does not answer: {answer}"
        if not answer.quorum.present:
            return f"{proxy_id} has no quorum"
        if answer.raft_error is not None:
            return f"{proxy_id} cannot vote: {answer.raft_error}"
    best = best_answer(answers)
    if best.leader is None:
        return "there is no leader"
    behind = [
        p for p, a in answers.items() if isinstance(a, OwnershipDocument) and a.generation != best.generation
    ]
    if behind:
        verb = "is" if len(behind) == 1 else "are"
        return f"{', '.join(behind)} {verb} not at generation {best.generation} yet"
    for member in best.members:
        if (
            member.proxy_id in answers
            and not member.witness
            and (member.condition != "up" and not member.drained)
        ):
            return f"{member.proxy_id} is {member.condition}"
    bypassed = [each.broker_id for each in best.identities if each.advertised != each.committed]
    if bypassed:
        return f"identity {bypassed[0]} is not advertised at its committed owner"
    due = plan(answers, ()).moves
    return f"identity {due[0].broker_id} is about to move" if due else ""


def choose_next(waiting: Iterable[ProxyId], leader: ProxyId | None) -> ProxyId:
    """The member to restart next: the leader last, because its restart costs an election."""
    return min(waiting, key=lambda proxy_id: (proxy_id == leader, proxy_id))


async def restart_all(
    urls: Mapping[ProxyId, str],
    only: Iterable[ProxyId],
    template: str,
    limit_s: float,
    say: Say,
    command_limit_s: float | None = None,
    access: Access = OPEN,
) -> RollingRestartDocument:
    """Restart members one after the other.

    Args:
        urls: the admin URL of every configured member.
        only: the members to restart.
        limit_s: limit of each wait: for the fleet to be at rest, and for a member to be back.
        say: called with one line for each step.
        command_limit_s: limit of the command for each member; None for no limit.
        access: token and TLS of the requests.

    Raises:
        RestartFailed: the fleet was not at rest in time, a command failed, or a member did not come back. No
            further member is restarted then.
    """
    waiting = set(only)
    done: list[RestartedMember] = []
    await at_rest(urls, limit_s, say, access)
    while waiting:
        before = await client.ask_all(urls, access=access)
        leader = best_answer(before).leader
        proxy_id = choose_next(waiting, leader)
        waiting.discard(proxy_id)
        began_s = time.monotonic()
        say(f"{proxy_id}: restarting{', the Raft leader' if proxy_id == leader else ''}")
        try:
            await run_command(command_for(template, proxy_id, urls[proxy_id]), proxy_id, command_limit_s)
        except CommandFailed as error:
            raise RestartFailed(str(error)) from error
        await _await_new_incarnation(proxy_id, before, urls[proxy_id], limit_s, access)
        await at_rest(urls, limit_s, say, access)
        took_s = time.monotonic() - began_s
        say(f"{proxy_id}: back after {took_s:.1f} s, and the fleet is at rest")
        done.append(RestartedMember(proxy_id, proxy_id == leader, took_s))
    return RollingRestartDocument(tuple(done))


async def _await_new_incarnation(
    proxy_id: ProxyId, before: Answers, url: str, limit_s: float, access: Access
) -> None:
    """Wait until a member answers with another incarnation than before."""
    former = before[proxy_id]
    deadline_s = time.monotonic() + limit_s
    while True:
        answer = (await client.ask_all({proxy_id: url}, access=access))[proxy_id]
        if isinstance(answer, OwnershipDocument) and (
            not isinstance(former, OwnershipDocument) or answer.incarnation != former.incarnation
        ):
            return
        if time.monotonic() > deadline_s:
            reason = (
                "it has not restarted; check the command"
                if isinstance(answer, OwnershipDocument)
                else f"it is not back: {answer}"
            )
            raise RestartFailed(f"{proxy_id}: {limit_s:g} s after the restart command, {reason}")
        await asyncio.sleep(POLL_INTERVAL_S)


async def at_rest(urls: Mapping[ProxyId, str], limit_s: float, say: Say, access: Access = OPEN) -> None:
    """Wait until the fleet has been whole and at rest for ``SETTLE_TIME_S``.

    Raises:
        RestartFailed: the fleet is not at rest in time.
    """
    deadline_s = time.monotonic() + limit_s
    rests_since_s: float | None = None
    reported = ""
    while True:
        why = unrest(await client.ask_all(urls, access=access))
        now_s = time.monotonic()
        if why:
            rests_since_s = None
            if why != reported:
                say(f"waiting: {why}")
                reported = why
            if now_s > deadline_s:
                raise RestartFailed(f"the fleet is not at rest after {limit_s:g} s: {why}")
        elif rests_since_s is None:
            rests_since_s = now_s
        elif now_s - rests_since_s >= SETTLE_TIME_S:
            return
        await asyncio.sleep(POLL_INTERVAL_S)
