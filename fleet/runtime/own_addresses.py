"""Checks whether an address leads back to the fleet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fleet.config import Settings, is_loopback, is_wildcard
from fleet.core.model import IdentitySpace, ProxyId


class OwnAddresses:
    """The addresses at which clients connect to the fleet: bound and advertised ones.

    Args:
        me: the member that would dial. Its sockets are at any address of its machine.
        is_local: whether an IP address belongs to this machine.
    """

    def __init__(self, settings: Settings, me: ProxyId | None, is_local: Callable[[str], bool]) -> None:
        self._is_local = is_local
        self._found: dict[tuple[str, int], str] = {}
        self._mine: dict[int, str] = {}
        """Sockets of this member at any host, by port."""
        dialer = None if me is None else settings.members.get(me)
        machine = None if dialer is None else dialer.peer.host
        for proxy_id, member in settings.members.items():
            is_here = is_loopback(member.peer.host) or member.peer.host == machine
            for listener in member.listeners:
                where = f"listener {listener.name} of {proxy_id}"
                offers = settings.identities
                bound = {listener.bootstrap_port, *_ports(listener.first_port, offers)}
                advertised = {
                    listener.advertised_bootstrap_port,
                    *_ports(listener.advertised_first_port, offers),
                }
                if listener.broker_host is not None:  # one socket for all identities
                    bound, advertised = {listener.bootstrap_port}, {listener.advertised_bootstrap_port}
                for host, ports in ((listener.advertised_host, advertised), (listener.bind_host, bound)):
                    if is_here or not _is_of_any_machine(host):
                        self._found |= {(_plain(host), port): where for port in ports}
                if proxy_id == me and is_wildcard(listener.bind_host):
                    self._mine |= dict.fromkeys(bound, where)

    def find(self, host: str, port: int) -> str | None:
        """The listener of the fleet at an address; None if the address belongs to another server."""
        plain = _plain(host)
        where = self._found.get((plain, port))
        if where is None and port in self._mine and (is_loopback(plain) or self._is_local(plain)):
            where = self._mine[port]
        return where


def _is_of_any_machine(host: str) -> bool:
    """Whether each machine reaches itself at this host."""
    return is_wildcard(host) or is_loopback(_plain(host))


def _ports(first_port: int, identities: IdentitySpace) -> Iterator[int]:
    for broker_id in identities.broker_ids():
        offset = identities.offset(broker_id)
        if offset is not None:
            yield first_port + offset


def _plain(host: str) -> str:
    name = host.lower().removesuffix(".")
    return "127.0.0.1" if name == "localhost" else name
