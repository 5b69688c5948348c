"""The whole demo: starts Kafka, a fleet and clients, kills members, audits, and stops everything."""

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
from fleet.drills.cluster.kafka_jars import CHECKOUT_LIBS
from fleet.drills.demo.result import Result, Round
from fleet.drills.demo.rounds import Rounds
from fleet.drills.demo.view import Picture, View
from fleet.drills.workload.audit import audit
from fleet.drills.workload.clients import ClientSettings, Workload, WorkloadSpec, read_log
from fleet.drills.workload.prober import Prober
from fleet.drills.workload.waiting import background_tasks, in_thread

PARTITIONS = 12
_PICTURE_INTERVAL_S = 0.25
_SPARE_IDENTITIES = 4


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line.

    Args:
        brokers: a running cluster to use; empty to start a cluster of `brokers_count` brokers.
        kills: the member to kill in each round: "leader", "follower" or a member's id.
        duration_s: minimum time that the clients run.
        data_dir: folder in which Kafka's data stays for the next run; None for a temporary folder.
        timing: values that differ from the defaults of `fleet.config.Timing`.
        kafka_libs: the folder of Kafka's jars, if a cluster is to be started.
    """

    proxies: int = 3
    brokers_count: int = 3
    brokers: tuple[Endpoint, ...] = ()
    kills: tuple[str, ...] = ("leader", "follower")
    client: ClientSettings = "default"
    duration_s: float = 0.0
    data_dir: Path | None = None
    timing: Mapping[str, float] = field(default_factory=dict)
    kafka_libs: Path = CHECKOUT_LIBS


@dataclass(frozen=True, slots=True)
class Stage:
    """A running fleet in front of running brokers."""

    fleet: LocalFleet
    brokers: str
    broker_ids: frozenset[BrokerId]
    folder: Path


@asynccontextmanager
async def stage(options: Options, view: View) -> AsyncIterator[Stage]:
    """Start Kafka, unless the options name a cluster, and a fleet in front of it. Stop both at the end.

    Raises: DemoError: there is no Kafka, or Kafka or the fleet is not ready in time.
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
            cluster = KafkaCluster(
                options.brokers_count, folder / "kafka", libs=options.kafka_libs, ephemeral=ephemeral
            )
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
        view.say(f"stopped everything; the logs are in {folder}")


async def perform(running: Stage, options: Options, view: View) -> Result:
    """Run clients through a fleet, kill members one after the other, and audit every record.

    Raises: DemoError: the clients fail, or a killed member does not come back.
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
    if view.shows_pictures:
        watching.append(draw(fleet, prober, rounds, view))
    async with background_tasks(*watching):
        try:
            view.say("starting a producer and a consumer group through the proxies")
            workload.start()
            started_s = time.monotonic()
            await rounds.await_flow()
            measured = [
                await run_round(rounds, target, number, view) for number, target in enumerate(options.kills)
            ]
            await asyncio.sleep(max(0.0, started_s + options.duration_s - time.monotonic()))
            view.say("stopping the producer; the consumer group reads to the end of the log")
            await in_thread(workload.stop)
            view.say("auditing: reading the log directly from the brokers")
            log = await in_thread(lambda: read_log(running.brokers, topic))
            verdict = audit(workload.acknowledged(), workload.received(), log)
        finally:
            workload.kill()
    if options.brokers:
        await in_thread(lambda: delete_topic(running.brokers, topic))
    return Result(verdict, tuple(measured), tuple(unfinished(fleet, measured)))


async def run_round(rounds: Rounds, target: str, number: int, view: View) -> Round:
    """Kill one member, report the takeover, and restart the member."""
    victim, was_leader = await rounds.aim(target)
    role = "the Raft leader" if was_leader else "a follower"
    view.say(f"round {number + 1}: sending SIGKILL to {victim}, {role}")
    measured = await rounds.kill(victim, was_leader)
    view.add_round(measured)
    view.say(f"restarting {victim}")
    await rounds.bring_back(victim)
    return measured


async def draw(fleet: LocalFleet, prober: Prober, rounds: Rounds, view: View) -> None:
    """Show a new picture several times per second, until cancelled."""
    totals: list[tuple[float, int, int]] = []
    while True:
        documents: dict[ProxyId, OwnershipDocument | None] = {}
        for proxy_id in fleet.members:
            alive = proxy_id in fleet.running
            query = partial(fleet.try_ownership, proxy_id, 0.5)
            documents[proxy_id] = await in_thread(query) if alive else None
        rounds.traffic.refresh()
        acknowledged, received = len(rounds.traffic.acknowledged.events), len(rounds.traffic.received.events)
        totals = [*totals[-4:], (time.monotonic(), acknowledged, received)]
        passed_s = max(totals[-1][0] - totals[0][0], 0.001)
        first = next((proxy_id for proxy_id, document in documents.items() if document is not None), None)
        view.show(
            Picture(
                members=documents,
                advertised=prober.owners(first) if first else {},
                acknowledged=acknowledged,
                received=received,
                produced_per_s=(acknowledged - totals[0][1]) / passed_s,
                consumed_per_s=(received - totals[0][2]) / passed_s,
            )
        )
        await asyncio.sleep(_PICTURE_INTERVAL_S)


def unfinished(fleet: LocalFleet, rounds: Sequence[Round]) -> list[str]:
    """Steps of takeovers that did not happen in time, in sentences."""
    voters = fleet.settings.voters
    sentences = []
    for number, each in enumerate(rounds, 1):
        majority = 2 * len(set(voters) - {each.killed}) > len(voters)
        for value, problem in (
            (each.detected_ms, f"not every survivor suspected {each.killed}"),
            (each.advertised_ms, f"not every survivor bypassed {each.killed}"),
            (0.0 if not majority else each.committed_ms, f"{each.killed} still owned a committed identity"),
        ):
            if value is None:
                sentences.append(f"round {number}: {problem}")
    return sentences


def known_brokers(endpoints: Sequence[Endpoint]) -> frozenset[BrokerId]:
    """The ids of a cluster's brokers. Raises: DemoError: no broker answers."""
    client = AdminClient({"bootstrap.servers": ",".join(map(str, endpoints)), "log_level": 0})
    try:
        return frozenset(client.list_topics(timeout=5).brokers)
    except KafkaException as error:
        where = ", ".join(map(str, endpoints))
        raise DemoError(f"no Kafka broker answers at {where}: {error.args[0].str()}") from error


def identities_for(broker_ids: frozenset[BrokerId]) -> IdentitySpace:
    """Identities for a cluster's brokers, with a few spare ones if the ids are close together."""
    first, last = min(broker_ids), max(broker_ids)
    if last - first < 2 * len(broker_ids):
        return IdentitySpace(first, last - first + 1 + _SPARE_IDENTITIES)
    return IdentitySpace(explicit=tuple((known, offset) for offset, known in enumerate(sorted(broker_ids))))


def create_topic(bootstrap_servers: str, topic: str, replication: int, partitions: int = PARTITIONS) -> None:
    """Create the demo's topic. Raises: DemoError: the topic cannot be created."""
    client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        client.create_topics([NewTopic(topic, partitions, replication)])[topic].result(30)
    except (KafkaException, TimeoutError) as error:
        raise DemoError(f"cannot create topic {topic} through the fleet: {error}") from error


def delete_topic(bootstrap_servers: str, topic: str) -> None:
    """Delete the demo's topic from a user's cluster. Raises: DemoError: the topic cannot be deleted."""
    client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        client.delete_topics([topic])[topic].result(30)
    except (KafkaException, TimeoutError) as error:
        raise DemoError(f"cannot delete topic {topic}: {error}") from error
