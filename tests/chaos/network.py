"""Links between members that can be broken: every one of them leads through Toxiproxy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

from fleet.chaos.network import Toxiproxy
from fleet.chaos.run import toxiproxy
from fleet.demo.local_fleet import LocalFleet
from fleet.model import ProxyId


class Network:
    """The links of a fleet's members, each by the two that it joins."""

    def __init__(self, between: Toxiproxy, fleet: LocalFleet) -> None:
        self._between = between
        self._pairs = list(combinations(fleet.members, 2))

    def cut(self, one: ProxyId, other: ProxyId) -> None:
        """Close a link, and let nobody open it again."""
        self._between.peer_link(one, other).proxy.disable()

    def swallow(self, one: ProxyId, other: ProxyId) -> None:
        """Let a link stand, and whatever is sent over it vanish, in both directions."""
        self._between.poison([self._between.peer_link(one, other)], "timeout", {"timeout": 0}, "both")

    def mend(self) -> None:
        """Bring everything back in order."""
        links = [self._between.peer_link(one, other) for one, other in self._pairs]
        self._between.heal(links)
        for link in links:
            link.proxy.enable()


@contextmanager
def network(fleet: LocalFleet, folder: Path) -> Iterator[Network]:
    """Put a Toxiproxy between each two members of a fleet that has not been started yet."""
    with toxiproxy(folder) as between:
        between.put_between_members(fleet)
        yield Network(between, fleet)
