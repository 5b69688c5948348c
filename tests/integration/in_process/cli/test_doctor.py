"""The doctor asks a member for its metrics."""

from __future__ import annotations

import asyncio

from fleet.cli.doctor.certificate_expiry import told
from fleet.tls.access import OPEN


async def test_a_member_whose_metrics_cannot_be_had_is_told_of() -> None:
    """Whoever listens there has answered, and says no more."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        (shown,) = await told({"p1": f"http://127.0.0.1:{port}"}, 5.0, OPEN)
    assert (shown.who, shown.expires) == ("p1 files", None)
    assert "cannot be asked" in shown.why
