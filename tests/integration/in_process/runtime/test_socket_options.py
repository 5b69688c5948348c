"""Options that an accepted socket inherits from the listening socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from itertools import pairwise

import pytest

from fleet.runtime.socket_options import ACCEPT_BATCH, accept_connections, keep_alive

ASKING = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)


@pytest.mark.parametrize(
    ("vanished_timeout_s", "asking"),
    [(150.0, (60, 10, 9)), (3600.0, (1440, 240, 9)), (8.0, (3, 1, 5)), (0.1, (1, 1, 1))],
)
def test_accepted_connection_inherits_keepalive(
    vanished_timeout_s: float, asking: tuple[int, int, int]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        keep_alive(listening.fileno(), vanished_timeout_s)
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert tuple(accepted.getsockopt(socket.IPPROTO_TCP, each) for each in ASKING) == asking


async def test_accepting_leaves_turns_to_other_work() -> None:
    """Waiting connections are accepted in batches."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=256))
        listener.setblocking(False)
        turns: list[int] = []
        accepted = 0

        def on_accepted(sock: socket.socket, _address: object) -> None:
            nonlocal accepted
            assert not sock.getblocking()
            stack.enter_context(sock)
            accepted += 1

        clients = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(100)]
        failures: list[OSError] = []
        accepting = asyncio.create_task(accept_connections(listener, on_accepted, failures.append))
        async with asyncio.timeout(60.0):
            while accepted < len(clients):
                turns.append(accepted)
                await asyncio.sleep(0)
        turns.append(accepted)
        accepting.cancel()
        await asyncio.wait([accepting])
        assert max(after - before for before, after in pairwise(turns)) <= ACCEPT_BATCH
        assert failures == []
