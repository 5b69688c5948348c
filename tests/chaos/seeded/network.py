"""Toxiproxy between members, between clients and proxies, and between proxies and brokers.

with Toxiproxy(BIN, folder) as network:
    network.put_before_members(fleet)             # before the fleet starts
    network.put_between_members(fleet)
    affected = network.client_links("p2")
    network.poison(affected, "timeout", {"timeout": 0}, "both")
    network.heal(affected)
"""

from __future__ import annotations

import asyncio
import shutil
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import TracebackType

from toxiproxy.proxy import Proxy
from toxiproxy.server import Toxiproxy as Api

from fleet.core.errors import DemoError
from fleet.core.model import BrokerId, Endpoint, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.nat import advertise_elsewhere
from fleet.drills.cluster.ports import free_ports
from fleet.drills.cluster.spawn import end, spawn
from tests.chaos.seeded.schedule import Direction

NAMES = ("toxiproxy-server", "server")  # the name that make gives it; the name that `go install` gives it
_START_LIMIT_S = 10.0
_API_VERSIONS = 18
_IMPOSSIBLE_VERSION = 0x7FFF
_CLIENT_ID = b"fleet-chaos"


@dataclass(frozen=True, slots=True)
class Link:
    """One link through Toxiproxy, from the point of view of a fault's target.

    Args:
        at: the address where Toxiproxy listens.
        dials: whether the target opens connections; otherwise it accepts them.
    """

    proxy: Proxy
    at: Endpoint
    dials: bool = False

    def streams(self, direction: Direction) -> tuple[str, ...]:
        """Toxiproxy's streams to the target, from the target, or both.

        Upstream is the direction towards the side that accepts connections.
        """
        if direction == "both":
            return ("upstream", "downstream")
        return ("upstream",) if (direction == "out") == self.dials else ("downstream",)


class Toxiproxy:
    """A running Toxiproxy. A process can have only one, because the client library supports only one.

    Args:
        binaries: folder of the server.
        folder: folder of the log.
    """

    def __init__(self, binaries: Path, folder: Path) -> None:
        program = next(filter(None, (shutil.which(name, path=str(binaries)) for name in NAMES)), None)
        if program is None:
            raise DemoError(f"no Toxiproxy in {binaries}: `make test` brings it")
        self._program = program
        self._log = folder / "toxiproxy.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._api = Api()
        self._clients: dict[ProxyId, list[Link]] = {}
        self._peers: dict[frozenset[ProxyId], Link] = {}
        self._brokers: dict[BrokerId, Link] = {}

    def __enter__(self) -> Toxiproxy:
        (port,) = free_ports(1)
        command = (self._program, "-host", "127.0.0.1", "-port", str(port))
        self._process = spawn(command, self._log)
        self._api.update_api_consumer("127.0.0.1", port)
        deadline_s = time.monotonic() + _START_LIMIT_S
        while not self._api.running():
            if time.monotonic() > deadline_s:
                self.__exit__(None, None, None)
                raise DemoError(f"Toxiproxy did not start; see {self._log}")
            time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            end([self._process], 0.0)

    # ------------------------------------------------------------------------------------------- topology

    def put_before_brokers(self, kafka: KafkaCluster, listener: str, at: Mapping[BrokerId, Endpoint]) -> None:
        """Forward the addresses of an additional listener to the brokers."""
        for broker_id, endpoint in at.items():
            self._brokers[broker_id] = self.lead(endpoint, kafka.listener(listener, broker_id))

    def put_before_members(self, fleet: LocalFleet) -> None:
        """Make members advertise addresses of Toxiproxy. Call it before they start."""
        for advertised, bound in advertise_elsewhere(fleet, "127.0.0.1").items():
            owner = fleet.owner_of(advertised) or _whose_bootstrap(fleet, advertised)
            self._clients.setdefault(owner, []).append(self.lead(advertised, bound))

    def put_between_members(self, fleet: LocalFleet) -> None:
        """Make members dial each other through Toxiproxy. Call it before they start."""
        pairs = list(combinations(sorted(fleet.members), 2))
        for (lesser, greater), port in zip(pairs, free_ports(len(pairs)), strict=True):
            here = Endpoint("127.0.0.1", port)
            link = self.lead(here, fleet.settings.member(lesser).peer)
            self._peers[frozenset((lesser, greater))] = link
            fleet.dial_through(greater, lesser, here)

    def forget_members(self) -> None:
        """Close the links of a fleet that has ended."""
        for link in (*self._peers.values(), *(link for links in self._clients.values() for link in links)):
            link.proxy.destroy()
        self._clients, self._peers = {}, {}

    def lead(self, here: Endpoint, there: Endpoint) -> Link:
        """Listen at one address, and forward all bytes to another."""
        return Link(self._api.create(upstream=str(there), name=str(here), listen=str(here)), here)

    # ---------------------------------------------------------------------------------------------- links

    def client_links(self, proxy_id: ProxyId) -> list[Link]:
        """The links over which clients and peers' probes reach a member; the bootstrap port comes first."""
        return self._clients[proxy_id]

    def peer_links(self, proxy_id: ProxyId) -> list[Link]:
        """The links between a member and each of its peers."""
        return [
            Link(link.proxy, link.at, dials=proxy_id == max(pair))
            for pair, link in self._peers.items()
            if proxy_id in pair
        ]

    def peer_link(self, one: ProxyId, other: ProxyId) -> Link:
        """The link between two members."""
        return self._peers[frozenset((one, other))]

    def broker_links(self, broker_id: BrokerId) -> list[Link]:
        """The link over which the proxies reach a broker."""
        return [self._brokers[broker_id]]

    # --------------------------------------------------------------------------------------------- toxics

    def poison(
        self, links: Sequence[Link], toxic: str, attributes: Mapping[str, int], direction: Direction
    ) -> None:
        """Put one kind of toxic into links. Source: https://github.com/Shopify/toxiproxy#toxics"""
        for link in links:
            for stream in link.streams(direction):
                link.proxy.add_toxic(type=toxic, stream=stream, attributes=dict(attributes))

    def heal(self, links: Sequence[Link]) -> None:
        """Remove every toxic from links. This closes connections that have swallowed bytes."""
        for link in links:
            for name in link.proxy.toxics():
                link.proxy.destroy_toxic(name)


def _whose_bootstrap(fleet: LocalFleet, endpoint: Endpoint) -> ProxyId:
    return next(each for each in fleet.members if fleet.bootstrap_endpoint(each) == endpoint)


# ---- knocking: what a link does to bytes


@dataclass(frozen=True, slots=True)
class Knock:
    """The outcome of requests over a link.

    Args:
        took_s: seconds until all answers were complete; None without answers.
        broken: whether the connection was closed or reset instead.
    """

    took_s: float | None
    broken: bool = False
    bytes_out: int = 0
    bytes_in: int = 0


async def knock(at: Endpoint, limit_s: float, requests: int = 1, padding: int = 0) -> Knock:
    """Send N ApiVersions requests at once, and wait for all answers.

    The requests have an impossible version. A worker answers them by itself, whatever the brokers do.

    Args:
        padding: number of bytes to add to each request.
    """
    started_s = time.monotonic()
    requests_sent = b"".join(_api_versions(number, padding) for number in range(requests))
    answered = 0
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_connection(at.host, at.port)
            try:
                writer.write(requests_sent)
                for _ in range(requests):
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    answered += 4 + len(await reader.readexactly(size))
            finally:
                writer.transport.abort()
    except TimeoutError:
        return Knock(None)
    except (OSError, asyncio.IncompleteReadError):
        return Knock(None, broken=True)
    return Knock(time.monotonic() - started_s, bytes_out=len(requests_sent), bytes_in=answered)


def _api_versions(correlation_id: int, padding: int) -> bytes:
    """A complete ApiVersions request. Source: RequestHeader.json v2; ApiVersionsRequest.json"""
    client_id = _CLIENT_ID + b"." * padding
    header = struct.pack(">hhih", _API_VERSIONS, _IMPOSSIBLE_VERSION, correlation_id, len(client_id))
    frame = header + client_id + b"\0"
    return struct.pack(">i", len(frame)) + frame


async def hang_up(at: Endpoint, limit_s: float) -> float | None:
    """Send invalid bytes to a member's peer port, so that the member closes the connection.

    Returns: seconds until the connection was closed; None if it stayed open.
    """
    started_s = time.monotonic()
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_connection(at.host, at.port)
            try:
                writer.write(b"\xff" * 16)
                while await reader.read(4096):
                    pass
            finally:
                writer.transport.abort()
    except TimeoutError:
        return None
    except OSError:
        pass
    return time.monotonic() - started_s
