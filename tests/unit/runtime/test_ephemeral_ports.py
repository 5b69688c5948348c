"""fleet/runtime/ephemeral_ports.py: listening ports that an outgoing connection may take first."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.config.file import parse_text
from fleet.runtime.ephemeral_ports import (
    EphemeralPorts,
    parse_ephemeral_ports,
    port_trouble,
    read_ephemeral_ports,
    runs_of,
    show_runs,
)
from fleet.runtime.sockets import listening_ports

USUAL = EphemeralPorts(32768, 60999)


@pytest.mark.parametrize(
    ("port_range", "reserved", "expected"),
    [
        ("32768\t60999\n", "\n", USUAL),
        ("1024 65535\n", "8080,9148-9150\n", EphemeralPorts(1024, 65535, ((8080, 8080), (9148, 9150)))),
        ("", "", None),
        ("32768 60999\n", "all\n", None),
    ],
)
def test_kernel_files_are_parsed(port_range: str, reserved: str, expected: EphemeralPorts | None) -> None:
    assert parse_ephemeral_ports(port_range, reserved) == expected


def test_kernel_files_are_read_or_absent(tmp_path: Path) -> None:
    assert read_ephemeral_ports(tmp_path) is None
    (tmp_path / "ip_local_port_range").write_text("32768\t60999\n")
    (tmp_path / "ip_local_reserved_ports").write_text("\n")
    assert read_ephemeral_ports(tmp_path) == USUAL


def test_runs_are_as_few_as_possible() -> None:
    assert show_runs(runs_of([40000, 32769, 32768, 32770, 32768])) == "32768-32770, 40000"
    assert show_runs(()) == ""


@pytest.mark.parametrize(
    ("ports", "reserved", "exposed"),
    [
        ((9100, 32767, 61000), (), ()),
        ((32768, 60999), (), ((32768, 32768), (60999, 60999))),
        ((32768, 32769, 32770), ((32769, 40000),), ((32768, 32768),)),
        (range(40000, 40010), ((40000, 40009),), ()),
    ],
)
def test_exposed_ports_are_in_the_range_and_not_reserved(
    ports: range, reserved: tuple[tuple[int, int], ...], exposed: tuple[tuple[int, int], ...]
) -> None:
    assert EphemeralPorts(32768, 60999, reserved).exposed(ports) == exposed


def test_trouble_names_ports_range_and_fix() -> None:
    assert port_trouble((9100,), USUAL) is None
    assert port_trouble((40000,), None) is None, "a system without such files"
    trouble = port_trouble((9100, 40000, 40001), EphemeralPorts(32768, 60999, ((50000, 50000),)))
    assert trouble is not None
    assert trouble.detail.startswith(
        "ports 40000-40001 are in the range of outgoing connections, 32768-60999 ("
    )
    assert trouble.fix == (
        "reserve them (sysctl -w net.ipv4.ip_local_reserved_ports=40000-40001,50000, and a file in "
        "/etc/sysctl.d), or configure ports below 32768"
    )
    whole = port_trouble((40000,), EphemeralPorts(1024, 65535))
    assert whole is not None
    assert "below" not in whole.fix, "only privileged ports are below"


def test_ports_of_a_member_are_all_that_it_listens_on() -> None:
    text = """
fleet: demo
bootstrap_servers: [k1:9092]
identities: {ids: {1: 0, 5: 7}}
members:
  p1:
    {peer: "127.0.0.1:7101", admin: "127.0.0.1:7201", data_dir: d1,
     listeners: {external: {bind: "127.0.0.1:9100", first_port: 40000, advertise: "proxy.example:19100",
                            advertise_first_port: 50000}}}
  p2: {peer: "127.0.0.1:7102", admin: "127.0.0.1:7202", data_dir: d2, witness: true}
"""
    settings = parse_text(text, {}, "fleet.yaml", Path("/fleet"))
    found = {proxy_id: listening_ports(settings, member) for proxy_id, member in settings.members.items()}
    assert found == {"p1": {7101, 7201, 9100, 40000, 40007}, "p2": {7102, 7202}}
