"""The dialler alone, where a worker around it would only be in the way."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from fleet.model import Broker, Endpoint
from fleet.proxy.connection import ClientConnection, Host, State
from fleet.proxy.dialler import MOST_WAITING_BYTES, Dialler
from fleet.proxy.session import Session
from fleet.proxy.tls_transport import TlsRoom
from fleet.proxy.traffic import Sampling, Traffic
from fleet.proxy.upstream import Candidate, Upstreams
from tests.unit.test_worker import LIMIT_S, eventually

BROKER = 1


class NoHost:
    """Nothing is asked of it here."""

    sampling = Sampling()


def no_session(_: str) -> Session:
    raise AssertionError("nobody connects")


class Dialling:
    """A dialler whose brokers answer when they are told to."""

    def __init__(self, timeout_s: float = LIMIT_S) -> None:
        self.upstreams = Upstreams((Endpoint("127.0.0.1", 1),))
        self.upstreams.commit({BROKER: Broker(BROKER, "127.0.0.1", 1)})
        self.lost: list[int] = []
        self.wanted: list[int] = []
        self.begun = 0
        self.answers = asyncio.Event()
        self.dialler = Dialler(
            self.upstreams, None, TlsRoom(LIMIT_S), timeout_s, self.lost.append, self.wanted.append
        )
        self.dialler.connect = self.connect

    async def connect(self, connection: ClientConnection, candidate: Candidate) -> None:
        self.begun += 1
        await self.answers.wait()

    def dial(
        self, monkeypatch: pytest.MonkeyPatch, broker_id: int | None = BROKER
    ) -> tuple[ClientConnection, asyncio.Event]:
        """A client's connection that is dialled for, and what is set when no broker is reached."""
        connection = ClientConnection(cast(Host, NoHost()), broker_id, Traffic(), "external", no_session)
        told = asyncio.Event()
        monkeypatch.setattr(ClientConnection, "broker_unreachable", lambda _: told.set())
        self.dialler.dial(connection)
        return connection, told

    @property
    def open(self) -> int:
        return len(self.dialler._tasks) + len(self.dialler._attempts) + len(self.dialler._late)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("began", [False, True])
async def test_who_has_ended_is_not_dialled_for(monkeypatch: pytest.MonkeyPatch, began: bool) -> None:
    """A task that is cancelled before its first step runs nothing, not even what tidies up."""
    at = Dialling()
    connection, told = at.dial(monkeypatch)
    if began:
        await settled()
    at.dialler.give_up(connection)
    await settled()
    assert (at.begun, at.open, at.lost, told.is_set()) == (int(began), 0, [], False)
    at.dialler.give_up(connection)  # again does no harm


@pytest.mark.interpreted
async def test_who_has_ended_frees_a_broker_that_is_tried_by_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Dialling(timeout_s=0.01)
    _, told = at.dial(monkeypatch)
    await eventually(told.is_set, "it is told")
    assert (at.lost, at.open) == ([BROKER], 0)
    upstreams = at.dialler._upstreams
    candidate = upstreams.broker(BROKER)
    assert candidate is not None
    clock = asyncio.get_running_loop().time
    await eventually(lambda: upstreams.admits(candidate, clock()), "it is tried again")
    upstreams.given_up(candidate)
    at.dialler._timeout_s = LIMIT_S
    connection, _ = at.dial(monkeypatch)
    await settled()
    assert at.begun == 2
    at.dialler.give_up(connection)
    await settled()
    assert upstreams.admits(candidate, clock())


@pytest.mark.interpreted
async def test_each_dial_has_its_own_time_though_one_timer_serves_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeout_s, clock = 0.2, asyncio.get_running_loop().time
    at = Dialling(timeout_s)
    began_s: list[float] = []
    ended_s: list[float] = []
    for _ in range(3):
        at.dial(monkeypatch)
        began_s.append(clock())
        monkeypatch.setattr(ClientConnection, "broker_unreachable", lambda _: ended_s.append(clock()))
        await eventually(lambda: clock() >= began_s[-1] + timeout_s / 4, "a while later")
    await eventually(lambda: len(ended_s) == len(began_s), "all have ended")
    # The loop counts milliseconds.
    assert all(end - begin >= timeout_s - 0.01 for begin, end in zip(began_s, ended_s, strict=True))
    assert at.begun == 3
    assert at.open == 0


async def test_who_is_late_is_taken_to_the_next_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that was cancelled for being late goes on: it is not the client that has ended."""
    at = Dialling(timeout_s=0.05)
    at.upstreams.commit({each: Broker(each, "127.0.0.1", each) for each in (1, 2)})
    dialled: list[Candidate] = []

    async def connect(connection: ClientConnection, candidate: Candidate) -> None:
        dialled.append(candidate)
        if len(dialled) == 1:
            await at.answers.wait()

    at.dialler.connect = connect
    _, told = at.dial(monkeypatch, broker_id=None)
    await eventually(lambda: at.open == 0, "it has ended")
    assert len({each.endpoint for each in dialled}) == 2
    assert at.lost == [dialled[0].broker_id]
    assert not told.is_set()


async def test_who_was_joined_in_the_turn_in_which_it_was_late_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by reading: a broker that had taken the connection was counted as lost, and the client closed."""
    at = Dialling(timeout_s=0.05)

    async def joined_and_late(connection: ClientConnection, candidate: Candidate) -> None:
        connection.state = State.JOINED
        await at.answers.wait()

    at.dialler.connect = joined_and_late
    _, told = at.dial(monkeypatch)
    await eventually(lambda: at.open == 0, "it has ended")
    assert (at.lost, told.is_set()) == ([], False)
    assert at.upstreams.up == {BROKER: True}


@pytest.mark.interpreted
async def test_an_error_that_nobody_expects_keeps_no_broker_from_being_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    at = Dialling()
    candidate = at.upstreams.broker(BROKER)
    assert candidate is not None
    at.upstreams.failed(candidate, -100.0)

    async def broken(connection: ClientConnection, candidate: Candidate) -> None:
        raise RuntimeError("nobody expects this")

    at.dialler.connect = broken
    _, told = at.dial(monkeypatch)
    await eventually(told.is_set, "the client is told")
    assert "nobody expects this" in caplog.text
    assert at.upstreams.admits(candidate, asyncio.get_running_loop().time())


async def test_all_are_given_up_where_the_worker_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Dialling()
    for _ in range(3):
        _, told = at.dial(monkeypatch)
    await settled()
    at.dialler.stop()
    await settled()
    assert (at.begun, at.open, told.is_set()) == (3, 0, False)


# ---- brokers that nobody knows yet


class Waiting(ClientConnection):
    """A client's connection with `size_bytes` for its broker."""

    size_bytes = 100

    def wait_for_broker(self) -> int:
        return self.size_bytes


def waits(at: Dialling, broker_id: int = 2) -> Waiting:
    connection = Waiting(cast(Host, NoHost()), broker_id, Traffic(), "external", no_session)
    at.dialler.dial(connection)
    return connection


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[ClientConnection]:
    """Connections that were closed because no broker was reached."""
    found: list[ClientConnection] = []
    monkeypatch.setattr(ClientConnection, "broker_unreachable", lambda connection: found.append(connection))
    return found


@pytest.mark.interpreted
async def test_client_of_an_unconfirmed_broker_waits_until_it_is_confirmed(
    ended: list[ClientConnection],
) -> None:
    at = Dialling()
    waits(at)
    await settled()
    assert (at.begun, at.wanted, ended) == (0, [2], [])
    at.upstreams.commit({BROKER: Broker(BROKER, "127.0.0.1", 1)})
    at.dialler.look_again()
    await settled()
    assert at.begun == 0, "another broker"
    at.upstreams.commit({2: Broker(2, "127.0.0.1", 2)})
    at.dialler.look_again()
    await settled()
    assert at.begun == 1
    at.dialler.stop()


@pytest.mark.interpreted
async def test_client_of_a_broker_that_is_never_confirmed_is_closed_in_time(
    ended: list[ClientConnection],
) -> None:
    at = Dialling(timeout_s=0.05)
    connection = waits(at)
    await eventually(lambda: ended == [connection], "it is closed")
    assert (at.begun, at.open, at.dialler._waiting_bytes) == (0, 0, 0)


@pytest.mark.interpreted
async def test_client_that_ends_while_it_waits_for_a_broker_leaves_nothing(
    ended: list[ClientConnection],
) -> None:
    at = Dialling()
    connection = waits(at)
    await settled()
    at.dialler.give_up(connection)
    await settled()
    assert (at.open, at.dialler._waiting_bytes, ended) == (0, 0, [])


@pytest.mark.interpreted
async def test_clients_that_wait_for_brokers_hold_a_limited_number_of_bytes(
    ended: list[ClientConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Waiting, "size_bytes", MOST_WAITING_BYTES // 2)
    at = Dialling()
    connections = [waits(at) for _ in range(3)]
    await settled()
    assert ended == connections[2:]
    at.dialler.stop()
    await settled()
    assert at.dialler._waiting_bytes == 0
