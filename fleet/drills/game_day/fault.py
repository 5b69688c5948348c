"""Injects the fault with the operator's commands, proves it from outside, and heals it in every case."""

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
from fleet.drills.game_day.evidence import SILENT_AFTER_S, Glimpse, explain_missing_proof, proof_of
from fleet.drills.game_day.plan import Options, Plan
from fleet.drills.game_day.verdict import InjectedFault
from fleet.drills.workload.observer import Observer
from fleet.drills.workload.waiting import background_tasks
from fleet.tls.access import access_to

PROOF_LIMIT_S: Final = 10.0
"""Time limit after the end of the command: above the time that asynchronous commands need."""
_OBSERVATION_INTERVAL_S = 0.05
_UNREST_INTERVAL_S = 0.5

Say = Callable[[str], None]


class FaultInjector:
    """Injects and heals the fault of a scenario.

    Args:
        say: called with a line for each step.
    """

    def __init__(
        self, settings: Settings, plan: Plan, options: Options, observer: Observer, say: Say
    ) -> None:
        self._settings = settings
        self._urls = client.admin_urls(settings)
        self._access = access_to(settings, os.environ)
        self._carriers = tuple(bootstrap_endpoints(settings))
        self._plan = plan
        self.options = options
        self._observer = observer
        self._say = say
        self.problems: list[str] = []
        """Problems of the healing, in sentences."""

    async def perform(self) -> InjectedFault | None:
        """Inject the fault, prove it, hold it, and heal it.

        Returns: the fault; None for a scenario without a fault.
        Raises:
            FaultNotObserved, CommandFailed, RestartFailed: the fault has no effect, or a command failed. The
                member is healed.
        """
        effect = self.options.definition.effect
        if effect == "nothing":
            await self._watch()
            return None
        if effect == "restarted":
            return await self._restart_all()
        assert self._plan.victim is not None
        return await self._inject(self._plan.victim)

    # ---------------------------------------------------------------------------------------- one member

    async def _inject(self, victim: ProxyId) -> InjectedFault:
        since_s = time.monotonic()
        try:
            self._say(f"breaking {victim}{', the Raft leader' if self._plan.was_leader else ''}")
            async with background_tasks(self._detect_drain(victim, since_s)):
                await self._run("inject-command", victim)
            proof, at_s = await self._prove(victim, since_s)
            self._say(proof)
            until_s = await self._hold(victim, since_s, at_s)
        except BaseException as error:
            await self._heal(victim)
            if isinstance(error, FleetError):
                await self._report_recovery()
            raise
        await self._heal(victim)
        return InjectedFault(at_s, until_s, proof)

    async def _run(self, option: str, victim: ProxyId) -> None:
        template = self.options.templates.get(option)
        if template is not None:
            command = command_for(template, victim, self._urls[victim], f"--{option}")
            await run_command(command, victim, self.options.limit_s)
        elif self.options.definition.effect == "drained":
            access = access_to(self._settings, os.environ, writes=True)
            await client.drain(
                client.writable_urls(self._settings), victim, option == "inject-command", access=access
            )

    async def _detect_drain(self, victim: ProxyId, since_s: float) -> None:
        """Watch for a drain that ends before the command. Raises: FaultNotObserved: the victim drains."""
        while True:
            proof_of(self.options.definition.effect, self._glimpse(victim, since_s))
            await asyncio.sleep(_OBSERVATION_INTERVAL_S)

    async def _prove(self, victim: ProxyId, since_s: float) -> tuple[str, float]:
        """Wait for a proof of the fault.

        Returns: the proof, and the time of the victim's last sign of life.
        Raises:  FaultNotObserved: there is no proof in time.
        """
        effect = self.options.definition.effect
        deadline_s = time.monotonic() + PROOF_LIMIT_S
        while True:
            glimpse = self._glimpse(victim, since_s)
            proof = proof_of(effect, glimpse)
            if proof:
                heard_s = self._observer.heard_s(victim)
                return proof, heard_s if glimpse.silent_s >= SILENT_AFTER_S else since_s
            if time.monotonic() > deadline_s:
                raise FaultNotObserved(
                    f"--inject-command had no visible effect within {PROOF_LIMIT_S:.0f} s: "
                    + explain_missing_proof(effect, glimpse)
                )
            await asyncio.sleep(_OBSERVATION_INTERVAL_S)

    async def _hold(self, victim: ProxyId, since_s: float, at_s: float) -> float:
        """Hold the fault for its duration, or until a killed member is back.

        Returns: the end of the fault.
        Raises:  FaultNotObserved: a silenced member answers again.
        """
        effect = self.options.definition.effect
        while self._is_due(victim, at_s, now_s := time.monotonic()):
            glimpse = self._glimpse(victim, since_s)
            if effect == "killed" and (glimpse.has_restarted or glimpse.silent_s < SILENT_AFTER_S):
                self._say(f"{victim} is already back")
                return now_s
            if effect == "silent" and glimpse.silent_s < SILENT_AFTER_S:
                after_s = now_s - at_s
                raise FaultNotObserved(f"{victim} answers again after {after_s:.1f} s, before it was healed")
            await asyncio.sleep(_OBSERVATION_INTERVAL_S)
        return now_s

    def _is_due(self, victim: ProxyId, at_s: float, now_s: float) -> bool:
        """Whether the fault must last longer: for its duration, and until the survivors have taken over."""
        lasts_s = now_s - at_s
        if not self.options.definition.cuts_off or lasts_s > self._plan.takeover_limit_s + SILENT_AFTER_S:
            return lasts_s < self.options.duration_s
        survivors = [each for each in self._carriers if each != victim]
        return lasts_s < self.options.duration_s or not self._observer.taken_over(survivors, at_s)

    async def _heal(self, victim: ProxyId) -> None:
        """Heal the victim. An error is recorded and reported, and does not end the run."""
        if "heal-command" not in self.options.templates and self.options.definition.effect == "killed":
            self._say(f"waiting for a service manager to restart {victim}")
            return
        self._say(f"healing {victim}")
        try:
            await self._run("heal-command", victim)
        except FleetError as error:
            self.problems.append(f"cannot heal {victim}, which may still be broken: {error}")
            self._say(self.problems[-1])

    async def _report_recovery(self) -> None:
        """Report whether the fleet is whole again after a failed run."""
        try:
            await rolling_restart.at_rest(self._urls, self.options.limit_s, self._say, self._access)
        except RestartFailed as error:
            self._say(f"ATTENTION, the fleet has not recovered: {error}")
        else:
            self._say("the fleet is whole and at rest")

    def _glimpse(self, victim: ProxyId, since_s: float) -> Glimpse:
        observer = self._observer
        return Glimpse(
            victim=victim,
            incarnation=self._plan.incarnation,
            silent_s=time.monotonic() - observer.heard_s(victim),
            answers={
                proxy_id: answer.document
                for proxy_id, answer in observer.answers.items()
                if answer.at_s > since_s
            },
            advertised={each: views[-1].owners for each, views in observer.views().items() if views},
        )

    # --------------------------------------------------------------------------------------- all members

    async def _restart_all(self) -> InjectedFault:
        at_s = time.monotonic()
        template = self.options.templates["restart-command"]
        limit_s = self.options.limit_s
        done = await rolling_restart.restart_all(
            self._urls, self._urls, template, limit_s, self._say, limit_s, self._access
        )
        order = ", ".join(each.proxy_id for each in done.members)
        return InjectedFault(at_s, time.monotonic(), f"restarted, one after the other: {order}")

    async def _watch(self) -> None:
        """Watch the fleet, and report each change of its unrest."""
        reported = ""
        until_s = time.monotonic() + self.options.duration_s
        self._say(f"watching for {self.options.duration_s:g} s; break something by hand")
        while time.monotonic() < until_s:
            why = rolling_restart.unrest(await client.ask_all(self._urls, access=self._access))
            if why != reported:
                self._say(why or "whole and at rest")
                reported = why
            await asyncio.sleep(_UNREST_INTERVAL_S)
