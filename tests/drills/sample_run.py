"""A chaos run without servers: the test chooses what clients observe, and the outcome of faults."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from fleet.core.errors import DemoError
from fleet.core.model import Endpoint
from fleet.drills.workload.checker import Sighting, View
from fleet.drills.workload.clients import Workload
from fleet.drills.workload.history import Event, HistoryWriter, Record
from tests.chaos.seeded import command, run, workloads
from tests.chaos.seeded.faults import Done
from tests.chaos.seeded.run import SharedServers
from tests.chaos.seeded.schedule import Fault
from tests.chaos.seeded.workloads import PARTITIONS

LATER_S = 30.0
"""Time stamps of records lie this far in the future, and so after each moment of a run."""
PROOF = "the process ended"


@dataclass
class Stage:
    """The chosen outcome of a run.

    Args:
        outcomes: errors of faults, by target; all other faults succeed.
        starts: whether the fleet starts.
        flowing: the partitions on which clients have records.
        readable: number of topics whose log can be read.
        said: progress lines of the run.
    """

    outcomes: dict[str, Exception] = field(default_factory=dict)
    starts: bool = True
    flowing: Iterable[int] = range(PARTITIONS)
    readable: int = 9
    said: list[str] = field(default_factory=list)

    @property
    def ground(self) -> SharedServers:
        here: Any = self
        return SharedServers(here, here, (Endpoint("127.0.0.1", 1),))

    # ------------------------------------------------------------------------------- the brokers, the network

    brokers = (1, 2, 3)
    bootstrap_servers = "127.0.0.1:1"

    def put_before_members(self, fleet: object) -> None: ...

    def put_between_members(self, fleet: object) -> None: ...

    def forget_members(self) -> None: ...

    def read_log(self, brokers: str, topic: str) -> list[Event]:
        if self.readable == 0:
            raise DemoError("the brokers do not answer")
        self.readable -= 1
        return self.events()

    def events(self) -> list[Event]:
        at_s = time.monotonic() + LATER_S
        return [Event(at_s, partition, Record(7, 0), 0) for partition in self.flowing]

    # ------------------------------------------------------------------------------------------ those at work

    def start_workload(self, workload: Workload) -> None:
        for name in ("acknowledged", "received"):
            writer = HistoryWriter(workload.spec.path(name))
            for event in self.events():
                writer.append(event)
            writer.close()

    def await_ready(self) -> None:
        if not self.starts:
            raise DemoError("p1 ended with code 1")

    async def inject(self, fault: Fault) -> Done:
        outcome = self.outcomes.get(fault.target)
        if outcome is not None:
            raise outcome
        at_s = time.monotonic()
        return Done(fault, (fault.target,), at_s, at_s, PROOF)


class Fleet:
    """A fleet that is ready at once, or fails to start."""

    settings = None
    members = ()

    def __init__(self, stage: Stage) -> None:
        self.await_ready = stage.await_ready

    def start(self) -> None: ...

    def await_settled(self, broker_ids: object) -> None: ...

    def bootstrap(self) -> str:
        return "127.0.0.1:1"

    def close(self) -> None: ...

    def remove_data(self) -> None: ...


class Onlooker:
    """An observer that has seen one owner of one identity."""

    sightings = (Sighting(1.0, "p1", 4, {1: ("p1",)}),)

    def __init__(self, settings: object, broker_ids: object) -> None: ...

    @asynccontextmanager
    async def observing(self) -> AsyncIterator[None]:
        yield

    def views(self) -> dict[str, list[View]]:
        return {"p2": [View(2.0, {1: "p1"})]}

    def taken_over(self, survivors: object, since_s: float) -> bool:
        return True


class Admin:
    """An AdminClient that creates and deletes every topic at once."""

    def __init__(self, settings: object) -> None: ...

    def create_topics(self, topics: Iterable[Any]) -> dict[str, Future[None]]:
        return self.delete_topics(topic.topic for topic in topics)

    def delete_topics(self, names: Iterable[str]) -> dict[str, Future[None]]:
        done: Future[None] = Future()
        done.set_result(None)
        return dict.fromkeys(names, done)


def set_up(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Replace the servers of runs by a stage, and set time limits to zero."""
    stage = Stage()
    monkeypatch.setattr(run, "_FLOW_LIMIT_S", 0.0)
    monkeypatch.setattr(run, "LocalFleet", lambda *_, **__: Fleet(stage))
    monkeypatch.setattr(run, "Observer", Onlooker)
    monkeypatch.setattr(run, "Injector", lambda *_: stage)
    monkeypatch.setattr(run, "AdminClient", Admin)
    monkeypatch.setattr(workloads, "read_log", stage.read_log)
    monkeypatch.setattr(Workload, "start", lambda workload: stage.start_workload(workload))
    monkeypatch.setattr(Workload, "stop", lambda workload, *, strict: None)

    @asynccontextmanager
    async def prepare(*_: object) -> AsyncIterator[SharedServers]:
        yield stage.ground

    monkeypatch.setattr(command, "prepare", prepare)
    return stage
