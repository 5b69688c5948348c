"""The doctor asks a member for its metrics."""

from __future__ import annotations

import asyncio

from fleet.cli.doctor.certificate_expiry import reported_expiries
from fleet.tls.access import OPEN


async def test_member_without_metrics_is_reported() -> None:
    """The server accepts the connection and closes it."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        (expiry,) = await reported_expiries({"p1": f"http://127.0.0.1:{port}"}, 5.0, OPEN)
    assert (expiry.owner, expiry.expires) == ("p1 files", None)
    assert "cannot be reached" in expiry.reason
