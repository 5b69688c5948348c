from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from fleet.core.model import Endpoint, IdentitySpace
from fleet.drills.demo.command import command, parse_brokers, plan_kills
from fleet.drills.demo.run import identities_for


def test_brokers_are_read() -> None:
    assert parse_brokers("a:1, [::1]:65535,") == (Endpoint("a", 1), Endpoint("::1", 65535))
    assert parse_brokers("") == ()


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:b", "a:0", "a:65536", "a:-1"])
def test_invalid_broker_address_is_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_brokers(text)


def test_kills_alternate_between_leader_and_follower_by_default() -> None:
    assert plan_kills(None, 3, 3) == ("leader", "follower", "leader")
    assert plan_kills("leader", 2, 3) == ("leader", "leader")
    assert plan_kills("p3", 2, 3) == ("p3", "p3")
    assert plan_kills("none", 2, 1) == ()


@pytest.mark.parametrize(("kill", "proxies"), [("p4", 3), ("follower", 3), (None, 1), ("leader", 1)])
def test_impossible_kill_is_rejected(kill: str | None, proxies: int) -> None:
    with pytest.raises(click.BadParameter):
        plan_kills(kill, 1, proxies)


def test_help_names_every_option_and_mistakes_are_usage_errors() -> None:
    runner = CliRunner()
    shown = runner.invoke(command, ["--help"])
    assert shown.exit_code == 0
    options = "proxies brokers-count brokers kill rounds client duration data-dir kafka-home fetch keep json"
    for option in options.split():
        assert f"--{option}" in shown.output
    assert runner.invoke(command, ["--kill", "p9"]).exit_code == 2
    assert runner.invoke(command, ["--brokers", "nonsense"]).exit_code == 2


def test_every_broker_gets_a_port_however_sparse_the_ids() -> None:
    assert identities_for(frozenset({1, 2, 3})) == IdentitySpace(1, 7)
    assert identities_for(frozenset({0})) == IdentitySpace(0, 5)
    sparse = identities_for(frozenset({1001, 5, 2001}))
    assert sparse.broker_ids() == (5, 1001, 2001)
    assert sorted(sparse.offset(each) or 0 for each in (5, 1001, 2001)) == [0, 1, 2]
