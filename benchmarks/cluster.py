"""Kafka, the peers and a fleet of one member, all running, each at an address of its own."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.errors import BenchError
from benchmarks.peers import Peer, PeerLine, PeerPlaces
from benchmarks.results import DIRECT, FLEET, FLEET_OF_TWO, FLEET_PURE, Say
from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.ports import free_ports
from fleet.runtime.child import MODULES
from tools import compiled

_BROKERS: Final = (1, 2, 3)
WORKERS: Final[Mapping[str, int]] = MappingProxyType({FLEET: 1, FLEET_PURE: 1, FLEET_OF_TWO: 2})
"""The fleets by name, and the number of workers of each fleet's member."""
_LIMIT_S: Final = 30.0
_TLS: Final = "tls"
"""The brokers' listener for clients and proxies that speak TLS to them."""
PLAINTEXT: Final[Mapping[str, str]] = MappingProxyType({})


def _no_pids() -> tuple[int, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Target:
    """One path from a client to the brokers.

    Args:
        proxies: the processes that bytes pass through.
        member: the same processes, and all others of the member.
        security: settings of librdkafka, for a path that requires TLS.
    """

    name: str
    bootstrap_servers: str
    proxies: Callable[[], tuple[int, ...]] = _no_pids
    member: Callable[[], tuple[int, ...]] = _no_pids
    security: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files for TLS on the paths; all targets speak TLS to clients.

    Args:
        authority: the certificate of the authority that issued `certificate`.
        certificate: the certificate of all servers on this machine, with its key; PEM.
        to_brokers: whether proxies also speak TLS to the brokers.
    """

    authority: Path
    certificate: Path
    to_brokers: bool

    @property
    def security(self) -> Mapping[str, str]:
        """The settings of clients, for librdkafka."""
        return {"security.protocol": "ssl", "ssl.ca.location": str(self.authority)}

    @property
    def properties(self) -> Mapping[str, str]:
        """The settings of brokers."""
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.certificate)}

    @property
    def files(self) -> Mapping[str, Path]:
        """The files that a peer's configuration can name, by name."""
        return {"certificate": self.certificate, "authority": self.authority}

    @property
    def fleet_settings(self) -> Mapping[str, Mapping[str, object]]:
        """The settings of a fleet."""
        own = {"certificate": str(self.certificate), "key": str(self.certificate)}
        upstream = {"tls": {"ca": str(self.authority)}} if self.to_brokers else {}
        return {"listener_tls": own, "upstream": upstream}


class Stage:
    """The running targets, and the topics that their clients use."""

    def __init__(self, kafka: KafkaCluster, targets: Sequence[Target]) -> None:
        self.targets = tuple(targets)
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        self._topics = 0

    def create_topic(self, what: str, brokers: Sequence[int]) -> str:
        """Create a topic with one partition on each of some brokers.

        The topic is not replicated: replication costs the brokers, and no proxy.
        """
        self._topics += 1
        name = f"{what}-{self._topics}"
        replicas = [[broker_id] for broker_id in brokers]
        settings = {"file.delete.delay.ms": "0"}
        topic = NewTopic(name, len(replicas), replica_assignment=replicas, config=settings)
        for created in self._admin.create_topics([topic]).values():
            created.result(_LIMIT_S)
        return name

    def delete_topic(self, name: str) -> None:
        for deleted in self._admin.delete_topics([name]).values():
            deleted.result(_LIMIT_S)

    def check(self) -> None:
        """Wait until all targets answer, and check that clients stay with each target.

        Raises: BenchError: a target does not answer, or advertises an address of another target.
        """
        addresses = {target.name: advertised_addresses(target) for target in self.targets}
        for name, own in addresses.items():
            for other, others in addresses.items():
                if name != other and own & others:
                    raise BenchError(f"{name} advertises addresses of {other}: {sorted(own & others)}")


@contextmanager
def staged(
    folder: Path,
    names: Sequence[str],
    peers: dict[str, PeerLine],
    say: Say,
    tls_files: TlsFiles | None = None,
) -> Iterator[Stage]:
    """Start Kafka and the named targets.

    Args:
        names: of the targets: `direct`, fleets and peers.
        tls_files: None for plaintext.
    Raises: BenchError: a target is unknown or does not come up. DemoError: Kafka or the fleet does not.
    """
    known = (DIRECT, *WORKERS, *peers)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BenchError(f"unknown target {', '.join(unknown)}; there are {', '.join(known)}")
    raced = [name for name in names if name in peers]
    ports = iter(free_ports(len(raced) * len(_BROKERS))) if raced else iter(())
    listens = {name: {known: Endpoint("127.0.0.1", next(ports)) for known in _BROKERS} for name in raced}
    forwarded = {name: listens[name] for name in raced if peers[name].forwards}
    with ExitStack() as running:
        say("starting three Kafka brokers")
        to_brokers = tls_files is not None and tls_files.to_brokers
        kafka = KafkaCluster(
            len(_BROKERS),
            folder / "kafka",
            more_listeners=forwarded,
            secured=dict.fromkeys((_TLS, *(forwarded if to_brokers else ())), "SSL") if tls_files else None,
            properties=tls_files.properties if tls_files else None,
        )
        running.enter_context(kafka)
        secured = [kafka.listener(_TLS, known) for known in _BROKERS] if tls_files else []
        security = tls_files.security if tls_files else {}
        targets = []
        for name in names:
            if name == DIRECT:
                targets.append(
                    Target(DIRECT, ",".join(map(str, secured or kafka.endpoints)), security=security)
                )
            elif name in WORKERS:
                endpoints = secured if to_brokers else kafka.endpoints
                options: Mapping[str, Any] = tls_files.fleet_settings if tls_files else {}
                fleet = single_member_fleet(folder / name, name, endpoints, **options)
                targets.append(fleet_target(running.enter_context(fleet), name, security))
            else:
                brokers = {
                    known: kafka.listener(name, known) if name in forwarded else Endpoint(at.host, at.port)
                    for known, at in kafka.brokers.items()
                }
                places = PeerPlaces(
                    listens[name], brokers, folder / name, tls_files.files if tls_files else {}
                )
                peer = Peer(name, peers[name], places)
                running.callback(peer.stop)
                peer.start()
                targets.append(Target(name, peer.bootstrap_servers, peer.pids, peer.pids, security))
        stage = Stage(kafka, targets)
        stage.check()
        yield stage


def iterate_rounds(rounds: int, say: Say, folder: Path) -> Iterator[tuple[int, Say, Path]]:
    """For each round its number, a `Say` that prefixes lines with the round, and a folder for its processes.

    Everything is started again in each round. Found: the time to connect 1,000 clients was 0.86 to 1.25 times
    the forwarder's from one start to the next, with the same code, in medians of eight and of sixteen runs.
    A round that fails keeps its folder.
    """
    for number in range(rounds):
        place = folder / f"round-{number + 1}"
        place.mkdir()
        yield number, partial(_say_prefixed, say, f"round {number + 1} of {rounds}: "), place
        shutil.rmtree(place, ignore_errors=True)  # brokers hold gigabytes of one round


def _say_prefixed(say: Say, before: str, line: str) -> None:
    say(before + line)


def single_member_fleet(folder: Path, name: str, brokers: Sequence[Endpoint], **options: Any) -> LocalFleet:
    """A fleet of one member, named after a target; not started yet."""
    fleet = LocalFleet(folder, brokers, 1, workers=WORKERS[name], **options)
    if name != FLEET_PURE:
        fleet.through = dict.fromkeys(fleet.members, compiled_launcher())
    return fleet


@cache
def compiled_launcher() -> tuple[str, ...]:
    """The launcher that starts a compiled fleet; empty, with one message, if the code cannot be compiled."""
    try:
        return compiled.launcher()
    except compiled.NotCompiled as error:
        print(f"bench: all fleets are in pure Python: {error}", file=sys.stderr)
        return ()


def fleet_target(
    fleet: LocalFleet,
    name: str = FLEET,
    security: Mapping[str, str] = PLAINTEXT,
    broker_ids: Collection[int] = _BROKERS,
) -> Target:
    """A fleet of one member as a target, once the member owns these brokers."""
    fleet.await_settled(frozenset(broker_ids))
    (only,) = fleet.members
    supervisor = psutil.Process(fleet.pid(only))

    def children() -> list[psutil.Process]:
        try:
            return supervisor.children()
        except psutil.NoSuchProcess as error:
            raise BenchError(f"{only} has ended; see {fleet.log(only)}") from error

    def member() -> tuple[int, ...]:
        return (supervisor.pid, *(child.pid for child in children()))

    def workers() -> tuple[int, ...]:
        return tuple(each.pid for each in children() if MODULES["worker"] in each.cmdline())

    return Target(name, fleet.bootstrap(), workers, member, security)


def rotate_targets(targets: Sequence[Target], runs: int, number: int = 0) -> Iterator[tuple[int, Target]]:
    """The targets in each turn of a round, with the turn's number. Each turn begins with another target.

    Args:
        runs: how many turns a round has.
        number: the round's number; turns are numbered through all rounds.
    """
    for turn in range(number * runs, (number + 1) * runs):
        first = turn % len(targets)
        for target in (*targets[first:], *targets[:first]):
            yield turn, target


def advertised_addresses(target: Target) -> set[str]:
    """The addresses of all brokers that a target advertises to its clients, once it advertises all brokers.

    Raises: BenchError: the target does not answer or does not know all brokers, or a proxy ended.
    """
    client = AdminClient({"bootstrap.servers": target.bootstrap_servers, "log_level": 0, **target.security})
    deadline_s = time.monotonic() + _LIMIT_S
    while True:
        if target.proxies is not _no_pids and not target.proxies():
            raise BenchError(f"{target.name} has no process that bytes pass through")
        try:
            known = client.list_topics(timeout=2.0).brokers.values()
            if {each.id for each in known} == set(_BROKERS):
                return {f"{each.host}:{each.port}" for each in known}
        except KafkaException as error:
            if time.monotonic() > deadline_s:
                raise BenchError(f"{target.name} does not answer: {error}") from error
        if time.monotonic() > deadline_s:
            raise BenchError(f"{target.name} does not know all brokers")
