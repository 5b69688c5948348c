"""The incarnation of a member always grows, for any change of the wall clock."""

import os
import resource
import signal
from pathlib import Path

import pytest

from fleet.runtime.incarnation import INCARNATION_FILE, next_incarnation

HOUR_MS = 3_600_000
NOW_MS = 1_790_000_000_000


def test_first_incarnation_is_the_time(tmp_path: Path) -> None:
    assert next_incarnation(tmp_path, NOW_MS) == NOW_MS


def test_incarnation_grows_while_the_clock_is_behind(tmp_path: Path) -> None:
    """Found: a member that came back with its clock set back had a lesser number. Peers that had not noticed
    the end of its former connection refused it ("it runs twice") until that had been silent for 5 s.
    """
    first = next_incarnation(tmp_path, NOW_MS)
    lives = [next_incarnation(tmp_path, NOW_MS - HOUR_MS) for _ in range(3)]
    assert lives == [first + 1, first + 2, first + 3]
    assert next_incarnation(tmp_path, NOW_MS + 1000) == NOW_MS + 1000


@pytest.mark.parametrize("content", [b"", b"not a number", b"\xff\xfe"])
def test_a_damaged_file_is_no_reason_not_to_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / INCARNATION_FILE).write_bytes(content)
    assert next_incarnation(tmp_path, NOW_MS) == NOW_MS
    assert next_incarnation(tmp_path, NOW_MS - 1) == NOW_MS + 1


def test_a_full_disk_is_no_reason_not_to_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / INCARNATION_FILE).write_text(str(NOW_MS + 5))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        assert next_incarnation(tmp_path, NOW_MS) == NOW_MS + 6
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert "cannot write the incarnation" in caplog.text
    assert os.path.exists(tmp_path / INCARNATION_FILE)
