"""Quotas: a credit that grows at a steady rate."""

from __future__ import annotations

import pytest

from fleet.proxy.quota import MAX_DEBT_S, Quota, Quotas


def test_credit_of_one_second_may_be_spent_at_once() -> None:
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


@pytest.mark.parametrize("size", [33, 1_000, 65_536, 262_144])
def test_long_term_rate_is_enforced(size: int) -> None:
    quota, now_s, sent = Quota(10_000.0, now_s=0.0), 0.0, 0
    while now_s < 1_000.0 and sent < 10_010_000:
        sent += size
        if quota.spend(size):
            now_s += quota.refill(now_s)
    assert sent <= 10_000 * (now_s + 1) + size
    assert sent >= 10_000 * now_s


def test_quota_with_debt_is_not_forgotten() -> None:
    quota = Quota(1_000.0, now_s=0.0)
    assert quota.is_full(0.0)
    quota.spend(1)
    assert not quota.is_full(0.0)
    assert quota.is_full(1.0)


def test_debt_beyond_the_limit_is_forgiven() -> None:
    quota = Quota(1_000.0, now_s=0.0, max_debt_s=10.0)
    assert quota.spend(1_000_000)
    assert quota.refill(0.0) == 10.0
    assert quota.refill(4.0) == 6.0
    assert quota.spend(1_000_000)
    assert quota.refill(4.0) == 10.0
    assert quota.refill(14.0) == 0.0


def test_connections_of_a_source_share_its_quota() -> None:
    quotas = Quotas(4_000, workers=2, max_debt_s=MAX_DEBT_S)
    one, other = quotas.give("10.0.0.1", 0.0), quotas.give("10.0.0.2", 0.0)
    assert one is not None
    assert one is not other
    assert quotas.give("10.0.0.1", 0.0) is one
    assert one.connections == 2
    assert one.spend(3_000)
    assert one.refill(0.0) == 0.5
    one.connections = 0
    quotas.forget(0.5)
    assert len(quotas) == 2
    quotas.forget(1.5)
    assert len(quotas) == 1


def test_without_a_limit_there_is_no_quota() -> None:
    assert Quotas(None, workers=1).give("10.0.0.1", 0.0) is None
