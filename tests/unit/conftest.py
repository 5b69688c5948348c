"""A unit test opens no socket: one that binds or connects one fails.

Such a test belongs in tests/integration/in_process. The loop of asyncio opens sockets in Python, and an audit
hook sees them. The loop of uvloop opens them in C, and no hook sees them, so unit
tests run on the loop of asyncio.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from typing import Final

import pytest

REFUSED: Final = frozenset({"socket.bind", "socket.connect"})
"""Audit events of Python. A pair of connected sockets raises none of them, and is allowed."""
ADVICE: Final = "a unit test must not open sockets; move it to tests/integration/in_process"

_opened: list[str] | None = None
"""What the unit test that runs now has done of `REFUSED`; None while no unit test runs."""


def _note_socket(event: str, args: tuple[object, ...]) -> None:
    if event in REFUSED and _opened is not None:
        _opened.append(f"{event} {args[1]!r}")


# An audit hook stays until the process ends, and other tests run in this process as well.
sys.addaudithook(_note_socket)


def _fail_if_opened() -> Generator[None, None, None]:
    global _opened
    _opened = seen = list[str]()
    try:
        yield
    finally:
        _opened = None
    if seen:
        pytest.fail(f"{', '.join(seen)}: {ADVICE}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    yield from _fail_if_opened()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    yield from _fail_if_opened()


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop}
