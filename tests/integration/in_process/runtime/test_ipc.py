"""A channel between control process and worker over a Unix socket."""

import asyncio
from pathlib import Path

import pytest

from fleet.core.model import Broker, Directory
from fleet.runtime import ipc
from fleet.runtime.ipc import DirectoryMessage, Hello
from tests.unit.runtime.test_ipc import DIRECTORY


async def _pair(path: Path) -> tuple[asyncio.Server, ipc.Channel, ipc.Channel]:
    accepted: asyncio.Future[ipc.Channel] = asyncio.get_running_loop().create_future()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(ipc.Channel(reader, writer))

    server = await asyncio.start_unix_server(accept, path, limit=ipc.LINE_LIMIT_BYTES)
    worker = await ipc.connect(path)
    return server, await accepted, worker


async def test_channel_carries_ten_thousand_identities_and_its_end(
    tmp_path: Path,
) -> None:
    server, control, worker = await _pair(tmp_path / "s")
    async with server:
        owners = {identity: ("p1", "p2") for identity in range(10_000)}
        brokers = {identity: Broker(identity, f"kafka-{identity}", 9092) for identity in owners}
        large = DirectoryMessage(Directory(advertised=owners, committed=owners, brokers=brokers))
        assert control.send(large)
        assert control.send(DirectoryMessage(DIRECTORY))
        assert await worker.receive() == large
        assert await worker.receive() == DirectoryMessage(DIRECTORY)
        assert worker.send(Hello(0, 1))
        assert await control.receive() == Hello(0, 1)
        worker.close()
        assert await control.receive() is None
        assert not worker.send(Hello(0, 1))
        control.close()


async def test_channel_gives_up_on_a_peer_that_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, control, worker = await _pair(tmp_path / "s")
    async with server:
        monkeypatch.setattr(ipc, "BACKLOG_LIMIT_BYTES", 10_000)
        sent = 0
        while control.send(DirectoryMessage(DIRECTORY)):
            sent += 1
            assert sent < 10_000
        assert sent > 1
        worker.close()
