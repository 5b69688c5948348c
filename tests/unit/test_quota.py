"""fleet/proxy/quota.py: credit that grows."""

from __future__ import annotations

import pytest

from fleet.proxy.quota import Quota


def test_what_one_second_gives_may_be_spent_at_once() -> None:
    quota = Quota(1_000.0, now_s=5.0)
    assert not quota.spend(1_000)
    assert quota.spend(500)
    assert quota.refill(5.0) == 0.5
    assert quota.refill(5.25) == 0.25
    assert quota.refill(5.5) == 0.0


def test_credit_does_not_pile_up() -> None:
    quota = Quota(1_000.0, now_s=0.0)
    assert quota.refill(3_600.0) == 0.0
    assert quota.spend(1_001)


@pytest.mark.parametrize("size", [1, 100, 65_536, 262_144])
def test_in_the_long_run_the_rate_is_kept(size: int) -> None:
    quota, now_s, sent = Quota(10_000.0, now_s=0.0), 0.0, 0
    while now_s < 1_000.0 and sent < 10_010_000:
        sent += size
        if quota.spend(size):
            now_s += quota.refill(now_s)
    assert sent <= 10_000 * (now_s + 1) + size
    assert sent >= 10_000 * now_s


def test_it_is_forgotten_only_when_nothing_is_owed() -> None:
    quota = Quota(1_000.0, now_s=0.0)
    assert quota.is_full(0.0)
    quota.spend(1)
    assert not quota.is_full(0.0)
    assert quota.is_full(1.0)
