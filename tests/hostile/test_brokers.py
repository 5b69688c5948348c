"""Hostile brokers for a short while; `make test-long` goes on for 10,000 connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.brokers import BrokerKinds
from tests.hostile.kinds import Kinds
from tests.hostile.run import Result, brokers

pytestmark = pytest.mark.size("test")

SEED = 1
BROKERS = 300


@pytest.mark.timeout(600)
def test_hostile_brokers_are_closed_and_others_notice_nothing(tmp_path: Path) -> None:
    result = Result(seed=SEED)
    brokers(result, tmp_path, BROKERS, SEED, print)
    assert result.problems == []
    assert result.connections == BROKERS
    assert result.others_answered >= BROKERS // 20 - 5
    assert {"malformed", "oversize", "truncated", "unknown_response"} <= result.closed.keys()


def test_a_seed_makes_the_same_scripts() -> None:
    first, second = Kinds(SEED), Kinds(SEED)
    for number in range(200):
        one, other = first.script(number), second.script(number)
        assert (one.kind, one.then, one.reason) == (other.kind, other.then, other.reason)
        if "tls" not in one.kind:  # whose client draws a number of its own
            assert one.chunks == other.chunks
    mine, others = BrokerKinds(SEED), BrokerKinds(SEED)
    assert all(mine.answer(number, number) == others.answer(number, number) for number in range(100))
