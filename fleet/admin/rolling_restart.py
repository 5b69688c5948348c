"""Restarts a whole fleet, member by member, each one only when the fleet is whole and at rest.

How a member is restarted is the operator's: a command, with the member's name and host put in. That it was
restarted, and that the fleet is well again, is seen from the members themselves.
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

ASK_EVERY_S: Final = 0.25
AT_REST_S: Final = 1.0
"""How long nothing may be wrong before the next one: clients that have just moved are to settle, too."""

Say = Callable[[str], object]


def unrest(answers: Answers) -> str:
    """Why a fleet is not whole and at rest, in words for an operator; empty where it is.

    Args:
        answers: of every configured member.
    """
    for proxy_id, answer in answers.items():
        if not isinstance(answer, OwnershipDocument):
            return f"{proxy_id} does not answer: {answer}"
        if not answer.quorum.present:
            return f"{proxy_id} has no quorum"
        if answer.raft_error is not None:
            return f"{proxy_id} does not vote: {answer.raft_error}"
    best = best_answer(answers)
    if best.leader is None:
        return "there is no leader"
    behind = [
        p for p, a in answers.items() if isinstance(a, OwnershipDocument) and a.generation != best.generation
    ]
    if behind:
        return f"{', '.join(behind)} is not at generation {best.generation} yet"
    for member in best.members:
        if (
            member.proxy_id in answers
            and not member.witness
            and (member.condition != "up" and not member.drained)
        ):
            return f"{member.proxy_id} is {member.condition}"
    astray = [each.broker_id for each in best.identities if each.advertised != each.committed]
    if astray:
        return f"identity {astray[0]} is advertised elsewhere than committed"
    due = plan(answers, ()).moves
    return f"identity {due[0].broker_id} is about to move" if due else ""


def next_member(waiting: Iterable[ProxyId], leader: ProxyId | None) -> ProxyId:
    """Whom to restart next: the leader last, because that costs an election."""
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
        urls: of every configured member.
        only: whom to restart.
        limit_s: for each wait: for the fleet to be at rest, for a member to be back.
        say: told of each step, in a line.
        command_limit_s: how long the command may take for each of them; None for as long as it likes.
        access: with what members are asked.

    Raises:
        RestartFailed: the fleet was not at rest in time, a command failed, or a member did not come back; no
            further member is touched then.
    """
    waiting = set(only)
    done: list[RestartedMember] = []
    await at_rest(urls, limit_s, say, access)
    while waiting:
        before = await client.ask_all(urls, access=access)
        leader = best_answer(before).leader
        proxy_id = next_member(waiting, leader)
        waiting.discard(proxy_id)
        began_s = time.monotonic()
        say(f"{proxy_id}: restarting{', the Raft leader' if proxy_id == leader else ''}")
        try:
            await run_command(command_for(template, proxy_id, urls[proxy_id]), proxy_id, command_limit_s)
        except CommandFailed as error:
            raise RestartFailed(str(error)) from error
        await _another_life(proxy_id, before, urls[proxy_id], limit_s, access)
        await at_rest(urls, limit_s, say, access)
        took_s = time.monotonic() - began_s
        say(f"{proxy_id}: back, and the fleet at rest, after {took_s:.1f} s")
        done.append(RestartedMember(proxy_id, proxy_id == leader, took_s))
    return RollingRestartDocument(tuple(done))


async def _another_life(proxy_id: ProxyId, before: Answers, url: str, limit_s: float, access: Access) -> None:
    """Wait until a member answers in another life than before."""
    former = before[proxy_id]
    deadline_s = time.monotonic() + limit_s
    while True:
        answer = (await client.ask_all({proxy_id: url}, access=access))[proxy_id]
        if isinstance(answer, OwnershipDocument) and (
            not isinstance(former, OwnershipDocument) or answer.incarnation != former.incarnation
        ):
            return
        if time.monotonic() > deadline_s:
            how = (
                "is still in its former life"
                if isinstance(answer, OwnershipDocument)
                else f"is not back: {answer}"
            )
            raise RestartFailed(f"{proxy_id} {how}, {limit_s:g} s after its restart")
        await asyncio.sleep(ASK_EVERY_S)


async def at_rest(urls: Mapping[ProxyId, str], limit_s: float, say: Say, access: Access = OPEN) -> None:
    """Wait until the fleet is whole and at rest, and has been for a moment.

    Raises:
        RestartFailed: it is not in time.
    """
    deadline_s = time.monotonic() + limit_s
    rests_since_s: float | None = None
    said = ""
    while True:
        why = unrest(await client.ask_all(urls, access=access))
        now_s = time.monotonic()
        if why:
            rests_since_s = None
            if why != said:
                say(f"waiting: {why}")
                said = why
            if now_s > deadline_s:
                raise RestartFailed(f"the fleet is not at rest after {limit_s:g} s: {why}")
        elif rests_since_s is None:
            rests_since_s = now_s
        elif now_s - rests_since_s >= AT_REST_S:
            return
        await asyncio.sleep(ASK_EVERY_S)
