"""A worker passes Fetch responses with many tagged fields, and other clients still get their turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.in_process.proxy.test_held_responses import await_work
from tests.integration.in_process.proxy.test_worker import (
    LIMIT_S,
    BrokerScript,
    broker_script,
    eventually,
    running,
)
from tests.property.wire_fleet import request
from tests.unit.proxy.test_tagged_fields import FETCH, VERSION, framed, of_header

MANY_FIELDS = of_header(100_000) + framed(b"\0behind", 2)


async def answer(script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter) -> None:
    """Both requests at once, or one of another client."""
    writer.write({1: MANY_FIELDS, 2: b""}.get(number, framed(b"\0other", number)))
    await writer.drain()


def ask(correlation_id: int) -> bytes:
    return request(
        FETCH if correlation_id == 1 else 16, VERSION if correlation_id == 1 else 3, correlation_id
    )


async def test_other_connections_progress_during_tagged_fields(tmp_path: Path) -> None:
    async with broker_script(answer) as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        other_reader, other = await running_worker.connect(1)
        writer.write(ask(1) + ask(2))
        await eventually(
            lambda: any(each.session.is_working for each in running_worker.connections()),
            "the response is being scanned",
        )
        answered = 0
        while any(each.session.is_working for each in running_worker.connections()):
            other.write(ask(3))
            async with asyncio.timeout(LIMIT_S):
                assert await other_reader.readexactly(14) == framed(b"\0other", 3)
            answered += 1
        assert answered > 3
        async with asyncio.timeout(LIMIT_S):
            assert await reader.readexactly(len(MANY_FIELDS)) == MANY_FIELDS
        assert running_worker.worker.responses.total_bytes == 0
        assert not any(each.session.is_holding for each in running_worker.connections())


async def test_unconsumed_tagged_fields_count_as_held(tmp_path: Path) -> None:
    async with broker_script(answer) as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        connection, writer = await await_work(running_worker, ask(1) + ask(2))
        assert connection.broker is not None
        assert connection.broker.unconsumed_bytes
        assert running_worker.worker.responses.total_bytes == connection.broker.unconsumed_bytes
        writer.transport.abort()
        await eventually(lambda: not running_worker.connections(), "the client is closed")
        assert running_worker.worker.responses.total_bytes == 0
