"""The acceptance run of a stranger: ``python -m tests.hostile.stranger``.

A stranger may open 1,000 connections to the client, peer and admin ports of a member. The run checks that the
p99 latency of a checked workload grows by less than 2x, and the member's memory by less than 64 MB. The
baseline is a crowd of well-formed clients: as many, at the same byte rate, from the same process. No member
may be suspected.

The two crowds alternate, so that a machine that becomes slower affects both.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import click
import psutil
import uvloop
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.config import bootstrap_endpoints
from fleet.core.errors import FleetError
from fleet.core.model import BrokerId, Endpoint, Liveness, ProxyId
from fleet.drills.cluster.fleet import LISTENER, LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.workload.history import Event, Record
from tests.certificates import Authority
from tests.chaos.harness import clients_running
from tests.chaos.seeded.report import Measures, measures
from tests.chaos.seeded.workloads import PARTITIONS, Client
from tests.chaos.trees import Tree
from tests.conftest import await_known, broker_host, fleets
from tests.hostile.crowd import Crowd, Part, Port
from tests.hostile.run import PATIENT_TIMING, closed
from tests.hostile.strangers import FOCUSES, MIXED, Strangers
from tests.hostile.twins import CrowdTargets, Twins

MAX_P99_RATIO: Final = 2.0
MAX_GROWTH_MB: Final = 64.0
MAX_SENT_DIFFERENCE: Final = 0.2
"""The allowed difference between the bytes that the two crowds send."""
ATTACKED_ID: Final[ProxyId] = "p1"
TLS_LISTENER: Final = "secured"
WORKLOAD_TOPIC, FILLED_TOPIC, WIDE_TOPIC, CROWD_TOPIC = "checked", "filled", "wide", "taken"
WORKLOAD_RATE_PER_S: Final = 150
FILLED_RECORDS: Final = 4_000
WIDE_PARTITIONS: Final = 200
TURNS_FOCUS: Final = (MIXED, "memory", "cpu")
"""The focus of the stranger in its first, second and third turn, repeated."""
WARM_UP_S: Final = 15.0
ALONE_S: Final = 15.0
PAUSE_S: Final = 2.0
"""The pause between two turns, in which all sides close their connections."""
OPENING_SHARE: Final = 0.1
"""The share of a turn in which its connections are opened."""
SAMPLE_INTERVAL_S: Final = 0.5
SETTLE_S: Final = 5.0

Say = Callable[[str], None]


@dataclass
class Turn:
    """One turn of a crowd.

    Args:
        crowd: "twins" or "strangers"; "nobody" before the first turn.
        most_mb: the highest sum of the proportional set sizes of the member's processes.
        most_files: the highest number of open files of the worker.
        member_cpu, crowd_cpu: cores used by the member's processes and by the crowd's process.
        failed: connections that were not accepted in time.
        acknowledged_ms, delivered_ms: latencies since the producer received a record.
    """

    crowd: str
    focus: str
    seconds: float
    began_s: float
    most_mb: float = 0.0
    sent_bytes_per_s: float = 0.0
    opened: Mapping[str, int] = field(default_factory=dict)
    failed: int = 0
    most_open: int = 0
    most_files: int = 0
    member_cpu: float = 0.0
    crowd_cpu: float = 0.0
    acknowledged_ms: Measures = field(default_factory=lambda: measures(()))
    delivered_ms: Measures = field(default_factory=lambda: measures(()))


@dataclass
class Result:
    """The result of a run.

    Args:
        before_mb, after_mb: memory of the member before the first turn, and after the last one.
        p99_ratio: strangers' turns to twins' turns, over all their records; the greater of acknowledged
            and delivered.
        more_mb: the strangers' maximum minus that of the first turn of the twins.
        closed: connections that the fleet has closed, by reason.
        suspected: member, observer and turn of each suspicion. One in a turn of the twins means that the
            machine is too slow.
        problems: the failed checks.
    """

    seconds: float
    connections: int
    bytes_per_s: float
    seed: int
    turns: list[Turn] = field(default_factory=list)
    acknowledged_ms: dict[str, Measures] = field(default_factory=dict)
    delivered_ms: dict[str, Measures] = field(default_factory=dict)
    before_mb: float = 0.0
    after_mb: float = 0.0
    p99_ratio: float = 0.0
    more_mb: float = 0.0
    closed: dict[str, int] = field(default_factory=dict)
    suspected: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Observer:
    """Samples the member's memory and the members' suspicions, until stopped."""

    def __init__(self, fleet: LocalFleet) -> None:
        self._fleet = fleet
        self._tree = Tree(fleet, ATTACKED_ID)
        self._started_s = time.monotonic()
        self._stopping = threading.Event()
        self.most_mb = 0.0
        self.most_files = 0
        self.by_process: dict[str, float] = {}
        self._turns: list[tuple[float, str]] = [(self._started_s, "before the first turn")]
        """The start of each turn, the newest last."""
        self.suspected: dict[str, None] = {}
        self.replaced: list[str] = []

    def memory_mb(self) -> float:
        """The memory of the supervisor, the control process and the worker."""
        found: dict[str, float] = {}
        for name in ("supervisor", "control", "worker"):
            with suppress(psutil.NoSuchProcess):
                found[name] = getattr(self._tree, name).memory_full_info().pss / 2**20
        with suppress(psutil.NoSuchProcess):
            self.most_files = max(self.most_files, self._tree.worker.num_fds())
        total_mb = sum(found.values())
        if total_mb > self.most_mb:
            self.most_mb, self.by_process = total_mb, found
        return total_mb

    def cpu_s(self) -> float:
        """CPU time of the member's processes so far."""
        times = [each.cpu_times() for each in self._tree.all_processes if each.is_running()]
        return sum(each.user + each.system for each in times)

    def begin(self, turn: str) -> None:
        """Start a turn: reset the maxima."""
        self._turns.append((time.monotonic(), turn))
        self.most_mb, self.most_files = 0.0, 0

    def _turn_at(self, at_s: float) -> str:
        return [turn for since_s, turn in self._turns if since_s <= at_s][-1]

    @contextmanager
    def sampling(self) -> Iterator[None]:
        thread = threading.Thread(target=self._sample, name="observer")
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()
            self._note_takeovers()
            if not all(each.is_running() for each in self._tree.all_processes):
                self.replaced.append(f"a process of {ATTACKED_ID} was replaced")

    def _sample(self) -> None:
        while not self._stopping.wait(SAMPLE_INTERVAL_S):
            self.memory_mb()
            for observer_id in self._fleet.members:
                self._note_suspicions(observer_id)

    def _note_suspicions(self, observer_id: ProxyId) -> None:
        document = self._fleet.try_ownership(observer_id)
        if document is None:
            return
        down = {each.proxy_id for each in document.members if each.liveness is not Liveness.UP}
        for proxy_id in sorted(down | set(document.suspects)):
            self.suspected[f"{proxy_id} by {observer_id}, {self._turns[-1][1]}"] = None

    def _note_takeovers(self) -> None:
        for observer_id in self._fleet.members:
            document = self._fleet.try_ownership(observer_id, limit_s=20.0)
            if document is None:
                self.suspected[f"{observer_id} did not answer at the end"] = None
                continue
            for each in document.takeovers:
                if each.detected_mono_s >= self._started_s:
                    turn = self._turn_at(each.detected_mono_s)
                    self.suspected[f"{each.proxy_id} taken over ({each.reason}) by {observer_id}, {turn}"] = (
                        None
                    )


class StrangerRun:
    """A fleet under a checked workload, and the two crowds.

    Args: result: the result to fill.
    """

    def __init__(self, fleet: LocalFleet, broker_id: BrokerId, result: Result, say: Say) -> None:
        self._fleet, self._result, self._say = fleet, result, say
        member = fleet.settings.member(ATTACKED_ID)
        advertised = member.to_member(fleet.settings)
        broker = advertised.endpoint(LISTENER, broker_id)
        assert broker is not None
        self._ports: dict[Port, Endpoint] = {
            "bootstrap": fleet.bootstrap_endpoint(ATTACKED_ID),
            "broker": broker,
            "tls": bootstrap_endpoints(fleet.settings, TLS_LISTENER)[ATTACKED_ID],
            "admin": Endpoint(member.admin.host, member.admin.port),
            "peer": Endpoint(member.peer.host, member.peer.port),
        }
        targets = CrowdTargets(CROWD_TOPIC, FILLED_TOPIC, broker_id, self._ports["admin"])
        self._strangers, self._twins = Strangers(targets), Twins(targets)
        self._observer = Observer(fleet)

    def play(self, turns: int, focus: str | None, warm_up_s: float) -> None:
        """Let the crowds take turns, the twins first."""
        result, observer = self._result, self._observer
        turn_s = result.seconds / (2 * turns)
        focuses = [focus or TURNS_FOCUS[number % len(TURNS_FOCUS)] for number in range(turns)]
        result.before_mb = round(observer.memory_mb(), 1)
        with observer.sampling():
            self._take_turn("twins", MIXED, warm_up_s)
            result.turns.append(self._take_turn("nobody", "", min(ALONE_S, turn_s)))
            for each in focuses:
                for crowd in ("twins", "strangers"):
                    turn = self._take_turn(crowd, each, turn_s)
                    result.turns.append(turn)
            time.sleep(SETTLE_S)
            result.after_mb = round(observer.memory_mb(), 1)
            result.closed = {reason: number for reason, number in closed(self._fleet).items() if number}
        result.suspected = list(observer.suspected)
        result.problems += [f"suspected: {each}" for each in observer.suspected]
        result.problems += observer.replaced

    def _take_turn(self, kind: str, focus: str, turn_s: float) -> Turn:
        strangers = self._strangers.parts(self._result.connections if kind != "nobody" else 0, focus)
        parts: Sequence[Part] = strangers if kind == "strangers" else self._twins.for_strangers(strangers)
        turn = Turn(kind, focus, turn_s, time.monotonic())
        self._observer.begin(f"turn {len(self._result.turns) + 1} ({kind}, {focus})")
        # Turns of one crowd use the same seed, so that chance makes no difference between them.
        crowd_bytes_per_s = self._result.bytes_per_s * self._result.connections
        member_s, crowd_s = self._observer.cpu_s(), time.process_time()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            crowd = runner.run(self._crowd(parts, crowd_bytes_per_s, turn))
        turn.member_cpu = round((self._observer.cpu_s() - member_s) / turn_s, 2)
        turn.crowd_cpu = round((time.process_time() - crowd_s) / turn_s, 2)
        turn.sent_bytes_per_s = round(crowd.totals.sent_bytes / turn_s)
        turn.opened = dict(sorted(crowd.totals.opened.items()))
        turn.failed = crowd.totals.failed
        turn.most_mb = round(self._observer.most_mb, 1)
        turn.most_files = self._observer.most_files
        process_memory = ", ".join(f"{name} {mb:.0f}" for name, mb in self._observer.by_process.items())
        self._say(
            f"{kind} ({focus}) for {turn_s:.0f} s: {turn.most_open} open, {turn.failed} not accepted, "
            f"{turn.sent_bytes_per_s} bytes/s sent, {turn.most_mb} MB at most ({process_memory}), "
            f"{turn.most_files} files of the worker, cores: {turn.member_cpu} member, {turn.crowd_cpu} crowd"
        )
        time.sleep(PAUSE_S)
        return turn

    async def _crowd(self, parts: Sequence[Part], bytes_per_s: float, turn: Turn) -> Crowd:
        crowd = Crowd(parts, self._ports, bytes_per_s, self._result.seed)

        async def count() -> None:
            while True:
                turn.most_open = max(turn.most_open, crowd.open)
                await asyncio.sleep(SAMPLE_INTERVAL_S)

        counting = asyncio.create_task(count())
        await crowd.run(turn.seconds, turn.seconds * OPENING_SHARE)
        counting.cancel()
        return crowd


def run(
    kafka: KafkaCluster,
    folder: Path,
    *,
    seconds: float,
    connections: int,
    bytes_per_s: float,
    seed: int,
    turns: int,
    focus: str | None = None,
    judges_cost: bool = True,
    timing: Mapping[str, float] | None = None,
    say: Say,
) -> Result:
    """Let twins and strangers use a member, and judge the outcome.

    Args:
        seconds: time of all turns together.
        turns: number of turns of each crowd.
        focus: focus of all turns of the stranger; None to change it from turn to turn.
        judges_cost: whether to judge latency and memory; a short run has too few records for that.
        timing: timing of the members, if the machine is too busy for the defaults.
    """
    result = Result(seconds, connections, bytes_per_s, seed)
    authority = Authority(folder / "authority")
    pair = authority.issue("listener")
    secured = {"certificate": str(pair.certificate), "key": str(pair.key)}
    with fleets(kafka, folder) as make:
        fleet = make(3, peer_tls=True, more_listeners={TLS_LISTENER: secured}, timing=timing or {})
        broker_id = min(
            each.broker_id
            for each in fleet.ownership(ATTACKED_ID).identities
            if each.committed[0] == ATTACKED_ID and each.broker_id in kafka.brokers
        )
        make_topics(kafka, broker_id)
        client = Client(
            "idempotent",
            fleet.bootstrap(),
            WORKLOAD_TOPIC,
            folder / "client",
            "default",
            rate_per_s=WORKLOAD_RATE_PER_S,
        )
        try:
            with clients_running([client], kafka):
                say(f"{ATTACKED_ID} owns the identity of broker {broker_id}, which leads all of the workload")
                StrangerRun(fleet, broker_id, result, say).play(turns, focus, min(WARM_UP_S, seconds / 4))
        except (AssertionError, FleetError) as error:
            result.problems.append(f"the workload: {error}")
        measure(result, client)
    judge(result, judges_cost)
    return result


def make_topics(kafka: KafkaCluster, broker_id: BrokerId) -> None:
    """Create topics that one broker leads, and fill one of them."""
    replicas = [broker_id, *(each for each in kafka.brokers if each != broker_id)]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    topics = {WORKLOAD_TOPIC: (PARTITIONS, replicas), CROWD_TOPIC: (1, replicas), FILLED_TOPIC: (1, replicas)}
    topics[WIDE_TOPIC] = (WIDE_PARTITIONS, [broker_id])
    made = admin.create_topics(
        [
            NewTopic(name, count, replica_assignment=[assigned_replicas] * count)
            for name, (count, assigned_replicas) in topics.items()
        ]
    )
    for each in made.values():
        each.result(60)
    for name, (count, _) in topics.items():
        await_known(kafka, name, count)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "batch.size": 8_000})
    for _ in range(FILLED_RECORDS):
        producer.produce(FILLED_TOPIC, bytes(1_000))
    producer.flush(60)


def measure(result: Result, client: Client) -> None:
    """Measure the latencies of the records of each turn, and of all turns of each crowd."""
    produced = list(client.workload.productions().read())
    ends = {
        "acknowledged": _first_times(client.workload.acknowledged()),
        "delivered": _first_times(client.workload.received()),
    }
    for name, all_latencies in (("acknowledged", result.acknowledged_ms), ("delivered", result.delivered_ms)):
        found: dict[str, list[float]] = {"nobody": [], "twins": [], "strangers": []}
        for turn in result.turns:
            productions = [e for e in produced if turn.began_s <= e.at_s < turn.began_s + turn.seconds]
            taken_ms = [
                1000 * (ends[name][_key(each)] - each.at_s)
                for each in productions
                if _key(each) in ends[name]
            ]
            setattr(turn, f"{name}_ms", measures(taken_ms))
            found[turn.crowd] += taken_ms
        all_latencies.update({crowd: measures(taken_ms) for crowd, taken_ms in found.items()})


def _key(event: Event) -> tuple[int, Record]:
    return event.partition, event.record


def _first_times(events: Iterable[Event]) -> dict[tuple[int, Record], float]:
    found: dict[tuple[int, Record], float] = {}
    for each in events:
        found.setdefault(_key(each), each.at_s)
    return found


def judge(result: Result, judges_cost: bool) -> None:
    """Check that the stranger's effect is within its limits."""
    turns = {
        crowd: [each for each in result.turns if each.crowd == crowd] for crowd in ("twins", "strangers")
    }
    if not turns["twins"] or not turns["strangers"]:
        result.problems.append("a crowd had no turn")
        return
    result.more_mb = round(
        max(each.most_mb for each in turns["strangers"]) - turns["twins"][0].most_mb,
        1,
    )
    result.p99_ratio = round(max(_ratio(result.acknowledged_ms), _ratio(result.delivered_ms)), 2)
    if not judges_cost:
        return
    sent = {crowd: sum(each.sent_bytes_per_s for each in crowd_turns) for crowd, crowd_turns in turns.items()}
    if abs(sent["strangers"] / sent["twins"] - 1) > MAX_SENT_DIFFERENCE:
        result.problems.append(f"the crowds sent different amounts: {sent} bytes per second in all turns")
    if result.p99_ratio >= MAX_P99_RATIO:
        result.problems.append(f"p99 is {result.p99_ratio} times the p99 of the twins' turns")
    if result.more_mb >= MAX_GROWTH_MB:
        result.problems.append(f"{ATTACKED_ID} used {result.more_mb} MB more than in the twins' first turn")


def _ratio(found: Mapping[str, Measures]) -> float:
    twins, strangers = found["twins"].p99, found["strangers"].p99
    return strangers / twins if twins and strangers else float("inf")


def summary(result: Result) -> Iterator[str]:
    """The result as lines of text."""
    for turn in result.turns:
        yield (
            f"{turn.crowd:9} {turn.focus:6} acknowledged p50 {turn.acknowledged_ms.p50} p99 "
            f"{turn.acknowledged_ms.p99} ms, delivered p50 {turn.delivered_ms.p50} p99 "
            f"{turn.delivered_ms.p99} ms, {turn.most_mb} MB"
        )
    for name, all_latencies in (("acknowledged", result.acknowledged_ms), ("delivered", result.delivered_ms)):
        for crowd, each in all_latencies.items():
            yield f"{crowd:9} {name} p50 {each.p50} p99 {each.p99} max {each.max} ms"
    yield (
        f"p99 {result.p99_ratio} times the twins' p99, {result.more_mb} MB more, "
        f"{len(result.suspected)} suspicions, {len(result.problems)} problems; "
        f"{result.before_mb} MB before, {result.after_mb} MB after"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--seconds", type=click.FloatRange(8), default=600, show_default=True, help="Time of all turns."
)
@click.option(
    "--connections", type=click.IntRange(50), default=1_000, show_default=True, help="Number in each crowd."
)
@click.option(
    "--bytes-per-s", type=float, default=20.0, show_default=True, help="Mean rate of each connection."
)
@click.option("--turns", type=click.IntRange(1), default=5, show_default=True, help="Turns of each crowd.")
@click.option("--only", "focus", help=f"One trick by name, or one of {', '.join((MIXED, *FOCUSES))}.")
@click.option("--patient", is_flag=True, help="Suspect members later, for a busy machine.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of when connections start.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object only.")
def command(
    seconds: float,
    connections: int,
    bytes_per_s: float,
    turns: int,
    focus: str | None,
    patient: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Let a stranger attack a member under a checked workload, and compare with well-formed clients.

    Exit code 1: a check failed.
    """
    with tempfile.TemporaryDirectory(prefix="fleet-stranger-") as name:
        folder = Path(name)
        with KafkaCluster(3, folder / "kafka", host_of=broker_host) as kafka:
            result = run(
                kafka,
                folder / "run",
                seconds=seconds,
                connections=connections,
                bytes_per_s=bytes_per_s,
                seed=seed,
                turns=turns,
                focus=focus,
                timing=PATIENT_TIMING if patient else None,
                say=say,
            )
    for each in result.problems[:100]:
        say(each)
    if as_json:
        click.echo(json.dumps(asdict(result)))
    else:
        click.echo("\n".join(summary(result)))
    sys.exit(1 if result.problems else 0)


def say(connection: str) -> None:
    print(connection, file=sys.stderr, flush=True)


if __name__ == "__main__":
    command()
