"""Which event loop a unit test runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

ON_UVLOOP = (
    "test_guard",
    "test_passage",
    "test_trust",
    "test_unread_clients",
    "test_worker",
    "test_worker_tls",
)
"""Modules whose subject runs on uvloop alone, and depends on what its transports do."""

ON_BOTH = ("test_admin_connections",)
"""Modules whose subject depends on what transports do when they are closed, and must not."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.stem in ON_UVLOOP:
        return {"uvloop": uvloop.new_event_loop}
    if item.path.stem in ON_BOTH:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
