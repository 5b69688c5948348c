"""Kafka, the peers and a fleet of one member, all running, each behind an address of its own."""

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
from benchmarks.peers import Peer, PeerLine, Places
from benchmarks.results import DIRECT, FLEET, FLEET_OF_TWO, FLEET_PURE, Say
from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.ports import free_ports
from fleet.runtime.child import MODULES
from tools import compiled

_BROKERS: Final = (1, 2, 3)
WORKERS: Final[Mapping[str, int]] = MappingProxyType({FLEET: 1, FLEET_PURE: 1, FLEET_OF_TWO: 2})
"""The fleets, by name, and how many workers their member has."""
_LIMIT_S: Final = 30.0
_TLS: Final = "tls"
"""The brokers' listener for whoever speaks TLS to them."""
PLAINTEXT: Final[Mapping[str, str]] = MappingProxyType({})


def _nothing() -> tuple[int, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Target:
    """One way from a client to the brokers.

    Args:
        proxies: the processes that bytes pass through.
        member: these, and those that belong to them.
        security: settings of librdkafka, for a way that wants TLS.
    """

    name: str
    bootstrap_servers: str
    proxies: Callable[[], tuple[int, ...]] = _nothing
    member: Callable[[], tuple[int, ...]] = _nothing
    security: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seal:
    """TLS on the way: of all targets at the clients' side.

    Args:
        authority: who has issued the certificate.
        certificate: of everybody here, with its key; PEM.
        to_brokers: whether proxies speak it to the brokers, too.
    """

    authority: Path
    certificate: Path
    to_brokers: bool

    @property
    def security(self) -> Mapping[str, str]:
        """What clients are given."""
        return {"security.protocol": "ssl", "ssl.ca.location": str(self.authority)}

    @property
    def properties(self) -> Mapping[str, str]:
        """What brokers are given."""
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.certificate)}

    @property
    def files(self) -> Mapping[str, Path]:
        """What a peer may be told of, by name."""
        return {"certificate": self.certificate, "authority": self.authority}

    @property
    def of_fleet(self) -> Mapping[str, Mapping[str, object]]:
        """What a fleet is given."""
        own = {"certificate": str(self.certificate), "key": str(self.certificate)}
        upstream = {"tls": {"ca": str(self.authority)}} if self.to_brokers else {}
        return {"listener_tls": own, "upstream": upstream}


class Stage:
    """What is running: the targets, and the topics that their clients use."""

    def __init__(self, kafka: KafkaCluster, targets: Sequence[Target]) -> None:
        self.targets = tuple(targets)
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        self._topics = 0

    def create_topic(self, what: str, brokers: Sequence[int]) -> str:
        """A new topic with one partition on each of some brokers.

        Not replicated: that costs the brokers, and no proxy.
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
        """Wait until all targets answer, and see that clients stay with each.

        Raises: BenchError: one does not answer, or advertises an address that is not its own.
        """
        addresses = {target.name: advertised(target) for target in self.targets}
        for name, own in addresses.items():
            for other, others in addresses.items():
                if name != other and own & others:
                    raise BenchError(f"{name} advertises addresses of {other}: {sorted(own & others)}")


@contextmanager
def staged(
    folder: Path, names: Sequence[str], peers: dict[str, PeerLine], say: Say, seal: Seal | None = None
) -> Iterator[Stage]:
    """Start Kafka and the named targets.

    Args:
        names: of the targets: `direct`, those of the fleets and those of the peers.
        seal: None for plaintext.
    Raises: BenchError: a target is unknown or does not come up. DemoError: Kafka or the fleet does not.
    """
    known = (DIRECT, *WORKERS, *peers)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BenchError(f"unknown target {', '.join(unknown)}; there are {', '.join(known)}")
    raced = [name for name in names if name in peers]
    ports = iter(free_ports(len(raced) * len(_BROKERS))) if raced else iter(())
    listens = {name: {known: Endpoint("127.0.0.1", next(ports)) for known in _BROKERS} for name in raced}
    advertised = {name: listens[name] for name in raced if peers[name].forwards}
    with ExitStack() as running:
        say("starting three Kafka brokers")
        to_brokers = seal is not None and seal.to_brokers
        kafka = KafkaCluster(
            len(_BROKERS),
            folder / "kafka",
            more_listeners=advertised,
            secured=dict.fromkeys((_TLS, *(advertised if to_brokers else ())), "SSL") if seal else None,
            properties=seal.properties if seal else None,
        )
        running.enter_context(kafka)
        secured = [kafka.listener(_TLS, known) for known in _BROKERS] if seal else []
        security = seal.security if seal else {}
        targets = []
        for name in names:
            if name == DIRECT:
                targets.append(
                    Target(DIRECT, ",".join(map(str, secured or kafka.endpoints)), security=security)
                )
            elif name in WORKERS:
                endpoints = secured if to_brokers else kafka.endpoints
                options: Mapping[str, Any] = seal.of_fleet if seal else {}
                fleet = one_member(folder / name, name, endpoints, **options)
                targets.append(of_fleet(running.enter_context(fleet), name, security))
            else:
                brokers = {
                    known: kafka.listener(name, known) if name in advertised else Endpoint(at.host, at.port)
                    for known, at in kafka.brokers.items()
                }
                places = Places(listens[name], brokers, folder / name, seal.files if seal else {})
                peer = Peer(name, peers[name], places)
                running.callback(peer.stop)
                peer.start()
                targets.append(Target(name, peer.bootstrap_servers, peer.pids, peer.pids, security))
        stage = Stage(kafka, targets)
        stage.check()
        yield stage


def in_rounds(rounds: int, say: Say, folder: Path) -> Iterator[tuple[int, Say, Path]]:
    """The number of each round, how what is done in it is told, and a folder for what is started for it.

    Everything is: found that connecting 1,000 clients was 0.86 to 1.25 times the forwarder from one start to
    the next, of the same code, in the medians of eight and of sixteen runs. A folder whose round fails stays.
    """
    for number in range(rounds):
        place = folder / f"round-{number + 1}"
        place.mkdir()
        yield number, partial(_tell, say, f"round {number + 1} of {rounds}: "), place
        shutil.rmtree(place, ignore_errors=True)  # what brokers hold of one round are gigabytes


def _tell(say: Say, before: str, line: str) -> None:
    say(before + line)


def one_member(folder: Path, name: str, brokers: Sequence[Endpoint], **options: Any) -> LocalFleet:
    """A fleet of one member, by the name of a target; not started yet."""
    fleet = LocalFleet(folder, brokers, 1, workers=WORKERS[name], **options)
    if name != FLEET_PURE:
        fleet.through = dict.fromkeys(fleet.members, through_compiled())
    return fleet


@cache
def through_compiled() -> tuple[str, ...]:
    """What a fleet is started through to be compiled; nothing where that cannot be, which is said once."""
    try:
        return compiled.through()
    except compiled.NotCompiled as error:
        print(f"bench: all fleets are in pure Python: {error}", file=sys.stderr)
        return ()


def of_fleet(
    fleet: LocalFleet,
    name: str = FLEET,
    security: Mapping[str, str] = PLAINTEXT,
    broker_ids: Collection[int] = _BROKERS,
) -> Target:
    """A fleet of one member, once it owns these brokers."""
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


def in_turns(targets: Sequence[Target], runs: int, number: int = 0) -> Iterator[tuple[int, Target]]:
    """The targets in each turn of a round, with the turn's number: in each another target is the first.

    Args:
        runs: how many turns a round has.
        number: of the round; turns are numbered through all of them.
    """
    for turn in range(number * runs, (number + 1) * runs):
        first = turn % len(targets)
        for target in (*targets[first:], *targets[:first]):
            yield turn, target


def advertised(target: Target) -> set[str]:
    """The addresses of all brokers that a client of this target is told, once it is told of all.

    Raises: BenchError: it is not told, or a proxy ended.
    """
    client = AdminClient({"bootstrap.servers": target.bootstrap_servers, "log_level": 0, **target.security})
    deadline_s = time.monotonic() + _LIMIT_S
    while True:
        if target.proxies is not _nothing and not target.proxies():
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
