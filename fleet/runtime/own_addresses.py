"""Checks whether an address leads back to the fleet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fleet.config import Settings, is_loopback, is_wildcard
from fleet.core.model import AdvertisedListener, Endpoint, IdentitySpace, ProxyId


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
                bound = [listener.bootstrap, *(each for _, each in listener.bound(settings.identities))]
                for endpoint in (*bound, *_advertised(listener.to_advertised(), settings.identities)):
                    if is_here or not _is_of_any_machine(endpoint.host):
                        self._found[(_plain(endpoint.host), endpoint.port)] = where
                if proxy_id == me and is_wildcard(listener.bind_host):
                    self._mine |= {endpoint.port: where for endpoint in bound}

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


def _advertised(listener: AdvertisedListener, identities: IdentitySpace) -> Iterator[Endpoint]:
    yield Endpoint(listener.host, listener.bootstrap_port)
    for broker_id, offset in identities.offsets():
        yield listener.endpoint(broker_id, offset)


def _plain(host: str) -> str:
    name = host.lower().removesuffix(".")
    return "127.0.0.1" if name == "localhost" else name
