"""Free ports for what is started on this machine."""

from __future__ import annotations

import socket

import pytest

from fleet.demo import ports
from fleet.demo.ports import free_ports
from fleet.errors import DemoError


def test_many_that_are_given_leave_a_thousand_in_a_row() -> None:
    # Found: an hour of a benchmark had been given some here and some there, and had no 1,003 in a row left.
    given = [port for _ in range(300) for port in free_ports(6)]
    given += free_ports(1_003)
    assert len(set(given)) == len(given) == 2_803


def test_one_that_somebody_listens_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = free_ports(3)
    with socket.create_server(("127.0.0.1", second)):
        monkeypatch.setattr(ports, "_next", first)
        assert min(free_ports(2)) >= third


def test_behind_the_last_comes_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_next", 31_990)
    assert 20_000 <= min(free_ports(11)) <= 31_000


def test_more_than_there_are_is_an_error() -> None:
    with pytest.raises(DemoError, match="found no 12001 consecutive free ports between 20000 and 32000"):
        free_ports(12_001)
