"""Hostile brokers for a short time; `make test-long` runs 10,000 connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.brokers import AnswerMaker
from tests.hostile.kinds import ScriptMaker
from tests.hostile.run import Result, brokers

pytestmark = pytest.mark.size("test")

SEED = 1
CONNECTIONS = 300


@pytest.mark.timeout(600)
def test_hostile_brokers_are_closed_and_others_notice_nothing(tmp_path: Path) -> None:
    result = Result(seed=SEED)
    brokers(result, tmp_path, CONNECTIONS, SEED, print)
    assert result.problems == []
    assert result.connections == CONNECTIONS
    assert result.others_answered >= CONNECTIONS // 20 - 5
    assert {"malformed", "oversize", "truncated", "unknown_response"} <= result.closed.keys()


def test_a_seed_makes_the_same_scripts() -> None:
    first, second = ScriptMaker(SEED), ScriptMaker(SEED)
    for number in range(200):
        script, other = first.script(number), second.script(number)
        assert (script.kind, script.then, script.reason) == (other.kind, other.then, other.reason)
        if "tls" not in script.kind:  # a TLS client draws its own random number
            assert script.chunks == other.chunks
    maker, other_maker = AnswerMaker(SEED), AnswerMaker(SEED)
    assert all(maker.answer(number, number) == other_maker.answer(number, number) for number in range(100))
