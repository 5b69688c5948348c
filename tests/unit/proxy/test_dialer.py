"""The dialer alone, without a worker."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

import pytest

from fleet.core.model import Broker, Endpoint
from fleet.proxy.brokers import Candidate, Upstreams
from fleet.proxy.connection import ClientConnection
from fleet.proxy.dialer import MAX_WAITING_BYTES, Dialer
from fleet.proxy.host import Host, State
from fleet.proxy.tls_transport import SharedTls
from fleet.proxy.traffic import Sampling, Traffic
from tests.integration.in_process.proxy.test_worker import LIMIT_S, MIB, eventually
from tests.property.wire_fleet import Play, request

BROKER, METADATA = 1, 3
HEAD_BYTES = len(request(METADATA, 12, 1))


class PaperTransport:
    """A client's transport: takes no bytes, and closes on request."""

    def __init__(self) -> None:
        self._is_closing = False

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        raise AssertionError("no client gets an answer")

    def pause_reading(self) -> None:
        pass

    def close(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing


def is_closed(connection: ClientConnection) -> bool:
    """Whether the client was closed because no broker was reached."""
    return connection.end == "unreachable"


class Dialling:
    """A dialer whose brokers answer on request of the test."""

    def __init__(self, timeout_s: float = LIMIT_S) -> None:
        self.upstreams = Upstreams((Endpoint("127.0.0.1", 1),))
        self.upstreams.commit({BROKER: Broker(BROKER, "127.0.0.1", 1)})
        self.lost: list[int] = []
        self.unknown: list[int] = []
        self.started = 0
        self.answers = asyncio.Event()
        self.dialer = Dialer(
            self.upstreams, None, SharedTls(LIMIT_S), timeout_s, self.lost.append, self.unknown.append
        )
        self.dialer.connect = self.connect
        self.sampling = Sampling()

    def opened(self, connection: ClientConnection) -> None:
        """Host: does nothing."""

    async def connect(self, connection: ClientConnection, candidate: Candidate) -> None:
        self.started += 1
        await self.answers.wait()

    def dial(self, connection: ClientConnection) -> None:
        """Host: a client has bytes for its broker."""
        self.dialer.dial(connection)

    def client(self, broker_id: int | None = BROKER, size_bytes: int = 100) -> ClientConnection:
        """Return a client connection with a request of ``size_bytes``, for which the dialer dials."""
        connection = ClientConnection(
            cast(Host, self), broker_id, Traffic(), "external", lambda _: Play.new().session
        )
        connection.connection_made(cast(asyncio.Transport, PaperTransport()))
        head = request(METADATA, 12, 1, bytes(size_bytes - HEAD_BYTES))
        assert len(head) == size_bytes
        connection.data_received(head)
        assert connection.state is State.DIALING
        return connection

    @property
    def open(self) -> int:
        return len(self.dialer.tasks) + len(self.dialer.attempts) + len(self.dialer.timed_out)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("began", [False, True])
async def test_ended_client_is_not_dialed_for(began: bool) -> None:
    """A task that is cancelled before its first step runs nothing, not even its clean-up."""
    at = Dialling()
    connection = at.client()
    if began:
        await settled()
    at.dialer.give_up(connection)
    await settled()
    assert (at.started, at.open, at.lost, is_closed(connection)) == (int(began), 0, [], False)
    at.dialer.give_up(connection)  # a second call does no harm


async def test_ended_client_frees_the_attempt_at_a_down_broker() -> None:
    at = Dialling(timeout_s=0.01)
    first = at.client()
    await eventually(lambda: is_closed(first) and not at.open, "the client is closed")
    assert (at.lost, at.open) == ([BROKER], 0)
    upstreams = at.upstreams
    candidate = upstreams.broker(BROKER)
    assert candidate is not None
    clock = asyncio.get_running_loop().time
    await eventually(lambda: upstreams.admits(candidate, clock()), "the broker is tried again")
    upstreams.given_up(candidate)
    at.dialer.timeout_s = LIMIT_S
    connection = at.client()
    await settled()
    assert at.started == 2
    at.dialer.give_up(connection)
    await settled()
    assert upstreams.admits(candidate, clock())


async def test_each_dial_has_its_own_time_limit() -> None:
    timeout_s, clock = 0.2, asyncio.get_running_loop().time
    at = Dialling(timeout_s)
    began_s: dict[ClientConnection, float] = {}
    ended_s: dict[ClientConnection, float] = {}

    def all_have_ended() -> bool:
        ended_s.update((each, clock()) for each in began_s if each not in ended_s and is_closed(each))
        return len(ended_s) == 3

    def has_come(at_s: float) -> bool:
        return all_have_ended() or clock() >= at_s

    next_s = clock()
    for _ in range(3):
        began_s[at.client()] = clock()
        next_s += timeout_s / 4
        await eventually(partial(has_come, next_s), "a while later")
    await eventually(all_have_ended, "all have ended")
    # The loop counts milliseconds.
    assert all(ended_s[each] - began_s[each] >= timeout_s - 0.01 for each in began_s)
    assert at.started == 3
    await eventually(lambda: at.open == 0, "nothing is left")


async def test_client_tries_the_next_broker_after_a_timeout() -> None:
    """A task that is cancelled by the time limit continues, because the client has not ended."""
    at = Dialling(timeout_s=0.05)
    at.upstreams.commit({each: Broker(each, "127.0.0.1", each) for each in (1, 2)})
    dialed: list[Candidate] = []

    async def connect(connection: ClientConnection, candidate: Candidate) -> None:
        dialed.append(candidate)
        if len(dialed) == 1:
            await at.answers.wait()

    at.dialer.connect = connect
    connection = at.client(broker_id=None)
    await eventually(lambda: at.open == 0, "the dial has ended")
    assert len({each.endpoint for each in dialed}) == 2
    assert at.lost == [dialed[0].broker_id]
    assert not is_closed(connection)


async def test_client_joined_in_the_turn_of_its_timeout_stays() -> None:
    """Found by reading: a broker that accepted the connection counted as lost, and the client was closed."""
    at = Dialling(timeout_s=0.05)

    async def joined_and_late(connection: ClientConnection, candidate: Candidate) -> None:
        connection.state = State.JOINED
        await at.answers.wait()

    at.dialer.connect = joined_and_late
    client = at.client()
    await eventually(lambda: at.open == 0, "the dial has ended")
    assert (at.lost, is_closed(client)) == ([], False)
    assert at.upstreams.up == {BROKER: True}


async def test_unexpected_error_does_not_block_a_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    at = Dialling()
    candidate = at.upstreams.broker(BROKER)
    assert candidate is not None
    at.upstreams.failed(candidate, -100.0)

    async def broken(connection: ClientConnection, candidate: Candidate) -> None:
        raise RuntimeError("nobody expects this")

    at.dialer.connect = broken
    client = at.client()
    await eventually(lambda: is_closed(client), "the client is closed")
    assert "nobody expects this" in caplog.text
    assert at.upstreams.admits(candidate, asyncio.get_running_loop().time())


async def test_all_dials_end_with_the_worker() -> None:
    at = Dialling()
    clients = [at.client() for _ in range(3)]
    await settled()
    at.dialer.stop()
    await settled()
    assert (at.started, at.open, any(map(is_closed, clients))) == (3, 0, False)


# ---- brokers without a known address


UNCONFIRMED = 2


async def test_client_waits_until_its_broker_is_confirmed() -> None:
    at = Dialling()
    connection = at.client(UNCONFIRMED)
    await settled()
    assert (at.started, at.unknown, is_closed(connection)) == (0, [UNCONFIRMED], False)
    at.upstreams.commit({BROKER: Broker(BROKER, "127.0.0.1", 1)})
    at.dialer.retry_unknown()
    await settled()
    assert at.started == 0, "another broker"
    at.upstreams.commit({UNCONFIRMED: Broker(UNCONFIRMED, "127.0.0.1", 2)})
    at.dialer.retry_unknown()
    await settled()
    assert at.started == 1
    at.dialer.stop()


async def test_client_of_an_unconfirmed_broker_is_closed_in_time() -> None:
    at = Dialling(timeout_s=0.05)
    connection = at.client(UNCONFIRMED)
    await eventually(lambda: is_closed(connection) and not at.open, "the client is closed")
    assert (at.started, at.open, at.dialer.waiting_bytes) == (0, 0, 0)


async def test_client_that_ends_while_waiting_leaves_no_state() -> None:
    at = Dialling()
    connection = at.client(UNCONFIRMED)
    await settled()
    at.dialer.give_up(connection)
    await settled()
    assert (at.open, at.dialer.waiting_bytes, is_closed(connection)) == (0, 0, False)


async def test_clients_waiting_for_brokers_hold_limited_bytes() -> None:
    at = Dialling()
    most = MAX_WAITING_BYTES // MIB
    clients = [at.client(UNCONFIRMED, MIB) for _ in range(most + 1)]
    await settled()
    assert [is_closed(each) for each in clients] == [False] * most + [True]
    at.dialer.stop()
    await settled()
    assert at.dialer.waiting_bytes == 0
