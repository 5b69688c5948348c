"""Breaks a member as the operator's commands do it, proves it from outside, and mends it whatever happens."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

from fleet.admin import client, rolling_restart
from fleet.admin.operator_commands import command_for, run_command
from fleet.config import Settings, bootstrap_endpoints
from fleet.core.errors import FaultNotObserved, FleetError, RestartFailed
from fleet.core.model import ProxyId
from fleet.drills.game_day.evidence import SILENT_S, Glimpse, proof_of, what_is_missing
from fleet.drills.game_day.plan import Options, Plan
from fleet.drills.game_day.verdict import Broken
from fleet.drills.workload.observer import Observer
from fleet.drills.workload.waiting import background_tasks
from fleet.tls.access import access_to

PROOF_LIMIT_S: Final = 10.0
"""From the end of the command: above the time that commands which only ask for something need."""
_LOOK_EVERY_S = 0.05
_UNREST_EVERY_S = 0.5

Say = Callable[[str], None]


class Breaker:
    """Does what a scenario is about.

    Args:
        say: told of each step, in a line.
    """

    def __init__(
        self, settings: Settings, plan: Plan, options: Options, observer: Observer, say: Say
    ) -> None:
        self._settings = settings
        self._urls = client.admin_urls(settings)
        self._access = access_to(settings, os.environ)
        self._carriers = tuple(bootstrap_endpoints(settings))
        self._plan = plan
        self._options = options
        self._observer = observer
        self._say = say
        self.troubles: list[str] = []
        """What went wrong with the mending."""

    async def perform(self) -> Broken | None:
        """Break, prove, hold, mend.

        Returns: what was done; None where nothing was.
        Raises:  NotProved, CommandFailed, RestartFailed: it was not done as it should, and is mended.
        """
        effect = self._options.what.effect
        if effect == "nothing":
            await self._watch()
            return None
        if effect == "restarted":
            return await self._restart_all()
        assert self._plan.victim is not None
        return await self._break(self._plan.victim)

    # ---------------------------------------------------------------------------------------- one member

    async def _break(self, victim: ProxyId) -> Broken:
        since_s = time.monotonic()
        try:
            self._say(f"breaking {victim}{', the Raft leader' if self._plan.was_leader else ''}")
            async with background_tasks(self._listen(victim, since_s)):
                await self._do("inject-command", victim)
            proof, at_s = await self._prove(victim, since_s)
            self._say(proof)
            until_s = await self._hold(victim, since_s, at_s)
        except BaseException as error:
            await self._mend(victim)
            if isinstance(error, FleetError):
                await self._look_after()
            raise
        await self._mend(victim)
        return Broken(at_s, until_s, proof)

    async def _do(self, option: str, victim: ProxyId) -> None:
        template = self._options.templates.get(option)
        if template is not None:
            command = command_for(template, victim, self._urls[victim], f"--{option}")
            await run_command(command, victim, self._options.limit_s)
        elif self._options.what.effect == "drained":
            access = access_to(self._settings, os.environ, writes=True)
            await client.drain(
                client.writable_urls(self._settings), victim, option == "inject-command", access=access
            )

    async def _listen(self, victim: ProxyId, since_s: float) -> None:
        """Hear a goodbye that is over before the command is. Raises: NotProved: there was one."""
        while True:
            proof_of(self._options.what.effect, self._glimpse(victim, since_s))
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _prove(self, victim: ProxyId, since_s: float) -> tuple[str, float]:
        """What shows it, and when the victim was heard of last. Raises: NotProved: nothing does, in time."""
        effect = self._options.what.effect
        deadline_s = time.monotonic() + PROOF_LIMIT_S
        while True:
            glimpse = self._glimpse(victim, since_s)
            proof = proof_of(effect, glimpse)
            if proof:
                heard_s = self._observer.heard_s(victim)
                return proof, heard_s if glimpse.silent_s >= SILENT_S else since_s
            if time.monotonic() > deadline_s:
                raise FaultNotObserved(
                    f"--inject-command has had no effect that can be seen within {PROOF_LIMIT_S:.0f} s: "
                    + what_is_missing(effect, glimpse)
                )
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _hold(self, victim: ProxyId, since_s: float, at_s: float) -> float:
        """Leave it broken for as long as it should be, or until it is back by itself.

        Returns: when that was over.
        Raises:  NotProved: it is back although it was to say nothing.
        """
        effect = self._options.what.effect
        while self._is_due(victim, at_s, now_s := time.monotonic()):
            glimpse = self._glimpse(victim, since_s)
            if effect == "killed" and (glimpse.in_another_life or glimpse.silent_s < SILENT_S):
                self._say(f"{victim} is back already")
                return now_s
            if effect == "silent" and glimpse.silent_s < SILENT_S:
                after_s = now_s - at_s
                raise FaultNotObserved(
                    f"{victim} answers again {after_s:.1f} s after it was broken, not healed"
                )
            await asyncio.sleep(_LOOK_EVERY_S)
        return now_s

    def _is_due(self, victim: ProxyId, at_s: float, now_s: float) -> bool:
        """Whether it has to stay broken: for as long as was asked for, and until others are in its place."""
        lasts_s = now_s - at_s
        if not self._options.what.cuts_off or lasts_s > self._plan.takeover_limit_s + SILENT_S:
            return lasts_s < self._options.duration_s
        survivors = [each for each in self._carriers if each != victim]
        return lasts_s < self._options.duration_s or not self._observer.taken_over(survivors, at_s)

    async def _mend(self, victim: ProxyId) -> None:
        """Undo it; what goes wrong is kept and said, so that it ends nothing."""
        if "heal-command" not in self._options.templates and self._options.what.effect == "killed":
            self._say(f"{victim} is to be started by somebody else")
            return
        self._say(f"mending {victim}")
        try:
            await self._do("heal-command", victim)
        except FleetError as error:
            self.troubles.append(f"mending {victim} failed, and it may still be broken: {error}")
            self._say(self.troubles[-1])

    async def _look_after(self) -> None:
        """Say whether the fleet is well again after a run that was given up."""
        try:
            await rolling_restart.at_rest(self._urls, self._options.limit_s, self._say, self._access)
        except RestartFailed as error:
            self._say(f"LOOK AFTER IT: {error}")
        else:
            self._say("the fleet is whole and at rest")

    def _glimpse(self, victim: ProxyId, since_s: float) -> Glimpse:
        observer = self._observer
        return Glimpse(
            victim=victim,
            life=self._plan.life,
            silent_s=time.monotonic() - observer.heard_s(victim),
            answers={
                proxy_id: answer.document
                for proxy_id, answer in observer.answers.items()
                if answer.at_s > since_s
            },
            advertised={proxy_id: seen[-1].owners for proxy_id, seen in observer.views().items() if seen},
        )

    # --------------------------------------------------------------------------------------- all members

    async def _restart_all(self) -> Broken:
        at_s = time.monotonic()
        template = self._options.templates["restart-command"]
        limit_s = self._options.limit_s
        done = await rolling_restart.restart_all(
            self._urls, self._urls, template, limit_s, self._say, limit_s, self._access
        )
        order = ", ".join(each.proxy_id for each in done.members)
        return Broken(at_s, time.monotonic(), f"in another life, one after the other: {order}")

    async def _watch(self) -> None:
        """Look on, and say what is not at rest, each time that it is something else."""
        said = ""
        until_s = time.monotonic() + self._options.duration_s
        self._say(f"break what you like, for {self._options.duration_s:g} s")
        while time.monotonic() < until_s:
            why = rolling_restart.unrest(await client.ask_all(self._urls, access=self._access))
            if why != said:
                self._say(why or "whole and at rest")
                said = why
            await asyncio.sleep(_UNREST_EVERY_S)
