"""Listening ports that the kernel may assign to an outgoing connection before a member listens on them.

The kernel takes the port of an outgoing connection from `ip_local_port_range`, unless the port is in
`ip_local_reserved_ports`. As long as the connection exists, no process can listen on its port. A member then
does not start, although no other process listens there.
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
        reserved: ports that the kernel never assigns by itself.
    """

    first: int
    last: int
    reserved: Runs = ()

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def exposed(self, ports: Iterable[int]) -> Runs:
        """The ports among ``ports`` that an outgoing connection may get."""
        return runs_of(
            port
            for port in ports
            if self.first <= port <= self.last and not any(low <= port <= high for low, high in self.reserved)
        )

    def reserve_command(self, more: Runs) -> str:
        """The command that reserves more ports and keeps the existing reservations."""
        both = (port for low, high in (*self.reserved, *more) for port in range(low, high + 1))
        return f"sysctl -w {RESERVED}={show_runs(runs_of(both), ',')}"


@dataclass(frozen=True, slots=True)
class PortTrouble:
    """Ports of members that an outgoing connection may get: the problem and the fix."""

    detail: str
    fix: str


def runs_of(ports: Iterable[int]) -> Runs:
    """Ports as runs of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for port in sorted(set(ports)):
        if found and found[-1][1] == port - 1:
            found[-1] = (found[-1][0], port)
        else:
            found.append((port, port))
    return tuple(found)


def show_runs(runs: Runs, separator: str = ", ") -> str:
    """Runs in the notation of sysctl(8): ``32768-32770, 40000``."""
    return separator.join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def parse_ephemeral_ports(port_range: str, reserved: str) -> EphemeralPorts | None:
    """Parse the two files of the kernel; None if their content is not understood."""
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
    """The ephemeral ports of this machine or container; None if the system has no such files."""
    try:
        port_range = (folder / "ip_local_port_range").read_text("ascii")
        reserved = (folder / "ip_local_reserved_ports").read_text("ascii")
    except (OSError, ValueError):
        return None
    return parse_ephemeral_ports(port_range, reserved)


def port_trouble(ports: Iterable[int], kernel: EphemeralPorts | None) -> PortTrouble | None:
    """The problem with the listening ports of a member; None if no outgoing connection may get one."""
    exposed = () if kernel is None else kernel.exposed(ports)
    if kernel is None or not exposed:
        return None
    several = len(exposed) > 1 or exposed[0][0] != exposed[0][1]
    detail = (
        f"port{'s' if several else ''} {show_runs(exposed)} {'are' if several else 'is'} in the range of "
        f"outgoing connections, {kernel} (net.ipv4.ip_local_port_range), and not reserved: the member cannot "
        f"start while an outgoing connection uses {'one of them' if several else 'it'}"
    )
    fix = f"reserve them ({kernel.reserve_command(exposed)}, and a file in /etc/sysctl.d)"
    if kernel.first > _LAST_PRIVILEGED_PORT + 1:
        fix += f", or configure ports below {kernel.first}"
    return PortTrouble(detail, fix)
