"""Runs a whole game day: starts clients, injects and heals the fault, and observes the fleet from outside."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

from fleet.admin import client, rolling_restart
from fleet.admin.documents import OwnershipDocument
from fleet.config import Settings, bootstrap_endpoints
from fleet.core.errors import GameDayError, RestartFailed
from fleet.drills.game_day.clients import FLOW_LIMIT_S, Clients, Topic
from fleet.drills.game_day.fault import FaultInjector
from fleet.drills.game_day.plan import Options, Plan, make_plan
from fleet.drills.game_day.timeline import Span
from fleet.drills.game_day.verdict import InjectedFault, Observations
from fleet.drills.workload.observer import Observer
from fleet.drills.workload.waiting import eventually, in_thread
from fleet.tls.access import access_to

_PROBE_INTERVAL_S = 0.02
"""Short enough to distinguish 100 ms from 200 ms. Each probe costs a real broker an answer."""

Say = Callable[[str], None]


async def plan(settings: Settings, options: Options) -> Plan:
    """Plan a game day on the fleet in its present state.

    Raises:
        AdminError: no member answers.
        GameDayError: the fleet is not whole and at rest, or cannot do without the victim.
    """
    access = access_to(settings, os.environ)
    answers = await client.ask_all(client.admin_urls(settings), access=access)
    return make_plan(answers, options, settings.timing.suspect_after_s)


async def perform(settings: Settings, options: Options, say: Say) -> Observations:
    """Carry out a game day.

    Raises:
        GameDayError: the game day could not begin, or the fault had no visible effect.
        CommandFailed, RestartFailed: a command of the operator failed.
    """
    day = _GameDay(settings, options, await plan(settings, options), say)
    with heal_before_exit(say), client_folder(options) as folder:
        return await day.perform(folder)


@contextmanager
def heal_before_exit(say: Say) -> Iterator[None]:
    """Let the first signal cancel the game day, which heals the fault. Further signals have no effect."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt() -> None:
        if task.cancelling():
            say("healing the fault first")
        else:
            task.cancel()

    for each in signals:
        loop.add_signal_handler(each, interrupt)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


@contextmanager
def client_folder(options: Options) -> Iterator[Path]:
    """The folder of the clients' histories and logs."""
    if options.folder is not None:
        folder = options.folder / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise GameDayError(f"{folder}: cannot create the folder: {error.strerror}") from error
        yield folder
        return
    folder = Path(tempfile.mkdtemp(prefix="fleet-chaos-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _GameDay:
    """One scenario on one fleet."""

    def __init__(self, settings: Settings, options: Options, plan: Plan, say: Say) -> None:
        self._settings = settings
        self._options = options
        self._plan = plan
        self._print = say
        self._urls = client.admin_urls(settings)
        self._access = access_to(settings, os.environ)
        self._bootstrap = bootstrap_endpoints(settings, options.listener)
        self._observer = Observer(settings, frozenset(plan.broker_ids), options.listener, _PROBE_INTERVAL_S)
        self._steps: list[tuple[float, str]] = []
        self._problems: list[str] = []

    async def perform(self, folder: Path) -> Observations:
        """Run from the first record to the end of the log."""
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        servers = ",".join(map(str, self._bootstrap.values()))
        async with AsyncExitStack() as stack:
            topic = await stack.enter_async_context(self._topic(servers))
            await stack.enter_async_context(self._observer.observing())
            clients = Clients(self._plan, self._options, topic.name, servers, folder)
            stack.callback(clients.workload.kill)
            await self._start(clients)
            began_s = time.monotonic()
            await asyncio.sleep(self._options.calm_s)
            injected_s = time.monotonic()
            fault = await self._inject()
            whole_s = await self._await_recovery()
            fault = await self._with_incarnation(fault)
            await eventually(lambda: clients.traffic.flows_since(whole_s), FLOW_LIMIT_S, 0.1)
            await asyncio.sleep(self._options.calm_s)
            ended_s = time.monotonic()
            await self._stop(clients)
            return Observations(
                options=self._options,
                plan=self._plan,
                began=began,
                window=Span(began_s, ended_s),
                injected_s=injected_s,
                fault=fault,
                whole_s=whole_s,
                carriers=tuple(self._bootstrap),
                topic=topic.name,
                stream=await in_thread(clients.stream),
                sightings=self._observer.sightings,
                views=self._observer.views(),
                reports=clients.reports(),
                refused=clients.refused(),
                problems=self._problems,
                steps=self._steps,
                folder=None if self._options.folder is None else str(folder),
            )

    @asynccontextmanager
    async def _topic(self, servers: str) -> AsyncIterator[Topic]:
        topic = Topic(self._plan, self._options, servers)
        await in_thread(topic.create)
        self._say(f"created topic {topic.name}")
        try:
            yield topic
        finally:
            if not self._options.keep_topic:
                try:
                    await in_thread(topic.delete)
                except GameDayError as error:
                    self._say(str(error))

    async def _start(self, clients: Clients) -> None:
        clients.workload.start()
        await clients.await_flow()
        self._say("records flow on every partition")
        for proxy_id, endpoint in self._bootstrap.items():
            if not self._observer.heard_s(proxy_id):
                raise GameDayError(
                    f"{proxy_id} does not answer Metadata requests at {endpoint}; check that this "
                    "machine reaches the address"
                )

    async def _inject(self) -> InjectedFault | None:
        injector = FaultInjector(self._settings, self._plan, self._options, self._observer, self._say)
        fault = await injector.perform()
        self._problems += injector.problems
        return fault

    async def _await_recovery(self) -> float:
        """Wait until the fleet is whole and at rest, or the limit is over. Returns: the time then."""
        try:
            await rolling_restart.at_rest(self._urls, self._options.limit_s, self._say, self._access)
            self._say("the fleet is whole and at rest again")
        except RestartFailed as error:
            self._problems.append(str(error))
            self._say(str(error))
        return time.monotonic()

    async def _with_incarnation(self, fault: InjectedFault | None) -> InjectedFault | None:
        """The fault with the victim's present incarnation."""
        victim = self._plan.victim
        if fault is None or victim is None:
            return fault
        answer = (await client.ask_all({victim: self._urls[victim]}, access=self._access))[victim]
        if isinstance(answer, OwnershipDocument):
            return replace(fault, incarnation=answer.incarnation)
        return fault

    async def _stop(self, clients: Clients) -> None:
        self._say("stopping the producer; the group reads to the end of the log")
        problem = await in_thread(clients.stop)
        if problem:
            self._problems.append(problem)

    def _say(self, step: str) -> None:
        self._steps.append((time.monotonic(), step))
        self._print(step)
