"""Which listening ports the kernel may give to an outgoing connection first.

The kernel takes the port of an outgoing connection from `ip_local_port_range`, unless the port is in
`ip_local_reserved_ports`. As long as the connection exists, nobody can listen on its port: a member does not
start again, though no process listens there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Neighbouring ports as (first, last), in order."""

KERNEL_FOLDER: Final = Path("/proc/sys/net/ipv4")
RESERVED: Final = "net.ipv4.ip_local_reserved_ports"
_LAST_PRIVILEGED_PORT: Final = 1023


@dataclass(frozen=True, slots=True)
class EphemeralPorts:
    """The ports of outgoing connections on one machine.

    Args:
        first, last: the range, for IPv4 and for IPv6.
        reserved: what the kernel leaves to those who ask for it.
    """

    first: int
    last: int
    reserved: Runs = ()

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def exposed(self, ports: Iterable[int]) -> Runs:
        """Those of some ports that an outgoing connection may have."""
        return runs_of(
            port
            for port in ports
            if self.first <= port <= self.last and not any(low <= port <= high for low, high in self.reserved)
        )

    def reserve_command(self, more: Runs) -> str:
        """How to reserve some ports, and keep those that are reserved already."""
        both = (port for low, high in (*self.reserved, *more) for port in range(low, high + 1))
        return f"sysctl -w {RESERVED}={show_runs(runs_of(both), ',')}"


@dataclass(frozen=True, slots=True)
class PortTrouble:
    """Ports of members that an outgoing connection may have: what is wrong, and the fix."""

    detail: str
    fix: str


def runs_of(ports: Iterable[int]) -> Runs:
    """Ports as runs of neighbours."""
    found: list[tuple[int, int]] = []
    for port in sorted(set(ports)):
        if found and found[-1][1] == port - 1:
            found[-1] = (found[-1][0], port)
        else:
            found.append((port, port))
    return tuple(found)


def show_runs(runs: Runs, separator: str = ", ") -> str:
    """Runs as sysctl(8) and people write them: ``32768-32770, 40000``."""
    return separator.join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def parse_ephemeral_ports(port_range: str, reserved: str) -> EphemeralPorts | None:
    """What the kernel's two files say; None where it is something else."""
    try:
        first, last = map(int, port_range.split())
        runs = []
        for each in filter(None, reserved.strip().split(",")):
            low, _, high = each.partition("-")
            runs.append((int(low), int(high or low)))
    except ValueError:
        return None
    return EphemeralPorts(first, last, tuple(runs))


def read_ephemeral_ports(folder: Path = KERNEL_FOLDER) -> EphemeralPorts | None:
    """Those of this machine, or of this container; None where the system does not say."""
    try:
        port_range = (folder / "ip_local_port_range").read_text("ascii")
        reserved = (folder / "ip_local_reserved_ports").read_text("ascii")
    except (OSError, ValueError):
        return None
    return parse_ephemeral_ports(port_range, reserved)


def port_trouble(ports: Iterable[int], kernel: EphemeralPorts | None) -> PortTrouble | None:
    """What to say of the ports that a member listens on; None where no outgoing connection may have one."""
    exposed = () if kernel is None else kernel.exposed(ports)
    if kernel is None or not exposed:
        return None
    several = len(exposed) > 1 or exposed[0][0] != exposed[0][1]
    detail = (
        f"port{'s' if several else ''} {show_runs(exposed)} {'are' if several else 'is'} in the range of "
        f"outgoing connections, {kernel} (net.ipv4.ip_local_port_range), and not reserved: while such a "
        "connection has one of them, the member cannot start"
    )
    fix = f"reserve them ({kernel.reserve_command(exposed)}, and a file in /etc/sysctl.d)"
    if kernel.first > _LAST_PRIVILEGED_PORT + 1:
        fix += f", or configure ports below {kernel.first}"
    return PortTrouble(detail, fix)
