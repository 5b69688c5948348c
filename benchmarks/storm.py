"""Storms: a thousand clients request all Metadata at once, as after a takeover; the brokers are scripted.

    python -m benchmarks.storm HOST:PORT CLIENTS [AUTHORITY]      the clients, as the benchmark starts them

The clients connect and request the brokers only, print `ready`, wait for a line, and request everything. Then
they print how many seconds later the last client had its whole response.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

import uvloop

from benchmarks.cluster import Target, TlsFiles, fleet_target, rotate_targets, single_member_fleet
from benchmarks.connections import raise_file_limit
from benchmarks.cpu import cpu_s
from benchmarks.errors import BenchError
from benchmarks.metadata_client import ROOT, await_answer, check, client, client_context
from benchmarks.peers import Peer, PeerLine, PeerPlaces
from benchmarks.results import DIRECT, FLEET, Sample
from benchmarks.scripted import host_of
from fleet.config.schema import parse_endpoint
from fleet.core.model import Endpoint, IdentitySpace
from fleet.drills.cluster.ports import free_ports
from fleet.drills.cluster.spawn import end, spawn
from fleet.proxy.wire.metadata import metadata_request

CLIENTS: Final = 1_000
Case: TypeAlias = tuple[int, int]
"""Numbers of brokers and of partitions."""
RUNS: Final[Mapping[Case, int]] = MappingProxyType({(3, 10): 4, (100, 10_000): 4, (1_000, 100_000): 2})
"""The cases, and how often each is measured in a round."""
_AT_ONCE: Final = 64
_LIMIT_S: Final = 120.0
_PAUSE_S: Final = 0.05


def samples(
    rounds: int,
    names: Collection[str],
    lines: Mapping[str, PeerLine],
    *,
    clients: int = CLIENTS,
    runs: Mapping[Case, int] = RUNS,
    tls_files: TlsFiles | None = None,
) -> Iterator[Sample]:
    """Measure each case with each target; names of measures end with the brokers and partitions.

    Args:
        names: of the targets: `direct`, `fleet`, and the peers that forward bytes and have a command. A peer
            that rewrites responses would have to know the brokers first. Other targets are left out.
        lines: the peers.
        runs: how many turns a round has, for each case.
        tls_files: TLS; its certificate is also for all brokers of the cases, if they speak TLS.
    Raises: BenchError: a client was not answered, or a proxy ended. DemoError: the fleet does not come up.
    """
    raise_file_limit()
    for (brokers, partitions), times in runs.items():
        with (
            tempfile.TemporaryDirectory(prefix="fleet-storm-") as folder,
            staged(Path(folder), brokers, partitions, names, lines, tls_files) as targets,
        ):
            for turn, target in rotate_targets(targets, rounds * times):
                for measure, value in storm(target, clients).items():
                    name = f"storm_{measure}_{brokers}x{partitions}"
                    yield Sample("metadata", name, target.name, turn, value)


def storm(target: Target, clients: int) -> dict[str, float]:
    """Measure one storm. Returns: its measures; of proxies the CPU time and the peak of memory."""
    server = target.bootstrap_servers.split(",")[0]
    what = f"a storm of {clients:,} clients"
    authority = [target.security["ssl.ca.location"]] if target.security else []
    arguments = (server, str(clients), *authority)
    with client("benchmarks.storm", *arguments, what=what, target=target.name) as start_work:
        proxies = target.proxies()
        for pid in proxies:
            # Reset the peak. Source: proc_pid_clear_refs(5)
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        before_s = cpu_s(proxies)
        line = start_work()
        used_s = cpu_s(proxies) - before_s
    found = {"ms": 1000 * float(line)}
    if proxies:
        found["cpu_us"] = 1e6 * used_s / clients
        found["peak_mib"] = sum(map(_peak_kib, proxies)) / 1024
    return found


def _peak_kib(pid: int) -> int:
    """Source: proc_pid_status(5)"""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


@contextmanager
def staged(
    folder: Path,
    brokers: int,
    partitions: int,
    names: Collection[str],
    lines: Mapping[str, PeerLine],
    tls_files: TlsFiles | None = None,
) -> Iterator[Sequence[Target]]:
    """The scripted brokers, and in front of them the named targets: peers that forward, and one member.

    `direct` is left out if clients speak TLS and the brokers do not.
    """
    raced = {name: line for name, line in lines.items() if name in names and line.forwards and line.start}
    scripted, *ports = free_ports(1 + 3 * len(raced))
    known = range(1, brokers + 1)
    with ExitStack() as running:
        arguments = ["-m", "benchmarks.scripted", str(scripted), str(brokers), str(partitions)]
        security = tls_files.security if tls_files else {}
        if tls_files and tls_files.to_brokers:
            arguments.append(str(tls_files.certificate))
        process = spawn([sys.executable, *arguments], folder / "brokers.log", cwd=ROOT)
        running.callback(end, [process], 0.0)
        there = Endpoint(host_of(1), scripted)
        straight = tls_files is None or tls_files.to_brokers
        await_answer(there, client_context(security) if straight else None)
        targets = [Target(DIRECT, str(there), security=security)] if straight and DIRECT in names else []
        for number, (name, line) in enumerate(raced.items()):
            free = ports[3 * number : 3 * number + 3]
            targets.append(_peer(running, name, line, folder / name, there, free, tls_files))
        if FLEET in names:
            options: Mapping[str, Any] = tls_files.fleet_settings if tls_files else {}
            space = IdentitySpace(first_id=1, count=brokers)
            member = single_member_fleet(folder / FLEET, FLEET, [there], identities=space, **options)
            targets.append(fleet_target(running.enter_context(member), FLEET, security, known))
        yield targets


def _peer(
    running: ExitStack,
    name: str,
    line: PeerLine,
    folder: Path,
    there: Endpoint,
    ports: Sequence[int],
    tls_files: TlsFiles | None,
) -> Target:
    listens = {known: Endpoint("127.0.0.1", port) for known, port in enumerate(ports, 1)}
    security = tls_files.security if tls_files else {}
    places = PeerPlaces(listens, dict.fromkeys(listens, there), folder, tls_files.files if tls_files else {})
    peer = Peer(name, line, places)
    running.callback(peer.stop)
    peer.start()
    await_answer(listens[1], client_context(security))
    return Target(name, peer.bootstrap_servers, peer.pids, peer.pids, security)


# ---- the clients


class _Client(asyncio.Protocol):
    """Counts the bytes that it receives, and keeps only the length and the correlation id."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._answered: asyncio.Future[None] | None = None
        self._head, self._received = b"", 0

    async def ask(self, frame: bytes) -> None:
        """Raises: BenchError: the connection is closed, or the response belongs to another request."""
        self._answered = asyncio.get_running_loop().create_future()
        self._head, self._received = b"", 0
        self.transport.write(frame)
        await self._answered
        if self._head[4:] != frame[8:12]:
            raise BenchError("a response to another request")

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if len(self._head) < 8:
            self._head += data[: 8 - len(self._head)]
        whole = len(self._head) == 8 and self._received == 4 + int.from_bytes(self._head[:4], "big")
        if self._answered is not None and whole:
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(BenchError(f"the server closed a client's connection: {exc}"))


async def clients(endpoint: Endpoint, count: int, authority: str | None = None) -> None:
    """Run all clients, and print. ``authority``: for TLS, the file of the certificate's authority."""
    context = client_context({} if authority is None else {"ssl.ca.location": authority})
    loop = asyncio.get_running_loop()
    made: list[_Client] = []
    async with asyncio.timeout(_LIMIT_S):
        await check(endpoint, all_topics=True, context=context)
        for _ in range(0, count, _AT_ONCE):
            some = range(min(_AT_ONCE, count - len(made)))
            there = [loop.create_connection(_Client, endpoint.host, endpoint.port, ssl=context) for _ in some]
            made += [protocol for _, protocol in await asyncio.gather(*there)]
            await asyncio.gather(*(each.ask(metadata_request(1)) for each in made[-len(some) :]))
        print("ready", flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
    async with asyncio.timeout(_LIMIT_S):
        began_s = time.perf_counter()
        await asyncio.gather(*(each.ask(metadata_request(2, all_topics=True)) for each in made))
        print(time.perf_counter() - began_s, flush=True)


if __name__ == "__main__":
    raise_file_limit()
    uvloop.run(clients(parse_endpoint(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
