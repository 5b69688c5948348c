from __future__ import annotations

import socket

import pytest

from fleet.core.errors import DemoError
from fleet.drills.cluster import ports
from fleet.drills.cluster.ports import free_ports


def test_ports_are_consecutive_and_free_on_every_address() -> None:
    hosts = ("127.0.0.1", "127.77.3.3")
    found = free_ports(20, hosts)
    assert found == tuple(range(found[0], found[0] + 20))
    for host in hosts:
        for port in found:
            with socket.socket() as listener:
                listener.bind((host, port))


def test_address_of_another_machine_is_rejected() -> None:
    with pytest.raises(DemoError, match=r"192\.0\.2\.1 is not an address of this machine"):
        free_ports(1, ("192.0.2.1",))


def test_ports_are_not_reused_before_their_owner_listens() -> None:
    """Found: links between members got ports of the fleet that were not bound yet, and p3 did not start."""
    given = [port for _ in range(50) for port in free_ports(20)]
    assert len(set(given)) == len(given)


def test_many_small_requests_leave_1000_consecutive_ports() -> None:
    # Found: after an hour of a benchmark no 1,003 consecutive ports were left.
    given = [port for _ in range(300) for port in free_ports(6)]
    given += free_ports(1_003)
    assert len(set(given)) == len(given) == 2_803


def test_port_with_a_listener_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_next_port", 25_000)
    first, second, third, fourth = free_ports(4)
    with socket.create_server(("127.0.0.1", second)):
        monkeypatch.setattr(ports, "_next_port", first)
        assert free_ports(2) == (third, fourth)


def test_ports_wrap_around_at_the_end_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_next_port", 31_990)
    assert 20_000 <= min(free_ports(11)) <= 31_000


def test_request_for_too_many_ports_is_an_error() -> None:
    with pytest.raises(DemoError, match="no 12001 consecutive ports are free between 20000 and 32000"):
        free_ports(12_001)
