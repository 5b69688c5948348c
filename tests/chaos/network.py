"""Links between members that can be broken: every one of them leads through Toxiproxy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

from toxiproxy.proxy import Proxy
from toxiproxy.server import Toxiproxy

from fleet.demo.local_fleet import LocalFleet
from fleet.demo.ports import free_ports
from fleet.demo.spawn import end, spawn
from fleet.model import Endpoint, ProxyId
from tests.chaos.scene import wait_for

BIN = Path(__file__).parents[2] / "build" / "bin"
NAMES = ("toxiproxy-server", "server")  # as make builds it; as `go install` leaves it


class Network:
    """The links of a fleet's members, each by the two that it joins."""

    def __init__(self, links: dict[frozenset[ProxyId], Proxy]) -> None:
        self._links = links

    def cut(self, one: ProxyId, other: ProxyId) -> None:
        """Close a link, and let nobody open it again."""
        self._links[frozenset((one, other))].disable()

    def swallow(self, one: ProxyId, other: ProxyId) -> None:
        """Let a link stand, and whatever is sent over it vanish, in both directions."""
        for stream in ("upstream", "downstream"):
            self._links[frozenset((one, other))].add_toxic(
                type="timeout", stream=stream, name=f"swallow_{stream}", attributes={"timeout": 0}
            )

    def mend(self) -> None:
        """Bring everything back in order."""
        assert Toxiproxy().reset()


@contextmanager
def network(fleet: LocalFleet, folder: Path) -> Iterator[Network]:
    """Put a Toxiproxy between each two members of a fleet that has not been started yet."""
    server, *ports = free_ports(1 + len(fleet.members) * (len(fleet.members) - 1) // 2)
    program = next(filter(None, (shutil.which(name, path=str(BIN)) for name in NAMES)), None)
    assert program is not None, f"no Toxiproxy in {BIN}: `make test` brings it"
    process = spawn((program, "-host", "127.0.0.1", "-port", str(server)), folder / "toxiproxy.log")
    try:
        toxiproxy = Toxiproxy()
        toxiproxy.update_api_consumer("127.0.0.1", server)
        wait_for(toxiproxy.running, "Toxiproxy")
        links = {}
        for (lesser, greater), port in zip(combinations(sorted(fleet.members), 2), ports, strict=True):
            here, there = Endpoint("127.0.0.1", port), fleet.settings.member(lesser).peer
            links[frozenset((lesser, greater))] = toxiproxy.create(
                upstream=str(there), name=f"{greater}-{lesser}", listen=str(here)
            )
            fleet.dial_through(greater, lesser, here)
        yield Network(links)
    finally:
        end([process], 0.0)
