"""Which directories are published, and which directory is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from fleet.control.directory_publisher import DirectoryPublisher
from fleet.core.model import (
    AdvertisedListener,
    Broker,
    Directory,
    FleetState,
    IdentitySpace,
    Member,
    Ownership,
)
from fleet.runtime import ipc

IDENTITIES = IdentitySpace(first_id=1, count=4)
P1 = Member("p1", listeners=(AdvertisedListener("external", "h1", 9100, 9101),), identities=IDENTITIES)
P2 = Member("p2", listeners=(AdvertisedListener("external", "h2", 9100, 9101),), identities=IDENTITIES)
BROKERS = {1: Broker(1, "kafka-1", 9092), 2: Broker(2, "kafka-2", 9092)}
STATE = FleetState(
    generation=1,
    members={"p1": P1, "p2": P2},
    brokers=BROKERS,
    ownership={1: Ownership(("p1",), ("p2",)), 2: Ownership(("p2",), ("p1",))},
)


class FakeWorkers:
    """Fake worker channels that record the published directories."""

    def __init__(self) -> None:
        self.published: list[Directory] = []

    def publish(self, directory: Directory) -> None:
        self.published.append(directory)


def directories(workers: FakeWorkers, data_dir: Path) -> DirectoryPublisher:
    return DirectoryPublisher(P1, workers, data_dir)  # type: ignore[arg-type]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (a file is waited for)
            await asyncio.sleep(0.01)


async def test_unchanged_directory_is_not_published(tmp_path: Path) -> None:
    workers = FakeWorkers()
    desk = directories(workers, tmp_path)
    desk.publish(STATE, frozenset(), BROKERS)
    desk.publish(STATE, frozenset(), BROKERS)
    assert [each.revision for each in workers.published] == [1]
    assert desk.current is workers.published[0]


async def test_a_suspicion_is_a_new_revision_of_the_same_generation(tmp_path: Path) -> None:
    workers = FakeWorkers()
    desk = directories(workers, tmp_path)
    desk.publish(STATE, frozenset(), BROKERS)
    desk.publish(STATE, frozenset({"p2"}), BROKERS)
    calm, alarmed = workers.published
    assert (calm.generation, alarmed.generation) == (1, 1)
    assert (calm.revision, alarmed.revision) == (1, 2)
    assert calm.advertised[2] == ("p2",)
    assert alarmed.advertised[2] == ("p1",)
    assert alarmed.committed[2] == ("p2",)


async def test_newest_directory_is_on_disk(tmp_path: Path) -> None:
    desk = directories(FakeWorkers(), tmp_path)
    saving = asyncio.create_task(desk.save())
    path = tmp_path / ipc.DIRECTORY_FILE
    try:
        desk.publish(STATE, frozenset(), BROKERS)
        desk.publish(STATE, frozenset({"p2"}), BROKERS)
        await until(lambda: path.exists() and ipc.read_directory(path) == desk.current)
    finally:
        saving.cancel()


async def test_a_disk_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    workers = FakeWorkers()
    desk = directories(workers, tmp_path / "missing")
    saving = asyncio.create_task(desk.save())
    try:
        desk.publish(STATE, frozenset(), BROKERS)
        await until(lambda: bool(workers.published))
        (tmp_path / "missing").mkdir()
        desk.publish(STATE, frozenset({"p2"}), BROKERS)
        await until(lambda: (tmp_path / "missing" / ipc.DIRECTORY_FILE).exists())
        assert not saving.done()
    finally:
        saving.cancel()
