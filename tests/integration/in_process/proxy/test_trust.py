"""A worker neither dials nor lists an address that it has seen in a passing response."""

from __future__ import annotations

import struct
from pathlib import Path

from fleet.core.model import Broker
from tests.integration.in_process.proxy.test_worker import (
    METADATA,
    ControlScript,
    broker_script,
    eventually,
    fetch,
    metadata,
    read_frame,
    request,
    response,
)
from tests.integration.in_process.proxy.test_worker import running as running_worker


async def test_seen_address_is_not_dialed_for_its_identity(tmp_path: Path) -> None:
    async with (
        broker_script() as one,
        broker_script() as evil,
        running_worker(tmp_path, [one.port], upstream_connect_timeout_s=0.3) as served,
    ):
        served.worker.apply(served.directory([one]))
        one.known = [Broker(1, "127.0.0.1", one.port), Broker(2, "127.0.0.1", evil.port)]
        reader, writer = await served.connect(1)
        writer.write(request(METADATA, 1, 1, struct.pack(">i", -1)))
        await read_frame(reader)
        other_reader, other_writer = await served.connect(2)
        other_writer.write(fetch(2))
        assert await other_reader.read() == b""
        assert evil.accepted == 0
        writer.close()
        other_writer.close()


async def test_seen_address_does_not_replace_a_known_address(tmp_path: Path) -> None:
    async with (
        broker_script() as one,
        broker_script() as evil,
        running_worker(tmp_path, [one.port]) as served,
    ):
        served.worker.apply(served.directory([one]))
        one.known = [Broker(1, "127.0.0.1", evil.port)]
        for number in range(2):
            reader, writer = await served.connect(1)
            writer.write(request(METADATA, 1, number, struct.pack(">i", -1)))
            assert (
                await read_frame(reader)
                == response(number, metadata([Broker(1, "proxy1.example", 9101)]))[4:]
            )
            writer.close()
        candidates = served.worker.upstreams.candidates(0.0)
        assert [each.endpoint.port for each in candidates] == [one.port]
        assert evil.accepted == 0


async def test_waiting_client_makes_control_look_for_its_broker(tmp_path: Path) -> None:
    control = ControlScript(tmp_path / "control.sock")
    await control.start()
    async with broker_script() as one, running_worker(tmp_path, [one.port]) as served:
        await eventually(lambda: control.channels, "hello")
        _, writer = await served.connect(2)
        writer.write(fetch(1))
        await eventually(lambda: control.unknown() == {2}, "control gets the request")
        writer.close()
        control.die()
