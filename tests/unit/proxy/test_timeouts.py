"""The time limits of clients, by a clock that the test advances."""

from __future__ import annotations

from typing import TypeAlias

from fleet.config.settings import Limits
from fleet.core.errors import TimeLimit
from fleet.proxy.timeouts import ClientTimeout, TimeoutPolicy

PATIENCE = TimeoutPolicy(Limits(first_request_timeout_s=10.0, request_timeout_s=60.0, idle_timeout_s=660.0))

Play: TypeAlias = tuple[TimeLimit | None, int]


def lasting(limit: TimeLimit | None, progress: int, for_s: int) -> list[Play]:
    return [(limit, progress)] * for_s


def errors_of(*plays: Play) -> list[str]:
    """Return the errors of a play with one sweep a second; a play has the running limit and the progress."""
    watch, passed = ClientTimeout(), []
    for now_s, (limit, progress) in enumerate(plays, start=1):
        error = watch.check(limit, progress, PATIENCE, float(now_s))
        if error is not None:
            passed.append(f"{now_s} {error.reason}: {error}")
    return passed


def test_each_limit_expires_without_progress() -> None:
    assert errors_of(*lasting("first_request_timeout_s", 0, 11)) == [
        "11 first_request_timeout_s: no request for 10 s"
    ]
    assert errors_of(*lasting("request_timeout_s", 7, 61)) == [
        "61 request_timeout_s: no more bytes of an incomplete request for 60 s"
    ]
    assert errors_of(*lasting("idle_timeout_s", 7, 661)) == [
        "661 idle_timeout_s: idle with no request in flight for 660 s"
    ]


def test_slow_client_with_progress_is_not_closed() -> None:
    """A client that sends one byte in 59 seconds."""
    assert errors_of(*[("request_timeout_s", second // 59) for second in range(3_600)]) == []


def test_no_limit_runs_while_the_broker_is_due() -> None:
    """A Fetch that waits at its broker, or a paused client."""
    assert errors_of(("idle_timeout_s", 7), *lasting(None, 0, 3_600), ("idle_timeout_s", 7)) == []


def test_pause_restarts_the_time_limit() -> None:
    incomplete = lasting("request_timeout_s", 7, 40)
    assert errors_of(*incomplete, (None, 0), *incomplete) == []


def test_each_limit_has_its_own_time() -> None:
    assert errors_of(*lasting("idle_timeout_s", 7, 500), *lasting("request_timeout_s", 7, 60)) == []


def test_limit_is_checked_five_times() -> None:
    usual = TimeoutPolicy(Limits(first_request_timeout_s=10.0, request_timeout_s=60.0, idle_timeout_s=660.0))
    assert (usual.sweep_s, usual.rare_sweep_s) == (2.0, 12.0)
    # Found by review: frequent sweeps were rarer than rare ones.
    odd = TimeoutPolicy(Limits(first_request_timeout_s=120.0, request_timeout_s=10.0, idle_timeout_s=30.0))
    assert (odd.sweep_s, odd.rare_sweep_s) == (2.0, 2.0)
    short = TimeoutPolicy(Limits(first_request_timeout_s=0.5, request_timeout_s=0.5, idle_timeout_s=0.5))
    assert (short.sweep_s, short.rare_sweep_s) == (1.0, 1.0)
    long = TimeoutPolicy(Limits(first_request_timeout_s=3600, request_timeout_s=3600, idle_timeout_s=3600))
    assert (long.sweep_s, long.rare_sweep_s) == (30.0, 30.0)


def test_five_sweeps_that_come_a_little_early_are_enough() -> None:
    watch, ends_s = ClientTimeout(), []
    for sweep in range(1, 9):
        if watch.check("first_request_timeout_s", 0, PATIENCE, sweep * 1.999) is not None:
            ends_s.append(sweep)
    assert ends_s[0] == 6  # sweep 1 was the first to see the client
