"""Free TCP ports for brokers and proxies that are started on this machine."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack

from fleet.core.errors import DemoError

# Below the range from which the kernel takes the ports of outgoing connections (32768…): a port found free
# here is not taken by somebody's client between the check and its use.
_LOWEST = 20_000
_HIGHEST = 32_000
_next = random.randrange(_LOWEST, _HIGHEST)
"""Ports are given one after the other, by each process from another one on: whoever asked before may not
listen yet, as a fleet's ports are chosen first, then those of its links.

Found: taken here and there they left no thousand in a row, after an hour of a benchmark.
"""


def free_ports(count: int, hosts: Sequence[str] = ("127.0.0.1",)) -> tuple[int, ...]:
    """Consecutive ports that nobody listens on, and not given since this process last came around.

    Args:
        count: how many.
        hosts: addresses of this machine on every one of which each port must be free.
    Raises:
        DemoError: none found, or an address is not one of this machine.
    """
    global _next
    looked_at = 0
    most = _HIGHEST - _LOWEST
    while count <= most and looked_at < 2 * most:  # more than once around: those at the end may be too few
        first = _next if _next + count <= _HIGHEST else _LOWEST
        ports = range(first, first + count)
        taken = next(filter(None, (_first_taken(host, ports) for host in hosts)), None)
        _next = first + count if taken is None else taken + 1
        looked_at += _next - first
        if taken is None:
            return tuple(ports)
    raise DemoError(f"found no {count} consecutive free ports between {_LOWEST} and {_HIGHEST}")


def _first_taken(host: str, ports: Sequence[int]) -> int | None:
    with ExitStack() as opened:
        for port in ports:
            listener = opened.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
                listener.listen()
            except OSError as error:
                if error.errno == 99:  # EADDRNOTAVAIL
                    raise DemoError(f"{host} is not an address of this machine") from error
                return port
    return None
