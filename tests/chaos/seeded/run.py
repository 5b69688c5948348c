"""Seeded runs: all runs share a Kafka cluster and a Toxiproxy; each run has a new fleet."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

import fleet as package
from fleet.core.errors import DemoError, FaultNotObserved, FleetError
from fleet.core.model import Endpoint, IdentitySpace
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.ports import free_ports
from fleet.drills.workload.audit import longest_stall_ms
from fleet.drills.workload.checker import History, Stream, Violation, audit_of, check, takeover_s
from fleet.drills.workload.observer import Observer
from fleet.drills.workload.streams import Traffic
from fleet.drills.workload.waiting import eventually, in_thread, wait_until
from tests.chaos.seeded import epochs
from tests.chaos.seeded.faults import Done, Injector
from tests.chaos.seeded.local_faults import LocalFaults
from tests.chaos.seeded.network import Toxiproxy
from tests.chaos.seeded.report import Noticed, RunResult
from tests.chaos.seeded.schedule import LENGTH_S, Plan
from tests.chaos.seeded.workloads import KINDS, PARTITIONS, Client

BUILD = Path(package.__file__).resolve().parent.parent / "build"
BROKERS = 3
HISTORY: Final = "history.jsonl"
ENOUGH: Final = 100
"""A client is checked only after more acknowledged records than this, however long a fault delays it."""
_LISTENER = "FLEET"
_FLOW_LIMIT_S = 60.0
_SPARE_IDENTITIES = 1
_TIMING: Final = MappingProxyType({"rest_after_move_s": 1.0})
"""Timing that causes more moves: by default, returning members would own nothing before the run ends."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SharedServers:
    """Servers that all runs share.

    Args:
        upstream: addresses at which the fleets reach the brokers.
    """

    kafka: KafkaCluster
    network: Toxiproxy
    upstream: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The error that stopped a run, and its time."""

    at_s: float
    detail: str


@contextmanager
def toxiproxy(folder: Path) -> Iterator[Toxiproxy]:
    """The server that `make` built."""
    with Toxiproxy(BUILD / "bin", folder) as network:
        yield network


@asynccontextmanager
async def prepare(folder: Path, say: Say) -> AsyncIterator[SharedServers]:
    """Run three brokers behind Toxiproxy for the block. Raises: DemoError: the brokers do not start."""
    say(f"starting {BROKERS} Kafka brokers")
    broker_ids = range(1, BROKERS + 1)
    at = {
        broker_id: Endpoint("127.0.0.1", port)
        for broker_id, port in zip(broker_ids, free_ports(BROKERS), strict=True)
    }
    libs = BUILD / "kafka" / "libs"
    with toxiproxy(folder) as network:
        kafka = KafkaCluster(BROKERS, folder / "kafka", libs=libs, more_listeners={_LISTENER: at})
        network.put_before_brokers(kafka, _LISTENER, at)
        async with kafka:
            yield SharedServers(kafka, network, tuple(at.values()))


async def perform(plan: Plan, ground: SharedServers, folder: Path, say: Say) -> RunResult:
    """Carry out one plan, and check its history.

    Returns: the result. The folder of the run stays for an investigation.
    """
    result, _ = await witness(plan, ground, folder, say)
    return result


async def witness(
    plan: Plan, ground: SharedServers, folder: Path, say: Say, events: Mapping[str, object] | None = None
) -> tuple[RunResult, History | None]:
    """Like `perform`, but with the history; None if the plan could not be carried out.

    Args:
        events: the fleet's `events` section; None to send no events.
    """
    clients = ", ".join(plan.workloads)
    links = " over TLS" if plan.secured else ""
    say(f"plan {plan.name}: {plan.members} members{links}; {clients}; {len(plan.faults)} faults")
    for fault in plan.faults:
        say(f"  {fault}")
    run = _Run(plan, ground, folder, say, events)
    try:
        await run.perform()
    except (FleetError, KafkaException, psutil.Error, ExceptionGroup) as error:
        run.violations.append(Violation("broke", _error_text(error)))
    return run.result(), run.history


class _Run:
    """One plan in front of one fleet."""

    def __init__(
        self, plan: Plan, ground: SharedServers, folder: Path, say: Say, events: Mapping[str, object] | None
    ) -> None:
        self._plan = plan
        self._kafka = ground.kafka
        self._network = ground.network
        self._folder = folder
        self._say = say
        self._broker_ids = frozenset(ground.kafka.brokers)
        identities = IdentitySpace(min(self._broker_ids), len(self._broker_ids) + _SPARE_IDENTITIES)
        self._fleet = LocalFleet(
            folder / "fleet",
            ground.upstream,
            plan.members,
            identities=identities,
            timing=_TIMING,
            peer_tls=plan.secured,
            events=events,
        )
        self._local_faults = LocalFaults(self._fleet, folder / "local-faults")
        self._observer: Observer | None = None
        self._clients: list[Client] = []
        self._streams: list[Stream] = []
        self._done: list[Done] = []
        self.history: History | None = None
        self._from_s = self._until_s = self._whole_since_s = 0.0
        self.violations: list[Violation] = []

    async def perform(self) -> None:
        """Start the fleet and the clients, inject the faults, and check. A history is written in every case.

        Raises: the error that stopped the run.
        """
        try:
            await self._carry_out()
        except Exception as error:
            self._write_failed_history(error)
            raise

    async def _carry_out(self) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(self._fleet.remove_data)
            stack.callback(self._network.forget_members)
            self._network.put_before_members(self._fleet)
            self._network.put_between_members(self._fleet)
            stack.callback(self._fleet.close)
            self._fleet.start()
            await in_thread(self._fleet.await_ready)
            await in_thread(lambda: self._fleet.await_settled(self._broker_ids))
            # Uses the present settings: the networks in between have changed the advertised addresses.
            observer = self._observer = Observer(self._fleet.settings, self._broker_ids)
            await stack.enter_async_context(observer.observing())
            stack.callback(self._end_clients)
            await self._start_clients()
            await wait_until(lambda: self._flow_since(self._from_s), "records of every client", _FLOW_LIMIT_S)
            self._from_s = time.monotonic()
            await self._break(
                Injector(
                    self._fleet,
                    self._kafka,
                    self._network,
                    self._local_faults,
                    observer.taken_over,
                    self._say,
                )
            )
            self._whole_since_s = time.monotonic()
            await eventually(lambda: self._flow_since(self._whole_since_s, ENOUGH), _FLOW_LIMIT_S, 0.1)
            self._until_s = time.monotonic()
            await self._stop_clients()
            for client in self._clients:
                self._streams.append(await in_thread(partial(self._read, client)))
            self.history = self._seen()
        self.violations += check(self.history)
        write(self._folder / HISTORY, self._plan, self._done, self.history)
        await in_thread(self._delete_topics)

    def _read(self, client: Client) -> Stream:
        stream = client.stream(self._kafka.bootstrap_servers)
        if not (self._plan.brokers_fail and stream.promise.exact):
            return stream
        again = epochs.read_again(stream.log, self._kafka, min(self._broker_ids), client.topic)
        if again:
            self._say(f"  {client.name} has sent {len(again)} records again, under another epoch")
        return replace(stream, sent_again=again)

    def _seen(self) -> History:
        """The history up to now. Without the log of a client's topic, its own observations are used."""
        observer, unread = self._observer, self._clients[len(self._streams) :]
        return History(
            broker_ids=self._broker_ids,
            streams=[*self._streams, *(client.seen() for client in unread)],
            sightings=list(observer.sightings) if observer else [],
            views=observer.views() if observer else {},
            outages=[done.outage for done in self._done if done.outage is not None],
            whole_since_s=self._whole_since_s,
            brokers_failed=self._plan.brokers_fail,
        )

    def _write_failed_history(self, error: Exception) -> None:
        """Write the history of a failed run. An error here must not hide the cause of the failure."""
        run_failure = RunFailure(time.monotonic(), _error_text(error))
        try:
            write(self._folder / HISTORY, self._plan, self._done, self.history or self._seen(), run_failure)
        except Exception as failure:
            self._say(f"  cannot write the history: {_error_text(failure)}")

    def result(self) -> RunResult:
        """The result up to now."""
        history = self.history
        streams = {stream.name: stream for stream in history.streams} if history else {}
        audits = {name: audit_of(stream) for name, stream in streams.items()}
        refused = {client.name: client.refused() for client in self._clients}
        stalls_ms = {}
        for name, stream in streams.items():
            for who, events in ((name, stream.acknowledged), (f"{name} group", stream.received)):
                stalls_ms[who] = longest_stall_ms(events, PARTITIONS, self._from_s, self._until_s)
        took_s = (
            [takeover_s(outage, history.broker_ids, history.views) for outage in history.outages]
            if history
            else []
        )
        failed = self._plan.brokers_fail
        return RunResult(
            plan=self._plan.name,
            replay=replay(self._plan),
            folder=str(self._folder),
            violations=tuple(self.violations),
            faults=tuple(done.fault.kind.value for done in self._done),
            # No takeover is necessary from a member that no Metadata named.
            takeovers_ms=tuple(each * 1000.0 for each in took_s if each),
            stalls_ms=stalls_ms,
            noticed={
                name: Noticed(
                    each.acknowledged,
                    each.lost,
                    each.duplicated,
                    each.out_of_order,
                    each.redelivered,
                    refused[name],
                    int(streams[name].gave_up),
                    len(streams[name].sent_again),
                )
                for name, each in audits.items()
            },
            exact=frozenset(name for name, stream in streams.items() if stream.promise.exact),
            durable=frozenset(
                name for name, stream in streams.items() if stream.promise.holds(brokers_failed=failed)
            ),
        )

    # -------------------------------------------------------------------------------------------- faults

    async def _break(self, injector: Injector) -> None:
        """Inject every fault at its time. An error of one fault does not stop the others."""
        started_s = time.monotonic()

        async def one(number: int) -> None:
            fault = self._plan.faults[number]
            await asyncio.sleep(started_s + fault.at_s - time.monotonic())
            done = await injector.inject(fault)
            self._say(
                f"  {fault.kind.value}: {done.proof}; whole {done.healed_s - done.at_s:.1f} s after it began"
            )
            self._done.append(done)

        outcomes = await asyncio.gather(
            *(one(number) for number in range(len(self._plan.faults))), return_exceptions=True
        )
        for fault, outcome in zip(self._plan.faults, outcomes, strict=True):
            if isinstance(outcome, FaultNotObserved):
                self.violations.append(Violation("no_effect", f"{fault}: {outcome}"))
            elif isinstance(outcome, FleetError | psutil.Error | KafkaException | OSError):
                self.violations.append(Violation("broke", f"{fault}: {outcome}"))
            elif isinstance(outcome, BaseException):
                raise outcome
        await asyncio.sleep(max(0.0, started_s + self._plan.length_s - time.monotonic()))

    # ------------------------------------------------------------------------------------------- clients

    async def _start_clients(self) -> None:
        stamp = time.time_ns() // 1_000_000
        topics = {name: f"chaos-{stamp}-{name}" for name in self._plan.workloads}
        admin = AdminClient({"bootstrap.servers": self._kafka.bootstrap_servers, "log_level": 0})
        making = admin.create_topics(
            [
                NewTopic(topic, PARTITIONS, BROKERS, config=dict(KINDS[name].topic))
                for name, topic in topics.items()
            ]
        )
        for future in making.values():
            await in_thread(lambda future=future: future.result(30))  # type: ignore[misc]
        self._from_s = time.monotonic()
        for name, topic in topics.items():
            client = Client(name, self._fleet.bootstrap(), topic, self._folder / name)
            self._clients.append(client)
            client.workload.start()

    def _flow_since(self, since_s: float, more_than: int = 0) -> bool:
        """Whether every client has records since a moment, and more than N acknowledgements in total."""

        def flows(traffic: Traffic) -> bool:
            return traffic.flows_since(since_s) and len(traffic.acknowledged.events) > more_than

        return all([flows(each.traffic) or self._has_given_up(each) for each in self._clients])

    def _has_given_up(self, client: Client) -> bool:
        return self._plan.brokers_fail and client.gave_up()

    async def _stop_clients(self) -> None:
        """Let all clients finish in parallel."""
        outcomes = await asyncio.gather(
            *(in_thread(client.stop) for client in self._clients), return_exceptions=True
        )
        for client, outcome in zip(self._clients, outcomes, strict=True):
            if isinstance(outcome, DemoError) and self._has_given_up(client):
                self._say(f"  {client.name} gave up, as librdkafka does without a fleet, too: {outcome}")
            elif isinstance(outcome, DemoError):
                self.violations.append(Violation("broke", f"{client.name}: {outcome}"))
            elif isinstance(outcome, BaseException):
                raise outcome

    def _end_clients(self) -> None:
        for client in self._clients:
            client.workload.kill()

    def _delete_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._kafka.bootstrap_servers, "log_level": 0})
        for future in admin.delete_topics([client.topic for client in self._clients]).values():
            future.result(30)


def replay(plan: Plan) -> str:
    """The command that runs a plan again."""
    if not plan.name.lstrip("-").isdigit():
        return f'make chaos ARGS="--plan {shlex.quote(plan.name)}"'
    length = "" if plan.length_s == LENGTH_S else f" --length {plan.length_s:g}"
    return f'make chaos ARGS="--runs 1 --seed {plan.name}{length}"'


def write(
    path: Path, plan: Plan, done: Sequence[Done], history: History, failure: RunFailure | None = None
) -> None:
    """A run as JSON lines, ordered by time on the machine's monotonic clock.

    Args:
        failure: the error that stopped the run; the other lines are incomplete then.
    """
    lines: list[tuple[float, dict[str, object]]] = [(0.0, {"what": "plan", **asdict(plan)})]
    for each in done:
        lines.append((each.at_s, {"what": "fault", **asdict(each)}))
    for sighting in history.sightings:
        lines.append((sighting.at_s, {"what": "ownership", **asdict(sighting)}))
    for proxy_id, views in history.views.items():
        for view in views:
            lines.append((view.at_s, {"what": "metadata", "proxy_id": proxy_id, "owners": view.owners}))
    for stream in history.streams:
        for what in ("acknowledged", "received", "log", "aborted"):
            for event in getattr(stream, what):
                lines.append((event.at_s, {"what": what, "client": stream.name, **asdict(event)}))
    if failure is not None:
        lines.append((failure.at_s, {"what": "broke", **asdict(failure)}))
    lines.sort(key=lambda line: line[0])
    with path.open("w") as file:
        for at_s, line in lines:
            file.write(json.dumps({"at_s": round(at_s, 6), **line}) + "\n")


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def remove(result: RunResult) -> None:
    """Remove the files of a run without a violation."""
    shutil.rmtree(result.folder, ignore_errors=True)
