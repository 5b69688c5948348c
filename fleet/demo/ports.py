"""Free TCP ports for brokers and proxies that are started on this machine."""

from __future__ import annotations

import random
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from fleet.errors import DemoError

# Below the range from which the kernel takes the ports of outgoing connections (32768…): a port found free
# here is not taken by somebody's client between the check and its use.
_LOWEST = 20_000
_HIGHEST = 32_000
_ATTEMPTS = 200
_GIVEN_LATELY: Final[deque[int]] = deque(maxlen=2_000)
"""Whoever asked before may not listen yet: a fleet's ports are chosen first, then those of its links."""


def free_ports(count: int, hosts: Sequence[str] = ("127.0.0.1",)) -> tuple[int, ...]:
    """Consecutive ports that nobody listens on, and that this process was not given lately.

    Args:
        count: how many.
        hosts: addresses of this machine on every one of which each port must be free.
    Raises:
        DemoError: none found, or an address is not one of this machine.
    """
    for _ in range(_ATTEMPTS):
        first = random.randrange(_LOWEST, _HIGHEST - count)
        ports = tuple(range(first, first + count))
        if set(ports).isdisjoint(_GIVEN_LATELY) and all(_are_free(host, ports) for host in hosts):
            _GIVEN_LATELY.extend(ports)
            return ports
    raise DemoError(f"found no {count} consecutive free ports between {_LOWEST} and {_HIGHEST}")


def _are_free(host: str, ports: Sequence[int]) -> bool:
    with ExitStack() as opened:
        for port in ports:
            listener = opened.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
                listener.listen()
            except OverflowError:
                return False
            except OSError as error:
                if error.errno == 99:  # EADDRNOTAVAIL
                    raise DemoError(f"{host} is not an address of this machine") from error
                return False
    return True
