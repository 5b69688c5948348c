"""The limits of a worker in this process: their effect on clients above a limit, and on the others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from fleet.config.settings import Limits
from fleet.control.probes import HoldEnd, HoldTiming, Target, hold_connection, probe_member, resolve
from fleet.core.liveness import ProbeOutcome
from fleet.core.model import Endpoint
from fleet.proxy import limits as guard
from fleet.proxy import timeouts
from fleet.proxy.connection import _OVERDRAWN_TO_BROKER, ClientConnection
from fleet.proxy.host import Host, State
from fleet.proxy.limits import ConnectionLimiter
from fleet.proxy.session import Session
from fleet.proxy.traffic import Sampling, Traffic
from fleet.runtime.ipc import BOOTSTRAP
from fleet.runtime.outbound import Resolver
from tests.integration.in_process.proxy.test_worker import (
    DATA_BYTES,
    LIMIT_S,
    BrokerScript,
    Client,
    Running,
    broker_script,
    ends,
    eventually,
    fetch,
    listening,
    make_spec,
    never,
    produce,
    read_frame,
    response,
    running,
)

BROKER = 1


@contextlib.asynccontextmanager
async def serving(folder: Path, broker: BrokerScript, limits: Limits) -> AsyncIterator[Running]:
    async with running(folder, [broker.port], limits) as running_worker:
        running_worker.worker.apply(running_worker.directory([broker]))
        yield running_worker


class NoHost:
    """Never called here."""

    sampling = Sampling()


def unconnected() -> ClientConnection:
    """A connection without a transport, and so without a session."""

    def no_session(_: str) -> Session:
        raise AssertionError("no client connects")

    return ClientConnection(cast(Host, NoHost()), BROKER, Traffic(), "external", no_session)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable all sweeps except those of the test."""
    monkeypatch.setattr(timeouts, "SWEEP_S", 3_600.0)


async def require_served(client: Client, number: int) -> None:
    """Require that the client is served: a request gets its response."""
    reader, writer = client
    writer.write(fetch(number))
    async with asyncio.timeout(LIMIT_S):
        assert await read_frame(reader) == response(number, b"answer")[4:]


async def swept(running_worker: Running, seconds: int) -> None:
    """Advance the clock of sweeps by a number of seconds."""
    limiter: ConnectionLimiter = running_worker.worker.limiter
    for _ in range(seconds):
        limiter.sweep_clock_s += 1.0
        limiter.enforce(limiter.sweep_clock_s)
        await asyncio.sleep(0)


def endpoint(running_worker: Running) -> Endpoint:
    return Endpoint("127.0.0.1", running_worker.ports[BOOTSTRAP])


def log_lines(caplog: pytest.LogCaptureFixture, limit: str) -> list[str]:
    return [each for each in caplog.messages if f"({limit}; " in each]


# ---- sweeps


@pytest.mark.parametrize("new", [False, True])
async def test_sweep_failure_after_the_first_turn_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: bool
) -> None:
    """Found by reading: failures in later turns of the loop were not reported."""
    monkeypatch.setattr(timeouts, "SWEEP_S", 0.01)
    limits = Limits(
        first_request_timeout_s=0.1 if new else 3_600.0, request_timeout_s=3_600.0 if new else 0.1
    )
    spec = make_spec(tmp_path, {BOOTSTRAP: listening()}, [1], limits)
    connections = [unconnected() for _ in range(guard.SWEPT_CONNECTIONS_PER_TURN + 2)]
    connections[guard.SWEPT_CONNECTIONS_PER_TURN].state = State.JOINED  # so it has no session
    limiter = ConnectionLimiter(spec.settings, spec.member, lambda: connections)
    sweeping = limiter.start()
    if new:
        limiter.opened(connections[0])
    with pytest.raises(AttributeError, match="session"):
        await asyncio.wait_for(sweeping.failed, LIMIT_S)


# ---- connections


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_source"])
async def test_client_above_a_limit_is_closed_at_its_first_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: str
) -> None:
    async with broker_script() as one, serving(tmp_path, one, Limits(**{limit: 2})) as running_worker:
        clients = [await running_worker.connect(BROKER) for _ in range(2)]
        for number, client in enumerate(clients):
            await require_served(client, number)
        for number in range(20):
            reader, writer = await running_worker.connect(BROKER)
            writer.write(fetch(number))
            assert await ends(reader) == b""
            writer.close()
        assert running_worker.worker.snapshot().limited == {limit: 20}
        assert running_worker.worker.snapshot().errors == {}
        assert one.accepted == 2
        (line,) = log_lines(caplog, limit)
        assert "client 127.0.0.1:" in line
        assert "2 connections" in line
        for number, client in enumerate(clients):
            await require_served(client, 100 + number)
        clients[0][1].close()
        await eventually(lambda: len(running_worker.connections()) == 1, "a connection is closed")
        await require_served(await running_worker.connect(BROKER), 7)


async def test_silent_connection_above_a_limit_is_closed_soon(tmp_path: Path) -> None:
    async with broker_script() as one, serving(tmp_path, one, Limits(max_connections=1)) as running_worker:
        client = await running_worker.connect(BROKER)
        await require_served(client, 1)
        reader, _ = await running_worker.connect(BROKER)
        assert await ends(reader) == b""
        assert running_worker.worker.snapshot().limited == {"max_connections": 1}
        await require_served(client, 2)


async def test_members_get_answers_during_a_flood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a new probe, and over an open connection. At its beginning each could be a client's connection."""
    monkeypatch.setattr("fleet.runtime.sockets.SPARE_CONNECTIONS", 20)
    async with broker_script() as one, serving(tmp_path, one, Limits(max_connections=5)) as running_worker:
        inside = [await running_worker.connect(BROKER) for _ in range(5)]
        for number, client in enumerate(inside):
            await require_served(client, number)
        answers: list[None] = []
        pace = HoldTiming(LIMIT_S, 0.01, LIMIT_S)
        targets = await resolve([Target(endpoint(running_worker))], Resolver(), LIMIT_S)
        held = asyncio.create_task(
            hold_connection(targets[0], pace, lambda: None, lambda: answers.append(None))
        )
        await eventually(lambda: answers, "the connection is held")
        flood: list[Client] = []
        for _ in range(100):
            flood.append(await running_worker.connect())
            assert await probe_member(targets, LIMIT_S) is ProbeOutcome.ANSWERED
            assert (
                len(running_worker.connections()) <= 5 + 20 + 2 * 1 * 2 + 1
            )  # the last connection is being closed
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(ends(reader) for reader, _ in flood))
        assert running_worker.worker.snapshot().limited == {"max_connections": 100}
        before = len(answers)
        await eventually(lambda: len(answers) > before, "the connection is still open")
        for number, client in enumerate(inside):
            await require_served(client, 10 + number)
        assert not held.done()
        for each in running_worker.connections():
            each.transport.abort()
        assert await held is HoldEnd.CLOSED


# ---- time


async def test_client_without_a_request_is_closed(
    tmp_path: Path, by_hand: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        broker_script() as one,
        serving(tmp_path, one, Limits(first_request_timeout_s=10)) as running_worker,
    ):
        busy = await running_worker.connect(BROKER)
        await require_served(busy, 1)
        silent, halting = await running_worker.connect(BROKER), await running_worker.connect()
        await eventually(lambda: len(running_worker.connections()) == 3, "all are connected")
        for byte in fetch(1)[:9]:
            halting[1].write(bytes([byte]))
            await swept(running_worker, 1)
        await swept(running_worker, 1)
        assert running_worker.worker.snapshot().limited == {}
        await swept(running_worker, 1)
        assert await ends(silent[0]) == await ends(halting[0]) == b""
        assert running_worker.worker.snapshot().limited == {"first_request_timeout_s": 2}
        (line,) = log_lines(caplog, "first_request_timeout_s")
        assert "no request for 10 s" in line
        await require_served(busy, 2)


async def test_connection_that_members_hold_stays(tmp_path: Path, by_hand: None) -> None:
    async with (
        broker_script() as one,
        serving(tmp_path, one, Limits(first_request_timeout_s=10)) as running_worker,
    ):
        answers: list[None] = []
        pace = HoldTiming(LIMIT_S, 0.01, LIMIT_S)
        targets = await resolve([Target(endpoint(running_worker))], Resolver(), LIMIT_S)
        held = asyncio.create_task(
            hold_connection(targets[0], pace, lambda: None, lambda: answers.append(None))
        )
        for _ in range(10):
            before = len(answers)
            await eventually(lambda: len(answers) > before, "the connection is used")  # noqa: B023 (awaited here)
            await swept(running_worker, 5)
        assert running_worker.worker.snapshot().limited == {}
        assert not held.done()
        await swept(running_worker, 600)
        assert await held is HoldEnd.CLOSED  # silent for ten minutes


@pytest.mark.parametrize("sent", [6, 40, 200])
async def test_request_that_stops_in_its_midst_is_closed(
    tmp_path: Path, by_hand: None, caplog: pytest.LogCaptureFixture, sent: int
) -> None:
    """In the header, and in the body, which is forwarded as it arrives."""
    async with broker_script() as one, serving(tmp_path, one, Limits(request_timeout_s=60)) as running_worker:
        busy, slow = await running_worker.connect(BROKER), await running_worker.connect(BROKER)
        await require_served(busy, 1)
        await require_served(slow, 1)
        reader, writer = slow
        writer.write(produce(2, acks=1, records_bytes=1_000)[:sent])
        before = running_worker.worker.snapshot().bytes_to_broker[BROKER]
        await eventually(
            lambda: any(
                each.active_timeout()[0] == "request_timeout_s" for each in running_worker.connections()
            ),
            "",
        )
        await swept(running_worker, 60)
        assert running_worker.worker.snapshot().limited == {}
        await swept(running_worker, 1)
        assert await ends(reader) == b""
        assert running_worker.worker.snapshot().limited == {"request_timeout_s": 1}
        assert running_worker.worker.snapshot().bytes_to_broker[BROKER] in (before, before + sent)
        (line,) = log_lines(caplog, "request_timeout_s")
        assert "127.0.0.1:" in line
        await eventually(lambda: one.ended == 1, "its broker's connection is free")
        await require_served(busy, 2)


async def test_slow_request_with_progress_is_not_closed(tmp_path: Path, by_hand: None) -> None:
    async with broker_script() as one, serving(tmp_path, one, Limits(request_timeout_s=60)) as running_worker:
        client = await running_worker.connect(BROKER)
        await require_served(client, 1)
        (connection,) = running_worker.connections()
        sent = produce(2, acks=1, records_bytes=40)
        for number, byte in enumerate(sent):
            connection.has_client_sent = False
            client[1].write(bytes([byte]))
            await eventually(lambda: connection.has_client_sent, "the bytes have arrived")
            if number < len(sent) - 1:
                await swept(running_worker, 59)
        assert await read_frame(client[0]) == response(2, b"answer")[4:]
        assert running_worker.worker.snapshot().limited == {}


async def test_idle_client_is_closed_but_not_a_waiting_one(
    tmp_path: Path, by_hand: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        broker_script(never) as one,
        broker_script() as two,
        running(tmp_path, [one.port], Limits(idle_timeout_s=60)) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one, two]))
        waiting, idle = await running_worker.connect(1), await running_worker.connect(2)
        waiting[1].write(fetch(1))
        await eventually(lambda: one.requests, "its request is in flight")
        await require_served(idle, 1)
        await swept(running_worker, 61)
        assert await ends(idle[0]) == b""
        assert running_worker.worker.snapshot().limited == {"idle_timeout_s": 1}
        assert len(log_lines(caplog, "idle_timeout_s")) == 1
        await swept(running_worker, 300)  # five minutes
        one.released.set()
        assert await read_frame(waiting[0]) == response(1, b"answer")[4:]


async def test_time_does_not_run_while_the_broker_takes_no_more(tmp_path: Path, by_hand: None) -> None:
    size = 64 << 20
    async with broker_script() as one, serving(tmp_path, one, Limits(request_timeout_s=5)) as running_worker:
        one.reads.clear()
        reader, writer = await running_worker.connect(BROKER)
        writer.write(produce(5, acks=1, records_bytes=size))
        await eventually(lambda: [each for each in running_worker.connections() if each.broker], "joined")
        (connection,) = running_worker.connections()
        await eventually(lambda: not connection.transport.is_reading(), "the client's side is paused")
        await swept(running_worker, 100)
        one.reads.set()
        async with asyncio.timeout(LIMIT_S):
            assert await read_frame(reader) == response(5, b"answer")[4:]
        assert running_worker.worker.snapshot().limited == {}
        writer.close()


async def test_time_does_not_run_while_a_broker_is_dialed(
    tmp_path: Path, by_hand: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        broker_script() as one,
        serving(tmp_path, one, Limits(first_request_timeout_s=5)) as running_worker,
    ):
        released, connect = asyncio.Event(), running_worker.worker.dialer.connect

        async def held(*arguments: object) -> None:
            await released.wait()
            await connect(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(running_worker.worker.dialer, "connect", held)
        reader, writer = await running_worker.connect(BROKER)
        writer.write(fetch(1)[:30])
        await eventually(
            lambda: [each for each in running_worker.connections() if each.number],
            "the broker is being dialed",
        )
        await swept(running_worker, 100)
        released.set()
        writer.write(fetch(1)[30:])
        assert await read_frame(reader) == response(1, b"answer")[4:]
        writer.close()


async def test_sweeps_run_periodically(tmp_path: Path) -> None:
    async with (
        broker_script() as one,
        serving(tmp_path, one, Limits(first_request_timeout_s=0.5)) as running_worker,
    ):
        reader, _ = await running_worker.connect()
        assert await ends(reader) == b""
        assert running_worker.worker.snapshot().limited == {"first_request_timeout_s": 1}


async def test_sweeps_are_rare_without_new_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "SWEEP_S", 0.01)
    limits = Limits(first_request_timeout_s=0.2, request_timeout_s=3_600.0, idle_timeout_s=2.0)
    async with broker_script() as one, serving(tmp_path, one, limits) as running_worker:
        limiter: ConnectionLimiter = running_worker.worker.limiter
        old = await running_worker.connect(BROKER)
        assert limiter.frequent_sweeps is not None
        await require_served(old, 1)
        await eventually(lambda: limiter.frequent_sweeps is None, "no client is new")
        reader, _ = await running_worker.connect(BROKER)
        assert limiter.frequent_sweeps is not None
        assert await ends(reader) == b""
        await eventually(lambda: limiter.frequent_sweeps is None, "no client is new")
        assert await ends(old[0]) == b""
        assert running_worker.worker.snapshot().limited == {"first_request_timeout_s": 1, "idle_timeout_s": 1}


async def test_connection_above_a_limit_keeps_sweeps_frequent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "SWEEP_S", 3_600.0)
    async with broker_script() as one, serving(tmp_path, one, Limits(max_connections=1)) as running_worker:
        limiter: ConnectionLimiter = running_worker.worker.limiter
        first = await running_worker.connect(BROKER)
        await require_served(first, 1)
        _, writer = await running_worker.connect(BROKER)
        await eventually(lambda: limiter.admission.over_limit_count == 1, "the connection is above the limit")
        (above,) = (each for each in running_worker.connections() if not each.number)
        above.answered = 1  # like a member
        limiter.enforce(limiter.sweep_clock_s)
        assert limiter.frequent_sweeps is not None
        writer.close()
        await eventually(lambda: limiter.admission.over_limit_count == 0, "the connection is closed")
        limiter.enforce(limiter.sweep_clock_s)
        assert limiter.frequent_sweeps is None


async def test_answered_member_does_not_keep_sweeps_frequent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by review: members keep a connection to each other's workers open forever."""
    monkeypatch.setattr(timeouts, "SWEEP_S", 3_600.0)
    async with broker_script() as one, serving(tmp_path, one, Limits()) as running_worker:
        limiter: ConnectionLimiter = running_worker.worker.limiter
        _, writer = await running_worker.connect(BROKER)
        await eventually(running_worker.connections, "the bytes have arrived")
        limiter.enforce(limiter.sweep_clock_s)
        assert limiter.frequent_sweeps is not None
        running_worker.connections()[0].answered = 1
        limiter.enforce(limiter.sweep_clock_s)
        assert limiter.frequent_sweeps is None
        writer.close()


async def test_client_that_opens_during_a_sweep_counts_as_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by review: the sweep did not include the client, and ended the frequent sweeps."""
    monkeypatch.setattr(timeouts, "SWEEP_S", 3_600.0)
    monkeypatch.setattr(guard, "SWEPT_CONNECTIONS_PER_TURN", 1)
    async with broker_script() as one, serving(tmp_path, one, Limits()) as running_worker:
        limiter: ConnectionLimiter = running_worker.worker.limiter
        clients = [await running_worker.connect(BROKER) for _ in range(3)]
        for number, each in enumerate(clients):
            await require_served(each, number)
        limiter.enforce(limiter.sweep_clock_s)
        assert limiter.is_sweeping
        limiter.opened(unconnected())
        await eventually(lambda: not limiter.is_sweeping, "the sweep is over")
        assert limiter.frequent_sweeps is not None


async def test_new_client_found_by_a_rare_sweep_makes_sweeps_frequent(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, {BOOTSTRAP: listening()}, [BROKER])
    new = unconnected()
    limiter = ConnectionLimiter(spec.settings, spec.member, lambda: [new])
    limiter.enforce(0.0)
    assert limiter.frequent_sweeps is not None


async def test_stopped_sweeps_leave_no_kernel_timer_open(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, {BOOTSTRAP: listening()}, [BROKER])
    before = set(os.listdir("/proc/self/fd"))
    limiter = ConnectionLimiter(spec.settings, spec.member, list)
    limiter.start()
    limiter.opened(unconnected())
    assert len(set(os.listdir("/proc/self/fd")) - before) == 2
    limiter.stop()
    assert set(os.listdir("/proc/self/fd")) == before


async def test_clock_of_sweeps_stops_while_the_worker_is_frozen(tmp_path: Path) -> None:
    limits = Limits(first_request_timeout_s=10.0, request_timeout_s=60.0, idle_timeout_s=660.0)
    spec = make_spec(tmp_path, {BOOTSTRAP: listening()}, [BROKER], limits)
    limiter = ConnectionLimiter(spec.settings, spec.member, list)
    now_s = limiter.last_sweep_s
    for elapsed_s, every_s, expected_s in ((1.5, 2.0, 1.5), (90.0, 2.0, 3.7), (90.0, 12.0, 16.9)):
        now_s += elapsed_s
        limiter.advance_clock(now_s, every_s)
        assert limiter.sweep_clock_s == pytest.approx(expected_s)


# ---- quota


async def test_client_above_its_send_quota_is_slowed_without_loss(tmp_path: Path) -> None:
    rate, count = 1 << 20, 12
    async with (
        broker_script() as one,
        serving(tmp_path, one, Limits(to_broker_bytes_per_second=rate)) as running_worker,
    ):
        loop = asyncio.get_running_loop()
        greedy = [await running_worker.connect(BROKER) for _ in range(2)]
        began_s = loop.time()

        async def send(client: Client) -> None:
            for number in range(count):
                client[1].write(produce(number, acks=1, records_bytes=DATA_BYTES // 2))
                await client[1].drain()
                assert (await read_frame(client[0]))[:4] == struct.pack(">i", number)

        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(send(each) for each in greedy))
        sent = running_worker.worker.snapshot().bytes_to_broker[BROKER]
        assert sent > 2 * count * DATA_BYTES // 2
        # The credit of one second may be sent at once; the debt of the last read is paid afterwards.
        assert loop.time() - began_s >= (sent - rate - DATA_BYTES) / rate - 0.1
        assert running_worker.worker.snapshot().limited == {}


async def test_client_above_its_receive_quota_is_paused(tmp_path: Path) -> None:
    rate, count, size = 1 << 20, 6, 1 << 19

    async def slowly(
        script: BrokerScript, key: int, correlation_id: int, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(response(correlation_id, bytes(size)))
        await writer.drain()

    async with (
        broker_script(slowly) as one,
        serving(tmp_path, one, Limits(to_client_bytes_per_second=rate)) as running_worker,
    ):
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        async def receive(client: Client) -> None:
            for number in range(count):
                client[1].write(fetch(number))
                assert await read_frame(client[0]) == response(number, bytes(size))[4:]

        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*[receive(await running_worker.connect(BROKER)) for _ in range(2)])
        # The credit of one second may arrive at once, and no request waits after the last two responses.
        assert loop.time() - began_s >= (2 * (count - 1) * size - rate) / rate - 0.1


async def test_response_above_the_quota_delays_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate, max_debt_s = 1 << 16, 0.5
    monkeypatch.setattr(guard, "MAX_DEBT_S", max_debt_s)

    async def slowly(
        script: BrokerScript, key: int, correlation_id: int, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(response(correlation_id, bytes(100 * rate)))
        await writer.drain()

    async with (
        broker_script(slowly) as one,
        serving(tmp_path, one, Limits(to_client_bytes_per_second=rate)) as running_worker,
    ):
        loop = asyncio.get_running_loop()
        reader, writer = await running_worker.connect(BROKER)
        async with asyncio.timeout(LIMIT_S):
            began_s = loop.time()
            writer.write(fetch(1))
            assert await read_frame(reader) == response(1, bytes(100 * rate))[4:]
            writer.write(fetch(2))
            await read_frame(reader)
        assert loop.time() - began_s >= max_debt_s


async def test_quota_of_one_address_does_not_affect_another(tmp_path: Path) -> None:
    async with (
        broker_script() as one,
        serving(tmp_path, one, Limits(to_broker_bytes_per_second=4096)) as running_worker,
    ):
        _, writer = await running_worker.connect(BROKER)
        writer.write(produce(1, acks=0, records_bytes=50 * 4096))
        await eventually(
            lambda: [each for each in running_worker.connections() if each.pause_reasons],
            "reading has paused",
        )
        other = await asyncio.open_connection(
            "127.0.0.1", running_worker.ports[BROKER], local_addr=("127.9.9.9", 0)
        )
        for number in range(5):
            await require_served(other, number)
        (slow,) = (each for each in running_worker.connections() if each.source == "127.0.0.1")
        assert slow.active_timeout() == (None, 0)
        # A second connection shares the debt.
        _, more = await running_worker.connect(BROKER)
        more.write(produce(2, acks=0))

        def unread() -> list[str]:
            return [
                each.source
                for each in running_worker.connections()
                if each.pause_reasons & _OVERDRAWN_TO_BROKER
            ]

        await eventually(lambda: unread() == 2 * ["127.0.0.1"], "reading has paused, too")
        for each in (writer, more, other[1]):
            each.close()


async def test_quota_of_an_idle_address_is_forgotten(tmp_path: Path, by_hand: None) -> None:
    async with (
        broker_script() as one,
        serving(tmp_path, one, Limits(to_broker_bytes_per_second=1 << 30)) as running_worker,
    ):
        client = await running_worker.connect(BROKER)
        await require_served(client, 1)
        await swept(running_worker, 1)
        assert len(running_worker.worker.limiter.to_broker_quotas) == 1
        client[1].close()
        await eventually(lambda: not running_worker.connections(), "the connection is closed")
        async with asyncio.timeout(LIMIT_S):
            while running_worker.worker.limiter.to_broker_quotas:
                await swept(running_worker, 1)
