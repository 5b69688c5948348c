"""Control's side of the local socket. The test plays the workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fleet.admin.snapshot import WorkerView
from fleet.control import worker_channels
from fleet.control.worker_channels import WorkerChannels
from fleet.core.model import Broker, Directory
from fleet.core.traffic import ApiTraffic
from fleet.runtime import ipc
from fleet.runtime.ipc import (
    BrokersLostMessage,
    BrokersSeenMessage,
    Channel,
    ConnectionRow,
    CountersMessage,
    CountMessage,
    DirectoryMessage,
    Hello,
    ReachableMessage,
    TrafficMessage,
    TrafficRow,
    WorkerCounters,
)

LIMIT_S = 20.0
B1, B2 = Broker(1, "kafka-1", 9092), Broker(2, "kafka-2", 9092)


class Control:
    """Worker channels on a socket, and the callbacks that they made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.setblocking(False)
        listening.bind(str(path))
        listening.listen()
        self.seen: list[tuple[Broker, ...]] = []
        self.applied: list[int] = []
        self.unidentified: list[tuple[int, ...]] = []
        self.lost: list[tuple[int, ...]] = []
        self.passed: list[TrafficMessage] = []
        self.workers = WorkerChannels(
            listening,
            self.seen.append,
            self.unidentified.append,
            self.lost.append,
            self.applied.append,
            self.passed.append,
        )

    async def connect(self, hello: Hello | None = None) -> Channel:
        channel = await ipc.connect(self._path)
        if hello is not None:
            before = self.workers.connected
            channel.send(hello)
            await until(lambda: self.workers.connected == before + 1)
        return channel


@contextlib.asynccontextmanager
async def control() -> AsyncIterator[Control]:
    # A path of pytest may be too long for a Unix socket.
    with tempfile.TemporaryDirectory() as folder:
        control_stub = Control(Path(folder) / "control.sock")
        await control_stub.workers.start()
        try:
            yield control_stub
        finally:
            await control_stub.workers.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 (a socket reports nothing)
            await asyncio.sleep(0.002)


async def received(channel: Channel) -> ipc.Message | None:
    async with asyncio.timeout(LIMIT_S):
        return await channel.receive()


def counters(revision: int = 0, produced: int = 0, connections: int = 0) -> CountersMessage:
    return CountersMessage(
        WorkerCounters(requests={0: produced}, connections={1: connections}, revision=revision)
    )


# ---- connected workers


async def test_a_worker_counts_once_it_has_said_hello() -> None:
    async with control() as control_stub:
        silent = await control_stub.connect()
        first = asyncio.create_task(control_stub.workers.wait_for_first())
        await control_stub.connect(Hello(0, 100))
        async with asyncio.timeout(LIMIT_S):
            await first
        assert control_stub.workers.connected == 1
        silent.close()


async def test_views_list_connected_workers_in_order() -> None:
    async with control() as control_stub:
        second = await control_stub.connect(Hello(1, 101))
        first = await control_stub.connect(Hello(0, 100))
        second.send(counters(produced=7))
        first.send(counters(produced=5))
        await until(
            lambda: [view.counters.requests for view in control_stub.workers.views()] == [{0: 5}, {0: 7}]
        )
        assert control_stub.workers.views() == (
            WorkerView(0, 100, counters(produced=5).counters),
            WorkerView(1, 101, counters(produced=7).counters),
        )
        first.close()
        await until(lambda: control_stub.workers.connected == 1)
        assert [view.index for view in control_stub.workers.views()] == [1]


async def test_workers_send_counters_on_request() -> None:
    async with control() as control_stub:
        looks = asyncio.create_task(control_stub.workers.refresh_counters())
        await looks  # without workers, there is nothing to wait for
        worker = await control_stub.connect(Hello(0, 100))
        looking = [asyncio.create_task(control_stub.workers.refresh_counters()) for _ in range(3)]
        assert await received(worker) == CountMessage()
        assert not any(each.done() for each in looking)
        worker.send(counters(produced=5))
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*looking)
        assert [view.counters.requests for view in control_stub.workers.views()] == [{0: 5}]
        # Concurrent requests cause one message, and fresh counters are not requested again.
        await control_stub.workers.refresh_counters()
        control_stub.workers.publish(Directory(3, 7))
        assert await received(worker) == DirectoryMessage(Directory(3, 7))


async def test_counters_do_not_wait_for_a_silent_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_channels, "COUNTERS_MAX_AGE_S", 0.0)
    async with control() as control_stub:
        quick, slow = await control_stub.connect(Hello(0, 100)), await control_stub.connect(Hello(1, 101))
        slow.send(counters(produced=3))
        await until(lambda: control_stub.workers.views()[1].counters.requests == {0: 3})
        for produced in (5, 6):
            looking = asyncio.create_task(control_stub.workers.refresh_counters())
            assert await received(quick) == CountMessage()
            quick.send(counters(produced=produced))
            async with asyncio.timeout(LIMIT_S):
                await looking
            assert [view.counters.requests for view in control_stub.workers.views()] == [
                {0: produced},
                {0: 3},
            ]
        assert await received(slow) == CountMessage()
        looking = asyncio.create_task(control_stub.workers.refresh_counters())
        slow.close()  # and the waiting request ends
        assert await received(quick) == CountMessage()
        quick.send(counters(produced=7))
        async with asyncio.timeout(LIMIT_S):
            await looking
        await until(lambda: control_stub.workers.connected == 1)


async def test_dead_worker_keeps_counters_but_no_gauges() -> None:
    async with control() as control_stub:
        for pid in (100, 200):
            worker = await control_stub.connect(Hello(0, pid))
            worker.send(counters(produced=5, connections=3))
            worker.send(counters(produced=8, connections=2))
            await until(lambda: [view.counters.requests for view in control_stub.workers.views()] == [{0: 8}])
            worker.close()
            await until(lambda: control_stub.workers.connected == 0)
        assert control_stub.workers.retired.requests == {0: 16}
        assert control_stub.workers.retired.connections == {}


async def test_new_process_of_a_worker_is_a_restart() -> None:
    async with control() as control_stub:
        for hello, restarts in (
            (Hello(0, 100), 0),
            (Hello(1, 101), 0),
            (Hello(0, 100), 0),  # the same process has reconnected
            (Hello(0, 200), 1),
            (Hello(1, 201), 2),
        ):
            (await control_stub.connect(hello)).close()
            await until(lambda: control_stub.workers.connected == 0)
            assert control_stub.workers.restarts == restarts, hello


# ---- directories


async def test_directory_goes_to_present_and_later_workers() -> None:
    async with control() as control_stub:
        early = await control_stub.connect(Hello(0, 100))
        control_stub.workers.publish(Directory(generation=1, revision=1))
        control_stub.workers.publish(Directory(generation=2, revision=2))
        late = await control_stub.connect()
        assert await received(early) == DirectoryMessage(Directory(generation=1, revision=1))
        assert await received(early) == DirectoryMessage(Directory(generation=2, revision=2))
        assert await received(late) == DirectoryMessage(Directory(generation=2, revision=2))


async def test_dead_worker_does_not_block_directories_of_others() -> None:
    async with control() as control_stub:
        closed = await control_stub.connect(Hello(0, 100))
        channel = await control_stub.connect(Hello(1, 101))
        closed.close()
        control_stub.workers.publish(Directory(revision=1))
        assert await received(channel) == DirectoryMessage(Directory(revision=1))


async def test_a_revision_is_applied_when_the_last_worker_has_it() -> None:
    async with control() as control_stub:
        one, other = await control_stub.connect(Hello(0, 100)), await control_stub.connect(Hello(1, 101))
        one.send(counters(revision=4))
        await until(lambda: control_stub.applied == [0])
        other.send(counters(revision=3))
        await until(lambda: control_stub.applied == [0, 3])
        other.send(counters(revision=5))
        await until(lambda: control_stub.applied == [0, 3, 4])


async def test_dead_worker_does_not_delay_the_revision() -> None:
    """Its successor starts with the newest directory, so only the revisions of the others count."""
    async with control() as control_stub:
        one, other = await control_stub.connect(Hello(0, 100)), await control_stub.connect(Hello(1, 101))
        other.send(counters(revision=3))
        one.send(counters(revision=4))
        await until(lambda: control_stub.applied[-1:] == [3])
        other.close()
        await until(lambda: control_stub.applied[-1] == 4)
        one.close()
        await until(lambda: control_stub.workers.connected == 0)
        assert control_stub.applied[-1] == 4


# ---- observations and invalid messages


async def test_traffic_is_passed_on() -> None:
    row = TrafficRow("inside", 1, 1, 1, 10, 20, 3, {1: ApiTraffic(2, 1, 5, 6, {40: 1})}, {"c": 1})
    connection = ConnectionRow(1, 900, "inside", 1, True, "192.0.2.7:4", "c", "moved", 1.5)
    message = TrafficMessage("0-100-1", 1_000, 1_000, (row,), (connection,), 4)
    async with control() as control_stub:
        worker = await control_stub.connect(Hello(0, 100))
        worker.send(message)
        await until(lambda: control_stub.passed)
        assert control_stub.passed == [message]


async def test_brokers_that_a_worker_saw_are_passed_on() -> None:
    async with control() as control_stub:
        worker = await control_stub.connect(Hello(0, 100))
        worker.send(BrokersSeenMessage((B1, B2)))
        worker.send(BrokersSeenMessage((B2,)))
        await until(lambda: len(control_stub.seen) == 2)
        assert control_stub.seen == [(B1, B2), (B2,)]
        worker.send(BrokersSeenMessage((), wanted=(3,)))
        await until(lambda: control_stub.unidentified == [(3,)])


async def test_lost_brokers_are_reported_and_reachability_is_sent() -> None:
    async with control() as control_stub:
        early, other = await control_stub.connect(Hello(0, 100)), await control_stub.connect(Hello(1, 101))
        early.send(BrokersLostMessage((2, 1)))
        await until(lambda: control_stub.lost == [(2, 1)])
        for _ in range(2):
            control_stub.workers.publish_reachable({1: True, 2: False}, {})
        control_stub.workers.publish_reachable({1: True, 2: True}, {2: b"\x00\x01"})
        late = await control_stub.connect(Hello(2, 102))
        for each in (early, other):
            assert await received(each) == ReachableMessage({1: True, 2: False})
            assert await received(each) == ReachableMessage({1: True, 2: True}, {2: "0001"}), (
                "only a change is sent"
            )
        assert await received(late) == ReachableMessage({1: True, 2: True}, {2: "0001"})


async def test_invalid_message_closes_only_its_channel(caplog: pytest.LogCaptureFixture) -> None:
    async with control() as control_stub:
        sane = await control_stub.connect(Hello(1, 101))
        mad = await control_stub.connect(Hello(0, 100))
        mad.writer.write(b"{}\n")
        assert await received(mad) is None
        await until(lambda: control_stub.workers.connected == 1)
        sane.send(counters(produced=1))
        await until(lambda: control_stub.workers.views()[0].counters.requests == {0: 1})
    assert "invalid message" in caplog.text


async def test_only_control_hands_out_directories(caplog: pytest.LogCaptureFixture) -> None:
    async with control() as control_stub:
        worker = await control_stub.connect(Hello(0, 100))
        other = await control_stub.connect(Hello(1, 101))
        with caplog.at_level(logging.ERROR):
            worker.send(DirectoryMessage(Directory(revision=99)))
            worker.send(ReachableMessage({1: False}))
            await until(lambda: len(caplog.records) == 2)
        control_stub.workers.publish(Directory(revision=1))
        assert await received(other) == DirectoryMessage(Directory(revision=1))
    assert "which only control may send" in caplog.text


async def test_a_stop_ends_every_connection() -> None:
    async with control() as control_stub:
        greeted, silent = await control_stub.connect(Hello(0, 100)), await control_stub.connect()
        await until(lambda: len(control_stub.workers.channels) == 2)
        await control_stub.workers.stop()
        assert await received(greeted) is None
        assert await received(silent) is None
        with pytest.raises(ConnectionRefusedError):
            await control_stub.connect()
