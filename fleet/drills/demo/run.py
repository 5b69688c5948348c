"""The whole demo: Kafka, a fleet, clients, kills, and the audit; everything it starts, it stops."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.admin.documents import OwnershipDocument
from fleet.core.errors import DemoError
from fleet.core.model import BrokerId, Endpoint, IdentitySpace, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.kafka_jars import find_libs
from fleet.drills.demo.result import Result, Round
from fleet.drills.demo.rounds import Rounds
from fleet.drills.demo.view import Picture, View
from fleet.drills.workload.audit import audit
from fleet.drills.workload.clients import ClientSettings, Workload, WorkloadSpec, read_log
from fleet.drills.workload.prober import Prober
from fleet.drills.workload.waiting import alongside, in_thread

PARTITIONS = 12
_PICTURE_EVERY_S = 0.25
_SPARE_IDENTITIES = 4


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for.

    Args:
        brokers: an existing cluster to use; empty to start one of `brokers_count`.
        kills: whom to kill in each round: "leader", "follower" or a member's id.
        duration_s: the clients run at least for so long.
        data_dir: where Kafka's data stays for the next time; None for a temporary folder.
        timing: values that differ from the defaults of `fleet.config.Timing`.
        kafka_libs: the folder of Kafka's jars; None to search, see `find_libs`.
    """

    proxies: int = 3
    brokers_count: int = 3
    brokers: tuple[Endpoint, ...] = ()
    kills: tuple[str, ...] = ("leader", "follower")
    client: ClientSettings = "default"
    duration_s: float = 0.0
    data_dir: Path | None = None
    timing: Mapping[str, float] = field(default_factory=dict)
    kafka_libs: Path | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A fleet that runs in front of brokers that run."""

    fleet: LocalFleet
    brokers: str
    broker_ids: frozenset[BrokerId]
    folder: Path


@asynccontextmanager
async def stage(options: Options, view: View) -> AsyncIterator[Stage]:
    """Start Kafka (or look at the one that there is) and a fleet in front of it; stop both in the end.

    Raises: DemoError: something does not come up.
    """
    folder = options.data_dir or Path(tempfile.mkdtemp(prefix="fleet-demo-"))
    run_folder = folder / time.strftime("run-%Y%m%d-%H%M%S") if options.data_dir else folder
    run_folder.mkdir(parents=True, exist_ok=True)
    cluster: KafkaCluster | None = None
    fleet: LocalFleet | None = None
    try:
        if options.brokers:
            endpoints = options.brokers
        else:
            view.say(f"starting {options.brokers_count} Kafka brokers")
            ephemeral = options.data_dir is None
            libs = options.kafka_libs or find_libs()
            cluster = KafkaCluster(options.brokers_count, folder / "kafka", libs=libs, ephemeral=ephemeral)
            endpoints = cluster.endpoints
            cluster.launch()
            await in_thread(cluster.await_ready)
        broker_ids = await in_thread(lambda: known_brokers(endpoints))
        view.say(f"starting {options.proxies} proxies")
        fleet = LocalFleet(
            run_folder / "fleet",
            endpoints,
            options.proxies,
            identities=identities_for(broker_ids),
            timing=options.timing,
        )
        fleet.start()
        await in_thread(fleet.await_ready)
        await in_thread(lambda: fleet.await_settled(broker_ids))
        yield Stage(fleet, ",".join(map(str, endpoints)), broker_ids, run_folder)
    finally:
        if fleet is not None:
            fleet.close()
            fleet.remove_data()
        if cluster is not None:
            cluster.stop()
        view.say(f"everything is stopped; the logs are in {folder}")


async def perform(running: Stage, options: Options, view: View) -> Result:
    """Run clients through a fleet, kill members one after the other, and audit what came through.

    Raises: DemoError: the clients break, or a killed member does not come back.
    """
    fleet = running.fleet
    topic = f"fleet-demo-{time.time_ns() // 1_000_000}"
    await in_thread(lambda: create_topic(fleet.bootstrap(), topic, min(3, len(running.broker_ids))))
    workload = Workload(
        WorkloadSpec(
            fleet.bootstrap(), topic, str(running.folder), topic, partitions=PARTITIONS, client=options.client
        )
    )
    prober = Prober({each: fleet.bootstrap_endpoint(each) for each in fleet.members}, fleet.owner_of)
    rounds = Rounds(fleet, running.broker_ids, workload, prober)
    watching = [prober.run()]
    if view.wants_pictures:
        watching.append(draw(fleet, prober, rounds, view))
    async with alongside(*watching):
        try:
            view.say("a producer and a consumer group start, through the proxies")
            workload.start()
            started_s = time.monotonic()
            await rounds.flowing()
            measured = [
                await one_round(rounds, wish, number, options, view)
                for number, wish in enumerate(options.kills)
            ]
            await asyncio.sleep(max(0.0, started_s + options.duration_s - time.monotonic()))
            view.say("the producer stops; the consumer reads to the end of the log")
            await in_thread(workload.stop)
            view.say("the audit reads the log from the brokers themselves")
            log = await in_thread(lambda: read_log(running.brokers, topic))
            verdict = audit(workload.acknowledged(), workload.received(), log)
        finally:
            workload.kill()
    if options.brokers:
        await in_thread(lambda: delete_topic(running.brokers, topic))
    return Result(verdict, tuple(measured), tuple(unfinished(fleet, measured)))


async def one_round(rounds: Rounds, wish: str, number: int, options: Options, view: View) -> Round:
    """Kill one member, tell what came of it, and bring it back."""
    victim, was_leader = await rounds.aim(wish)
    view.say(f"round {number + 1}: SIGKILL to {victim}, {'the Raft leader' if was_leader else 'a follower'}")
    measured = await rounds.kill(victim, was_leader)
    view.round_over(measured)
    view.say(f"{victim} starts again")
    await rounds.bring_back(victim)
    return measured


async def draw(fleet: LocalFleet, prober: Prober, rounds: Rounds, view: View) -> None:
    """Show a new picture a few times a second, until cancelled."""
    seen: list[tuple[float, int, int]] = []
    while True:
        documents: dict[ProxyId, OwnershipDocument | None] = {}
        for proxy_id in fleet.members:
            alive = proxy_id in fleet.running
            ask = partial(fleet.try_ownership, proxy_id, 0.5)
            documents[proxy_id] = await in_thread(ask) if alive else None
        rounds.traffic.refresh()
        acknowledged, received = len(rounds.traffic.acknowledged.events), len(rounds.traffic.received.events)
        seen = [*seen[-4:], (time.monotonic(), acknowledged, received)]
        passed_s = max(seen[-1][0] - seen[0][0], 0.001)
        told = next((proxy_id for proxy_id, document in documents.items() if document is not None), None)
        view.show(
            Picture(
                members=documents,
                advertised=prober.owners(told) if told else {},
                acknowledged=acknowledged,
                received=received,
                produced_per_s=(acknowledged - seen[0][1]) / passed_s,
                consumed_per_s=(received - seen[0][2]) / passed_s,
            )
        )
        await asyncio.sleep(_PICTURE_EVERY_S)


def unfinished(fleet: LocalFleet, rounds: Sequence[Round]) -> list[str]:
    """What did not happen in time, in sentences."""
    voters = fleet.settings.voters
    said = []
    for number, each in enumerate(rounds, 1):
        majority = 2 * len(set(voters) - {each.killed}) > len(voters)
        for value, what in (
            (each.detected_ms, "was not suspected by every survivor"),
            (each.advertised_ms, "was not advertised around by every survivor"),
            (0.0 if not majority else each.committed_ms, "still owned something by what Raft had committed"),
        ):
            if value is None:
                said.append(f"round {number}: {each.killed} {what}")
    return said


def known_brokers(endpoints: Sequence[Endpoint]) -> frozenset[BrokerId]:
    """The ids of a cluster's brokers. Raises: DemoError: it does not answer."""
    client = AdminClient({"bootstrap.servers": ",".join(map(str, endpoints)), "log_level": 0})
    try:
        return frozenset(client.list_topics(timeout=5).brokers)
    except KafkaException as error:
        where = ", ".join(map(str, endpoints))
        raise DemoError(f"no Kafka broker answers at {where}: {error.args[0].str()}") from error


def identities_for(broker_ids: frozenset[BrokerId]) -> IdentitySpace:
    """Ports for the brokers that there are, and where their ids are close together for a few more."""
    first, last = min(broker_ids), max(broker_ids)
    if last - first < 2 * len(broker_ids):
        return IdentitySpace(first, last - first + 1 + _SPARE_IDENTITIES)
    return IdentitySpace(explicit=tuple((known, offset) for offset, known in enumerate(sorted(broker_ids))))


def create_topic(bootstrap_servers: str, topic: str, replication: int, partitions: int = PARTITIONS) -> None:
    """Create the demo's topic. Raises: DemoError: it cannot be."""
    client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        client.create_topics([NewTopic(topic, partitions, replication)])[topic].result(30)
    except (KafkaException, TimeoutError) as error:
        raise DemoError(f"topic {topic} cannot be created through the fleet: {error}") from error


def delete_topic(bootstrap_servers: str, topic: str) -> None:
    """Leave nothing behind on somebody else's cluster. Raises: DemoError: it cannot be deleted."""
    client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        client.delete_topics([topic])[topic].result(30)
    except (KafkaException, TimeoutError) as error:
        raise DemoError(f"topic {topic} cannot be deleted: {error}") from error
