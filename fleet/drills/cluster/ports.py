"""Finds free TCP ports for brokers and proxies on this machine."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack

from fleet.core.errors import DemoError

# The kernel takes ports of outgoing connections from 32768 upwards. Below, no client can take a port between
# this check and the port's use.
_LOWEST_PORT = 20_000
_HIGHEST_PORT = 32_000
_next_port = random.randrange(_LOWEST_PORT, _HIGHEST_PORT)
"""Each process hands out consecutive ports from a random start. Ports that were handed out may not be bound
yet: a fleet's ports are chosen before the ports of its links.

Random single ports left no 1,000 consecutive ports after an hour of a benchmark.
"""


def free_ports(count: int, hosts: Sequence[str] = ("127.0.0.1",)) -> tuple[int, ...]:
    """Find consecutive ports without a listener. The whole range is handed out before a port repeats.

    Args:
        count: number of ports.
        hosts: addresses of this machine; each port is free on all of them.
    Raises:
        DemoError: there are not enough consecutive free ports, or a host is not an address of this machine.
    """
    global _next_port
    checked = 0
    size = _HIGHEST_PORT - _LOWEST_PORT
    while count <= size and checked < 2 * size:  # a second pass, as too few ports may be left at the end
        first = _next_port if _next_port + count <= _HIGHEST_PORT else _LOWEST_PORT
        ports = range(first, first + count)
        taken = next(filter(None, (_first_taken(host, ports) for host in hosts)), None)
        _next_port = first + count if taken is None else taken + 1
        checked += _next_port - first
        if taken is None:
            return tuple(ports)
    raise DemoError(f"no {count} consecutive ports are free between {_LOWEST_PORT} and {_HIGHEST_PORT}")


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
