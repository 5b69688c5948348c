"""A whole game day: clients start, something breaks and is mended, and all is looked at from outside."""

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
from fleet.drills.game_day.fault import Breaker
from fleet.drills.game_day.plan import Options, Plan, make_plan
from fleet.drills.game_day.timeline import Span
from fleet.drills.game_day.verdict import Broken, Seen
from fleet.drills.workload.observer import Observer
from fleet.drills.workload.waiting import eventually, in_thread
from fleet.tls.access import access_to

_PROBE_EVERY_S = 0.02
"""Real brokers answer each of these requests: often enough to tell 100 ms from 200."""

Say = Callable[[str], None]


async def plan(settings: Settings, options: Options) -> Plan:
    """What would happen now.

    Raises:
        AdminError: nobody answers.
        GameDayError: the fleet is not fit for it.
    """
    access = access_to(settings, os.environ)
    answers = await client.ask_all(client.admin_urls(settings), access=access)
    return make_plan(answers, options, settings.timing.suspect_after_s)


async def perform(settings: Settings, options: Options, say: Say) -> Seen:
    """Carry it out.

    Raises:
        GameDayError: it could not begin, or nothing shows that it happened.
        CommandFailed, RestartFailed: a command of the operator's failed.
    """
    day = _GameDay(settings, options, await plan(settings, options), say)
    with _mending_first(say), _folder(options) as folder:
        return await day.perform(folder)


@contextmanager
def _mending_first(say: Say) -> Iterator[None]:
    """Have the first signal end the game day in order, and further ones wait for that."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt() -> None:
        if task.cancelling():
            say("what is broken is mended first")
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
def _folder(options: Options) -> Iterator[Path]:
    """Where clients write."""
    if options.folder is not None:
        folder = options.folder / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise GameDayError(f"{folder}: cannot be made: {error.strerror}") from error
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
        self._tell = say
        self._urls = client.admin_urls(settings)
        self._access = access_to(settings, os.environ)
        self._entrances = bootstrap_endpoints(settings, options.listener)
        self._observer = Observer(settings, frozenset(plan.broker_ids), options.listener, _PROBE_EVERY_S)
        self._steps: list[tuple[float, str]] = []
        self._troubles: list[str] = []

    async def perform(self, folder: Path) -> Seen:
        """From the first record to the end of the log."""
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        servers = ",".join(map(str, self._entrances.values()))
        async with AsyncExitStack() as stack:
            topic = await stack.enter_async_context(self._topic(servers))
            await stack.enter_async_context(self._observer.observing())
            clients = Clients(self._plan, self._options, topic.name, servers, folder)
            stack.callback(clients.workload.kill)
            await self._start(clients)
            began_s = time.monotonic()
            await asyncio.sleep(self._options.calm_s)
            broken_s = time.monotonic()
            broken = await self._break()
            whole_s = await self._recover()
            broken = await self._with_life(broken)
            await eventually(lambda: clients.traffic.flows_since(whole_s), FLOW_LIMIT_S, 0.1)
            await asyncio.sleep(self._options.calm_s)
            ended_s = time.monotonic()
            await self._stop(clients)
            return Seen(
                options=self._options,
                plan=self._plan,
                began=began,
                whole=Span(began_s, ended_s),
                broken_s=broken_s,
                broken=broken,
                whole_s=whole_s,
                carriers=tuple(self._entrances),
                topic=topic.name,
                stream=await in_thread(clients.stream),
                sightings=self._observer.sightings,
                views=self._observer.views(),
                reports=clients.reports(),
                refused=clients.refused(),
                troubles=self._troubles,
                steps=self._steps,
                folder=None if self._options.folder is None else str(folder),
            )

    @asynccontextmanager
    async def _topic(self, servers: str) -> AsyncIterator[Topic]:
        topic = Topic(self._plan, self._options, servers)
        await in_thread(topic.create)
        self._say(f"topic {topic.name} is there")
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
        await clients.flowing()
        self._say("records flow on every partition")
        for proxy_id, entrance in self._entrances.items():
            if not self._observer.heard_s(proxy_id):
                raise GameDayError(
                    f"{proxy_id} does not answer a request for Metadata at {entrance}, from here"
                )

    async def _break(self) -> Broken | None:
        breaker = Breaker(self._settings, self._plan, self._options, self._observer, self._say)
        broken = await breaker.perform()
        self._troubles += breaker.troubles
        return broken

    async def _recover(self) -> float:
        """Wait until the fleet is whole and at rest. Returns: when it was, or the wait was over."""
        try:
            await rolling_restart.at_rest(self._urls, self._options.limit_s, self._say, self._access)
            self._say("the fleet is whole and at rest again")
        except RestartFailed as error:
            self._troubles.append(str(error))
            self._say(str(error))
        return time.monotonic()

    async def _with_life(self, broken: Broken | None) -> Broken | None:
        """What was done, and in which life the victim is after it."""
        victim = self._plan.victim
        if broken is None or victim is None:
            return broken
        answer = (await client.ask_all({victim: self._urls[victim]}, access=self._access))[victim]
        return replace(broken, life=answer.incarnation) if isinstance(answer, OwnershipDocument) else broken

    async def _stop(self, clients: Clients) -> None:
        self._say("the producer stops; the group reads to the end of the log")
        trouble = await in_thread(clients.stop)
        if trouble:
            self._troubles.append(trouble)

    def _say(self, what: str) -> None:
        self._steps.append((time.monotonic(), what))
        self._tell(what)
