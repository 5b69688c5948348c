"""A connection that changes its broker: nothing is lost, stuck or unlimited. Transports are fakes."""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.core.model import Broker, BrokerId
from fleet.proxy.brokers import Candidate, Upstreams
from fleet.proxy.budget import Backlogs, MemoryBudget
from fleet.proxy.connection import ClientConnection
from fleet.proxy.dialer import Dialer
from fleet.proxy.host import State
from fleet.proxy.routed_connection import MAX_IDLE_BROKERS, RoutedBrokerConnection, RoutedConnection
from fleet.proxy.router import Router
from fleet.proxy.routing_map import RoutingMap
from fleet.proxy.session import Session
from fleet.proxy.traffic import Traffic
from fleet.proxy.wire.counters import WireCounters
from fleet.proxy.wire.routes import TOPIC_NAME
from fleet.proxy.wire.routing_keys import RoutingKey
from tests.property.kafka_requests import fetch_in_rack, produce_to
from tests.property.wire_fleet import Limits, request

WRITE_BUFFER_BYTES = 100_000
FAR_S = 1e6
LIMIT_S = 10.0


class FakeTransport:
    """Keeps what is written, with the flow control of asyncio's transports.

    ``is_stuck``: whether the other side reads nothing, so that written bytes wait until `drain`.
    """

    def __init__(self, protocol: Any = None) -> None:
        self.protocol = protocol
        self.written = b""
        self.waiting_bytes = 0
        self.high_bytes = 64 * 1024
        self.is_stuck = self.is_paused = self.is_closed = self.has_eof = self.is_full = False
        self.ended = asyncio.Event()
        """Set by a goodbye, and by the end."""
        self.aborted = asyncio.Event()

    def write(self, data: bytes | memoryview) -> None:
        self.written += bytes(data)
        if self.is_stuck:
            self.waiting_bytes += len(data)
            self._check()

    def _check(self) -> None:
        if self.waiting_bytes > self.high_bytes and not self.is_full:
            self.is_full = True
            self.protocol.pause_writing()

    def drain(self, left_bytes: int = 0) -> None:
        """The other side reads, and leaves some bytes."""
        self.waiting_bytes = left_bytes
        if self.is_full and left_bytes <= self.high_bytes // 4:
            self.is_full = False
            self.protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None) -> None:
        self.high_bytes = 64 * 1024 if high is None else high
        self._check()

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("192.0.2.1", 5) if name == "peername" else default

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def write_eof(self) -> None:
        self.has_eof = True
        self.ended.set()

    def close(self) -> None:
        self.is_closed = True
        self.ended.set()

    def abort(self) -> None:
        self.close()
        self.aborted.set()


class Fleet:
    """A worker with one client, and brokers 1 to 9. Broker N leads the topic "tN"."""

    write_buffer_bytes = WRITE_BUFFER_BYTES
    linger_s = 1.0
    pipe = None

    def __init__(self) -> None:
        self.routing = RoutingMap()
        for broker_id in range(1, 10):
            self.leads(broker_id, b"t%d" % broker_id)
        self.sampling = SimpleNamespace(reads=0)
        self.responses: MemoryBudget[Any] = MemoryBudget(1 << 30, lambda *_: None)
        self.backlogs: Backlogs[Any] = Backlogs(1 << 30, self.responses, lambda *_: None)
        self.requests: MemoryBudget[Any] = MemoryBudget(1 << 30, lambda *_: None)
        self.leaving = SimpleNamespace(begin=lambda _: None, end=lambda _: None)
        self.turns = SimpleNamespace(add=lambda *_: None)
        self.refusals: list[str] = []
        self.look_ups: list[RoutedConnection] = []
        self.brokers: dict[BrokerId, tuple[RoutedBrokerConnection, FakeTransport]] = {}
        self.dials: list[BrokerId | None] = []
        self.dialing: Callable[[RoutedConnection], None] = self.connect
        self.redialing: Callable[[RoutedConnection], object] = self.dial
        router = Router(self, RoutingKey(), None)
        host: Any = self  # has what the tests need of a host
        self.client = RoutedConnection(
            host,
            Traffic(),
            "external",
            lambda source, made: Session(_no_source(), Limits(), WireCounters(), source, router=made),
            router,
        )
        self.transport = FakeTransport(self.client)
        self.client.connection_made(self.transport)

    def leads(self, broker_id: BrokerId, topic: bytes, asked_s: float = FAR_S) -> None:
        self.routing.learn_topic(
            ((TOPIC_NAME, topic),), (broker_id,), ((broker_id,),), time.monotonic() + asked_s
        )

    def connect(self, client: RoutedConnection) -> None:
        """Connect a broker in the next turn."""
        client.note_candidate(client.destination)
        side = client.broker_side()
        assert isinstance(side, RoutedBrokerConnection)
        transport = FakeTransport(side)
        self.brokers[client.destination or 1] = side, transport
        asyncio.get_running_loop().call_soon(side.connection_made, transport)

    async def send(self, *frames: bytes) -> None:
        assert not self.transport.is_paused
        self.client.data_received(b"".join(frames))
        await turns()

    async def answer(self, broker_id: BrokerId, correlation_id: int, size: int = 0) -> None:
        side, _ = self.brokers[broker_id]
        side.data_received(struct.pack(">ii", 4 + size, correlation_id) + bytes(size))
        await turns()

    def sent_to(self, broker_id: BrokerId) -> list[int]:
        """The correlation ids of the requests that a broker got."""
        written, found = self.brokers[broker_id][1].written, []
        while written:
            size, correlation_id = struct.unpack_from(">i4xi", written)
            found.append(correlation_id)
            written = written[4 + size :]
        return found

    # ---- Cluster

    def is_known(self, broker_id: BrokerId) -> bool:
        return 1 <= broker_id <= 9

    def is_up(self, broker_id: BrokerId) -> bool:
        return True

    def answer_api_versions(self, version: int, correlation_id: int) -> bytes | None:
        return struct.pack(">iihii", 14, correlation_id, 0, 0, 0)

    def now_s(self) -> float:
        return time.monotonic()

    # ---- Host

    def dial(self, client: RoutedConnection) -> None:
        self.dials.append(client.destination)
        self.dialing(client)

    def redial(self, client: RoutedConnection) -> None:
        self.redialing(client)

    def look_up(self, client: RoutedConnection) -> None:
        self.look_ups.append(client)

    def gather(self, client: RoutedConnection) -> None: ...

    def identify(self, client: RoutedConnection, broker_id: BrokerId) -> None:
        client.broker_id = broker_id

    def refused(self, _: RoutedConnection, error: Exception) -> None:
        self.refusals.append(str(error))

    def opened(self, _: RoutedConnection) -> None: ...

    closed = broker_closed = cut = client_returned = sampled = opened

    def overdrawn(self, *_: object) -> None: ...


def _no_source() -> Any:
    return SimpleNamespace(book=None)


async def turns(number: int = 8) -> None:
    """Some turns of the loop."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_requests_for_two_brokers_take_turns_and_keep_their_order() -> None:
    fleet = Fleet()
    await fleet.send(produce_to(b"t1", 1), produce_to(b"t2", 2), produce_to(b"t1", 3), produce_to(b"t1", 4))
    assert fleet.sent_to(1) == [1]
    assert 2 not in fleet.brokers, "the first response has not passed"
    await fleet.answer(1, 1)
    assert fleet.sent_to(2) == [2]
    assert fleet.transport.is_paused, "the third request waits, and nothing more is read"
    await fleet.answer(2, 2)
    assert fleet.sent_to(1) == [1, 3, 4]
    assert not fleet.transport.is_paused
    await fleet.answer(1, 3)
    await fleet.answer(1, 4)
    assert fleet.transport.written == b"".join(struct.pack(">ii", 4, each) for each in (1, 2, 3, 4))
    assert fleet.dials == [1, 2], "brokers stay connected"


async def test_only_some_idle_brokers_stay_connected() -> None:
    fleet = Fleet()
    for number in range(1, 8):
        await fleet.send(produce_to(b"t%d" % number, number))
        await fleet.answer(number, number)
    left = [number for number in range(1, 8) if fleet.brokers[number][1].has_eof]
    assert left == list(range(1, 7 - MAX_IDLE_BROKERS))
    fleet.client.connection_lost(None)
    assert all(transport.has_eof for _, transport in fleet.brokers.values())


async def test_idle_broker_may_close_and_is_dialled_again() -> None:
    fleet = Fleet()
    await fleet.send(produce_to(b"t1", 1))
    await fleet.answer(1, 1)
    await fleet.send(produce_to(b"t2", 2))
    await fleet.answer(2, 2)
    side, _ = fleet.brokers[1]
    side.eof_received()
    await turns()
    assert fleet.client.state is State.JOINED
    await fleet.send(produce_to(b"t1", 3))
    assert fleet.dials == [1, 2, 1]
    assert fleet.sent_to(1) == [3]


async def test_broker_that_was_paused_for_a_slow_client_is_read_again() -> None:
    """Found in review: the broker became idle while paused, and its next response was never read."""
    fleet = Fleet()
    fleet.transport.is_stuck = True
    await fleet.send(produce_to(b"t1", 1), produce_to(b"t2", 2), produce_to(b"t1", 3))
    await fleet.answer(1, 1, 2 * WRITE_BUFFER_BYTES)
    assert fleet.brokers[2][1].is_paused, "the client is still behind"
    fleet.transport.drain()
    assert not fleet.brokers[2][1].is_paused
    await fleet.answer(2, 2)
    assert fleet.sent_to(1) == [1, 3]
    assert not fleet.brokers[1][1].is_paused


def get_stuck(fleet: Fleet, *broker_ids: BrokerId) -> None:
    """These brokers read nothing."""

    def connect(client: RoutedConnection) -> None:
        fleet.connect(client)
        broker_id = client.destination or 1
        fleet.brokers[broker_id][1].is_stuck = broker_id in broker_ids

    fleet.dialing = connect


async def send_until_paused(fleet: Fleet, topic: bytes, size: int, limit: int) -> int:
    """Send requests until nothing more is read, or a number of them. Returns: how many."""
    for number in range(limit):
        if fleet.transport.is_paused:
            return number
        await fleet.send(produce_to(topic, 100 + number, acks=0, size=size))
    return limit


@pytest.mark.parametrize("left_bytes", [0, 900, 3000])
async def test_full_buffer_of_a_broker_counts_after_a_switch(left_bytes: int) -> None:
    """Found in review: 40 MB waited for a broker that did not read, because its transport reports once."""
    fleet = Fleet()
    get_stuck(fleet, 1)
    await fleet.send(produce_to(b"t1", 1, acks=0, size=3000))
    await fleet.send(produce_to(b"t2", 2, acks=0))
    if left_bytes < 3000:
        fleet.brokers[1][1].drain(left_bytes)
    await send_until_paused(fleet, b"t1", 20_000, 100)
    assert fleet.transport.is_paused
    assert fleet.brokers[1][1].waiting_bytes < 2 * WRITE_BUFFER_BYTES
    fleet.brokers[1][1].drain()
    assert not fleet.transport.is_paused


async def test_broker_that_has_caught_up_while_idle_does_not_count_as_behind() -> None:
    """Found in review: the client was never read again, although nothing waited for the broker."""
    fleet = Fleet()
    get_stuck(fleet, 1)
    await fleet.send(produce_to(b"t1", 1, acks=0, size=WRITE_BUFFER_BYTES), produce_to(b"t2", 2, acks=0))
    if fleet.transport.is_paused:
        fleet.brokers[1][1].drain(20_000)
    transport = fleet.brokers[1][1]
    transport.drain(20_000)
    await fleet.send(produce_to(b"t2", 3, acks=0))
    await fleet.send(produce_to(b"t1", 4, acks=0))
    transport.is_stuck = False
    transport.drain()
    assert await send_until_paused(fleet, b"t1", 10, 300) == 300


async def test_round_robin_over_four_brokers_dials_each_once() -> None:
    fleet = Fleet()
    for number in range(12):
        broker_id = number % 4 + 1
        await fleet.send(produce_to(b"t%d" % broker_id, number))
        await fleet.answer(broker_id, number)
    assert fleet.dials == [1, 2, 3, 4]


async def test_records_for_another_broker_after_the_goodbye_are_never_parsed() -> None:
    """Found in review: bytes of a record became a request to the present broker."""
    fleet = Fleet()
    await fleet.send(produce_to(b"t1", 1))
    await fleet.answer(1, 1)
    fleet.client.leave()
    frame, inner = produce_to(b"t2", 2, acks=0, size=60_000), produce_to(b"t1", 66, acks=0)
    for piece in (frame[:50_000], inner, frame[50_000:]):
        fleet.client.data_received(piece)
    assert fleet.sent_to(1) == [1]
    assert fleet.refusals == []


async def test_client_that_ends_after_the_goodbye_is_closed() -> None:
    fleet = Fleet()
    await fleet.send(produce_to(b"t1", 1))
    await fleet.answer(1, 1)
    await fleet.send(produce_to(b"new", 2))
    fleet.client.drain(0.0)
    async with asyncio.timeout(LIMIT_S):
        await fleet.transport.ended.wait()
    assert (fleet.client.state, fleet.transport.has_eof) == (State.LEAVING, True)
    fleet.client.eof_received()
    assert fleet.transport.is_closed


async def test_client_that_has_ended_before_the_goodbye_is_closed_at_the_deadline() -> None:
    fleet = Fleet()
    await fleet.send(produce_to(b"new", 1, acks=0))
    assert fleet.client.eof_received()
    fleet.client.drain(0.0)
    async with asyncio.timeout(LIMIT_S):
        await fleet.transport.ended.wait()
    assert fleet.transport.is_closed


async def test_unread_reply_of_a_client_that_has_ended_is_cut_off() -> None:
    """Found in review: the timer of the drain replaced the timer of the end."""
    fleet = Fleet()
    fleet.linger_s = 0.01
    fleet.transport.is_stuck = True
    waiting: list[RoutedConnection] = []
    fleet.dialing = waiting.append
    await fleet.send(request(18, 0, 1))
    await fleet.send(produce_to(b"t1", 2, acks=0))
    fleet.client.drain(LIMIT_S)
    assert fleet.client.eof_received()
    fleet.connect(waiting[0])
    async with asyncio.timeout(LIMIT_S):
        await fleet.transport.aborted.wait()


async def test_many_fetches_with_a_rack_in_one_read_pass() -> None:
    """Found in review: each replaced frame presented the next one in the same call, up to Python's limit."""
    fleet = Fleet()
    await fleet.send(produce_to(b"t1", 0, acks=0))
    number = 2 * sys.getrecursionlimit()
    fleet.client.data_received(b"".join(fetch_in_rack(b"t1", b"rack", each) for each in range(1, number)))
    await turns(number)
    assert len(fleet.sent_to(1)) == number
    assert b"rack" not in fleet.brokers[1][1].written
    assert fleet.refusals == []


async def test_waiting_frame_is_looked_up_once_in_a_drain() -> None:
    """Found in review: a frame that a drain refuses was looked up again and again."""
    fleet = Fleet()
    await fleet.send(produce_to(b"t1", 1))
    await fleet.send(produce_to(b"new", 2))
    assert len(fleet.look_ups) == 1
    fleet.client.drain(LIMIT_S)
    for _ in range(5):
        fleet.client.looked_up(fleet.client.waits)
        await turns()
    assert len(fleet.look_ups) == 1
    await fleet.answer(1, 1)
    assert fleet.client.state is State.LEAVING
    assert fleet.sent_to(1) == [1]


@pytest.mark.parametrize("topic", [b"t2", b"new"])
async def test_produce_without_acks_that_waits_in_a_drain_is_sent(topic: bytes) -> None:
    """Its sender counts it as delivered."""
    fleet = Fleet()
    await fleet.send(produce_to(b"t1", 1))
    await fleet.send(produce_to(topic, 2, acks=0))
    fleet.client.drain(LIMIT_S)
    if topic == b"new":
        fleet.leads(2, topic)
        fleet.client.looked_up(fleet.client.waits)
    await fleet.answer(1, 1)
    await turns()
    assert fleet.sent_to(2) == [2]
    assert fleet.client.state is State.LEAVING


async def test_bytes_after_the_goodbye_are_not_kept() -> None:
    fleet = Fleet()
    await fleet.send(produce_to(b"t1", 1))
    await fleet.answer(1, 1)
    fleet.client.leave()
    for _ in range(20):
        fleet.client.data_received(bytes(100_000))
    assert len(fleet.client.unconsumed) <= 100_000


async def test_end_of_a_client_waits_for_its_last_frame() -> None:
    fleet = Fleet()
    await fleet.send(produce_to(b"new", 1, acks=0))
    assert fleet.client.eof_received()
    fleet.leads(3, b"new")
    fleet.client.looked_up(fleet.client.waits)
    await turns()
    assert fleet.sent_to(3) == [1]
    assert fleet.transport.is_closed


async def test_late_answer_is_not_taken_for_another_frame() -> None:
    fleet = Fleet()
    await fleet.send(produce_to(b"new", 1))
    first = fleet.client.waits
    fleet.leads(3, b"new")
    fleet.client.looked_up(first)
    await turns()
    await fleet.answer(3, 1)
    await fleet.send(produce_to(b"newer", 2))
    assert len(fleet.look_ups) == 2
    fleet.client.looked_up(first)
    await turns()
    assert fleet.client.waits == first + 1
    assert len(fleet.look_ups) == 2
    assert fleet.sent_to(3) == [1], "the second frame still waits"


async def test_greeting_reaches_each_broker_first_and_its_answers_nobody() -> None:
    fleet = Fleet()
    greeting = request(18, 0, 77)
    await fleet.send(greeting)
    assert fleet.transport.written == struct.pack(">iihii", 14, 77, 0, 0, 0)
    for broker_id, correlation_id in ((1, 1), (2, 2), (1, 3)):
        await fleet.send(produce_to(b"t%d" % broker_id, correlation_id))
        side, _ = fleet.brokers[broker_id]
        if correlation_id < 3:
            answer = struct.pack(">iihii", 14, 77, 0, 0, 0)
            side.data_received(answer[:3])
            side.data_received(answer[3:] + struct.pack(">ii", 4, correlation_id))
        else:
            side.data_received(struct.pack(">ii", 4, correlation_id))
        await turns()
    assert fleet.sent_to(1) == [77, 1, 3]
    assert fleet.sent_to(2) == [77, 2]
    assert fleet.transport.written[18:] == b"".join(struct.pack(">ii", 4, each) for each in (1, 2, 3))


async def test_flood_of_api_versions_is_answered_once() -> None:
    """Found in review: a read of them took 9 MB and 3.5 s of CPU."""
    fleet = Fleet()
    await fleet.send(*(request(18, 0, number) for number in range(5000)))
    assert len(fleet.transport.written) == 18
    assert fleet.dials == [None]


async def test_dial_in_the_turn_of_another_keeps_its_time_limit() -> None:
    """Found in review: the end of the first dial ended the time limit of the second one."""
    fleet, lost = Fleet(), asyncio.Queue[BrokerId]()
    upstreams = Upstreams(())
    upstreams.commit({each: Broker(each, "192.0.2.9", 9092) for each in (1, 2)})
    unused_tls: Any = None
    dialer = Dialer(upstreams, None, unused_tls, 0.1, lost.put_nowait, lambda _: None)

    async def connect(connection: ClientConnection, candidate: Candidate) -> None:
        assert isinstance(connection, RoutedConnection)
        if candidate.broker_id == 2:
            await asyncio.get_running_loop().create_future()
        fleet.connect(connection)
        await turns()

    dialer.connect = connect
    fleet.dialing = dialer.dial
    fleet.redialing = lambda client: asyncio.get_running_loop().call_soon(dialer.dial, client)
    await fleet.send(produce_to(b"t1", 1, acks=0), produce_to(b"t2", 2, acks=0))
    async with asyncio.timeout(LIMIT_S):
        assert await lost.get() == 2
    await turns()
    assert fleet.transport.is_closed
