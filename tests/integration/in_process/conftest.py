"""Tests that open sockets but start neither Kafka nor a fleet. They are of size "test" and run on all cores.

The folders mirror the packages of fleet/. A test here runs on the event loop that its module names below.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

ON_UVLOOP = (
    "proxy/test_limits",
    "proxy/test_splice",
    "proxy/test_trust",
    "proxy/test_unread_clients",
    "proxy/test_worker",
    "proxy/test_worker_tls",
)
"""Modules whose subject runs on uvloop alone, and depends on what its transports do."""

ON_BOTH = ("admin/test_connections",)
"""Modules whose subject depends on what transports do when they are closed, and must not."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    name = item.path.relative_to(Path(__file__).parent).with_suffix("").as_posix()
    if name in ON_UVLOOP:
        return {"uvloop": uvloop.new_event_loop}
    if name in ON_BOTH:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def recorded() -> None:
    """Nothing is recorded: the fixture of tests/integration would start Kafka for a test with a `fleet`."""


@pytest.fixture
def kafka() -> None:
    """No test here may start Kafka."""
    pytest.fail(
        "tests/integration/in_process: a test here cannot use Kafka; move the test to tests/integration"
    )
