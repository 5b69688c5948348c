"""Storms: a thousand clients ask for all Metadata at once, as after a takeover; the brokers are scripted.

    python -m benchmarks.storm HOST:PORT CLIENTS [AUTHORITY]      the clients, as the benchmark starts them

They connect and ask for the brokers alone, print `ready`, wait for a line, ask for everything, and print how
many seconds later the last of them had all of its answer.
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

from benchmarks.cluster import Seal, Target, in_turns, of_fleet, one_member
from benchmarks.connections import allow_files
from benchmarks.cpu import cpu_s
from benchmarks.errors import BenchError
from benchmarks.metadata_client import ROOT, await_answer, check, client, trusting
from benchmarks.peers import Peer, PeerLine, Places
from benchmarks.results import DIRECT, FLEET, Sample
from benchmarks.scripted import host_of
from fleet.config.schema import parse_endpoint
from fleet.core.model import Endpoint, IdentitySpace
from fleet.drills.cluster.ports import free_ports
from fleet.drills.cluster.spawn import end, spawn
from fleet.proxy.wire.metadata import metadata_request

CLIENTS: Final = 1_000
Case: TypeAlias = tuple[int, int]
"""Brokers and partitions."""
RUNS: Final[Mapping[Case, int]] = MappingProxyType({(3, 10): 4, (100, 10_000): 4, (1_000, 100_000): 2})
"""The cases, and how many times each comes in a round."""
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
    seal: Seal | None = None,
) -> Iterator[Sample]:
    """Each case with each target; measures end with the brokers and partitions.

    Args:
        names: of the targets: `direct`, `fleet`, and of peers those that forward bytes, and are started here:
            who rewrites would have to know the brokers first. Others are left out.
        lines: the peers.
        runs: of each case, how many turns a round has.
        seal: TLS; its certificate is for all brokers of the cases, too, where they are to speak it.
    Raises: BenchError: a client was not answered, or a proxy ended. DemoError: the fleet does not come up.
    """
    allow_files()
    for (brokers, partitions), times in runs.items():
        with (
            tempfile.TemporaryDirectory(prefix="fleet-storm-") as folder,
            staged(Path(folder), brokers, partitions, names, lines, seal) as targets,
        ):
            for turn, target in in_turns(targets, rounds * times):
                for measure, value in storm(target, clients).items():
                    name = f"storm_{measure}_{brokers}x{partitions}"
                    yield Sample("metadata", name, target.name, turn, value)


def storm(target: Target, clients: int) -> dict[str, float]:
    """One storm. Returns: its measures; of proxies their CPU time and the most memory that they had."""
    server = target.bootstrap_servers.split(",")[0]
    what = f"a storm of {clients:,} clients"
    authority = [target.security["ssl.ca.location"]] if target.security else []
    arguments = (server, str(clients), *authority)
    with client("benchmarks.storm", *arguments, what=what, target=target.name) as go:
        proxies = target.proxies()
        for pid in proxies:
            # The peak begins anew. Source: proc_pid_clear_refs(5)
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        before_s = cpu_s(proxies)
        line = go()
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
    seal: Seal | None = None,
) -> Iterator[Sequence[Target]]:
    """The scripted brokers, and in front of them, as they are named, peers that forward, and one member.

    Clients are at the brokers, too, unless those are to speak no TLS and clients are.
    """
    raced = {name: line for name, line in lines.items() if name in names and line.forwards and line.start}
    scripted, *ports = free_ports(1 + 3 * len(raced))
    known = range(1, brokers + 1)
    with ExitStack() as running:
        arguments = ["-m", "benchmarks.scripted", str(scripted), str(brokers), str(partitions)]
        security = seal.security if seal else {}
        if seal and seal.to_brokers:
            arguments.append(str(seal.certificate))
        process = spawn([sys.executable, *arguments], folder / "brokers.log", cwd=ROOT)
        running.callback(end, [process], 0.0)
        there = Endpoint(host_of(1), scripted)
        straight = seal is None or seal.to_brokers
        await_answer(there, trusting(security) if straight else None)
        targets = [Target(DIRECT, str(there), security=security)] if straight and DIRECT in names else []
        for number, (name, line) in enumerate(raced.items()):
            free = ports[3 * number : 3 * number + 3]
            targets.append(_peer(running, name, line, folder / name, there, free, seal))
        if FLEET in names:
            options: Mapping[str, Any] = seal.of_fleet if seal else {}
            space = IdentitySpace(first_id=1, count=brokers)
            member = one_member(folder / FLEET, FLEET, [there], identities=space, **options)
            targets.append(of_fleet(running.enter_context(member), FLEET, security, known))
        yield targets


def _peer(
    running: ExitStack,
    name: str,
    line: PeerLine,
    folder: Path,
    there: Endpoint,
    ports: Sequence[int],
    seal: Seal | None,
) -> Target:
    listens = {known: Endpoint("127.0.0.1", port) for known, port in enumerate(ports, 1)}
    security = seal.security if seal else {}
    places = Places(listens, dict.fromkeys(listens, there), folder, seal.files if seal else {})
    peer = Peer(name, line, places)
    running.callback(peer.stop)
    peer.start()
    await_answer(listens[1], trusting(security))
    return Target(name, peer.bootstrap_servers, peer.pids, peer.pids, security)


# ---- the clients


class _Client(asyncio.Protocol):
    """Counts what it is sent, and keeps none of it but the length and the correlation id."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._answered: asyncio.Future[None] | None = None
        self._head, self._received = b"", 0

    async def ask(self, frame: bytes) -> None:
        """Raises: BenchError: the connection is closed instead, or another question is answered."""
        self._answered = asyncio.get_running_loop().create_future()
        self._head, self._received = b"", 0
        self.transport.write(frame)
        await self._answered
        if self._head[4:] != frame[8:12]:
            raise BenchError("an answer to another question")

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if len(self._head) < 8:
            self._head += data[: 8 - len(self._head)]
        whole = len(self._head) == 8 and self._received == 4 + int.from_bytes(self._head[:4], "big")
        if self._answered is not None and whole:
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(BenchError(f"a client is hung up on: {exc}"))


async def clients(endpoint: Endpoint, count: int, authority: str | None = None) -> None:
    """All of it; prints. ``authority``: for TLS, the file with who has issued the certificate."""
    context = trusting({} if authority is None else {"ssl.ca.location": authority})
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
    allow_files()
    uvloop.run(clients(parse_endpoint(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
