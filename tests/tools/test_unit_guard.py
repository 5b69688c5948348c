"""tests/unit/conftest.py: a unit test that opens a socket fails, and the message says where to move it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.bootstrap import ROOT

TESTS = """
import asyncio, socket
import pytest

@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server

def test_bind():
    socket.create_server(("127.0.0.1", 0)).close()

def test_fixture(server):
    pass

async def test_connect():
    with pytest.raises(OSError):
        await asyncio.open_unix_connection("nobody")

def test_pair():
    left, right = socket.socketpair()
    left.close(), right.close()
"""


def test_unit_test_that_opens_a_socket_fails(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "unit" / "conftest.py", tmp_path)
    (tmp_path / "test_sockets.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "2 failed, 1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("move it to tests/integration/in_process") >= 3
    assert "socket.connect 'nobody'" in done.stdout


def test_unit_tests_never_import_uvloop() -> None:
    """uvloop opens sockets in C, which audit hooks do not see."""
    users = [
        path for path in (ROOT / "tests" / "unit").rglob("test_*.py") if "import uvloop" in path.read_text()
    ]
    assert users == []
