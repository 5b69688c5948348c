"""The life of a member's processes: stops in order, stops at once, deaths of children, fleet restarts."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from fleet.control.process import CLIENT_RETURN_GRACE_S
from fleet.core.model import BrokerId, Endpoint, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.runtime.child import MODULES, Kind
from tests.conftest import fleets, restore_fleet
from tests.integration import wire
from tests.integration.clients import LIMIT_S, Load, count, led_by, wait_for
from tests.integration.conftest import PATIENT, FleetCommand
from tests.integration.test_frames import identity_port
from tests.integration.wire import IN_ORDER, ApiVersions, Connection, Pipeline

pytestmark = pytest.mark.size("test-all")

MakeTopic = Callable[..., str]
AT_ONCE_S = 4.0


@pytest.fixture(scope="module")
def started(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """Without racks, so that the former owners differ from those of a new assignment."""
    with fleets(kafka, tmp_path_factory.mktemp("member")) as make:
        yield make(3, racks=False, timing=PATIENT)


@pytest.fixture
def own(started: LocalFleet, kafka: KafkaCluster) -> LocalFleet:
    """Three members of this module, all running again before each test."""
    restore_fleet(started, kafka)
    return started


def child(fleet: LocalFleet, proxy_id: ProxyId, kind: Kind) -> psutil.Process | None:
    """The present control process, or worker, of a member."""
    for process in psutil.Process(fleet.pid(proxy_id)).children():
        with suppress(psutil.NoSuchProcess):
            if MODULES[kind] in process.cmdline():
                return process
    return None


def restarts(fleet: LocalFleet, proxy_id: ProxyId) -> int:
    """The number of workers that a member's control process has seen replaced since its start."""
    (found,) = re.findall(
        rb"^fleet_worker_restarts_total (\S+)$", fleet.get(proxy_id, "/metrics", 20)[1], re.MULTILINE
    )
    return int(float(found))


def owners(fleet: LocalFleet, proxy_id: ProxyId) -> dict[BrokerId, tuple[ProxyId, ...]]:
    return {each.broker_id: each.committed for each in fleet.ownership(proxy_id).identities}


class Callers:
    """Connects to ports repeatedly, and sends each time a request that any live worker answers."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(each,)) for each in endpoints]
        self.refused: list[str] = []
        self.answered: dict[Endpoint, float] = {}
        """The time of the newest answer at each port."""

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        self.await_answers()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def await_answers(self) -> None:
        """Wait until every port has answered a connection that was made after this call, more or less."""
        since_s = time.monotonic()
        wait_for(
            lambda: len(self.answered) == len(self._threads) and min(self.answered.values()) > since_s + 0.05,
            "answers from every port",
        )

    def _work(self, endpoint: Endpoint) -> None:
        while not self._stopping.wait(0.002):
            try:
                connection = Connection(endpoint)
            except OSError as error:
                self.refused.append(f"{endpoint}: {error}")
                continue
            # A dying worker closes the connections that it has accepted. Connections that wait for its
            # successor are answered late.
            with connection, suppress(EOFError, ConnectionError):
                answer = connection.ask(wire.request(wire.API_VERSIONS, 32767, 1))
                assert ApiVersions.parse(answer).error_code == 35
                self.answered[endpoint] = time.monotonic()


# ---- deaths inside a member


@pytest.mark.size("test")
@pytest.mark.parametrize("kind", ["worker", "control"])
def test_killed_child_is_replaced_while_the_other_serves(own: LocalFleet, kind: Kind) -> None:
    victim = own.leader()
    assert victim is not None
    killed, spared = (child(own, victim, each) for each in (kind, *(MODULES.keys() - {kind})))
    assert killed is not None
    restarts_before = restarts(own, victim)
    bootstrap, identity = own.bootstrap_endpoint(victim), identity_port(own, victim, 2)
    with Callers(bootstrap, identity) as callers, Connection(bootstrap) as held:
        assert held.ask(wire.metadata(1))
        killed.send_signal(signal.SIGKILL)

        def replaced() -> bool:
            if kind == "control":
                assert held.ask(wire.metadata(2))
            else:
                assert own.get(victim, "/healthz", 20)[0] == 200
            now = child(own, victim, kind)
            return now is not None and now.pid != killed.pid

        wait_for(replaced, f"another {kind}")
        own.await_ready(victim)
        callers.await_answers()
        if kind == "control":
            assert held.ask(wire.metadata(3))
        else:
            assert held.ends()
    assert callers.refused == []
    assert child(own, victim, "worker" if kind == "control" else "control") == spared
    assert restarts(own, victim) == (restarts_before + 1 if kind == "worker" else 0)


# ---- stops


def test_stopped_member_hands_over_and_producers_notice_nothing(
    own: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    leader = own.leader()
    assert leader is not None
    others = [each for each in own.members if each != leader]
    topic = make_topic()
    moving = next(each for each, owned_by in owners(own, leader).items() if leader in owned_by)
    partition = led_by(kafka, topic, moving)
    cut = Pipeline(identity_port(own, leader, moving), topic, partition)
    with Load(own.bootstrap(), make_topic()) as load, cut:
        wait_for(lambda: cut.answered > 100, "answers of a connection that will be drained")
        started_s = time.monotonic()
        assert own.stop(leader) == 0
        took_s = time.monotonic() - started_s
        assert CLIENT_RETURN_GRACE_S <= took_s < own.settings.timing.drain_timeout_s
        assert {owner for each in owners(own, others[0]).values() for owner in each} == set(others)
        own.await_settled(frozenset(kafka.brokers), others)
        load.await_flow()
        own.start(leader)
        own.await_ready(leader)
        own.await_settled(frozenset(kafka.brokers))
        load.await_flow()
    assert load.failures == load.errors == []
    assert load.acknowledged == count(kafka.bootstrap_servers, load.topic)
    assert (cut.end, cut.refused) == (IN_ORDER, [])
    assert cut.answered == count(kafka.bootstrap_servers, topic, [partition])


def test_a_second_signal_stops_a_member_at_once(own: LocalFleet, make_topic: MakeTopic) -> None:
    """While a request is in flight that the first signal waits for."""
    topic = make_topic(partitions=1)
    endpoint = leader_port(own, "p1", topic)
    with Connection(endpoint) as connection:
        assert connection.ask(wire.metadata(1))
        connection.send(wire.fetch(2, topic, 0, max_wait_ms=60_000))
        own.terminate("p1")
        wait_for(lambda: is_refused(endpoint), "p1 accepts no more connections")
        assert own.running == own.members
        again_s = time.monotonic()
        assert own.stop("p1") == 128 + signal.SIGTERM
        assert time.monotonic() - again_s < AT_ONCE_S
        assert connection.ends()


def leader_port(fleet: LocalFleet, proxy_id: ProxyId, topic: str) -> Endpoint:
    """A member's port for the broker that leads partition 0."""
    leaders: list[BrokerId] = []

    def one_leads() -> bool:
        # A new topic may have no leader yet in some broker's Metadata.
        leaders[:] = [each for each in (1, 2, 3) if leads(fleet, proxy_id, each, topic)]
        return len(leaders) == 1

    wait_for(one_leads, f"{topic} has a leader")
    (leader,) = leaders
    return identity_port(fleet, proxy_id, leader)


def leads(fleet: LocalFleet, proxy_id: ProxyId, broker_id: BrokerId, topic: str) -> bool:
    """Whether a broker answers a Fetch without a wait and without an error. Source: FetchResponse.json v4"""
    with Connection(identity_port(fleet, proxy_id, broker_id)) as connection:
        answer = connection.ask(wire.fetch(1, topic, 0, max_wait_ms=0))
    error = answer[4 + 4 + 2 + len(topic) + 4 + 4 :][:2]
    return error == b"\0\0"


def is_refused(endpoint: Endpoint) -> bool:
    try:
        with Connection(endpoint):
            return False
    except ConnectionRefusedError:
        return True


# ---- the whole fleet


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_restarted_fleet_comes_back_with_the_same_owners(
    own: LocalFleet, kafka: KafkaCluster, fleet_command: FleetCommand, number: signal.Signals
) -> None:
    # First make a history: a fleet that had lost its state would start again at generation 1.
    fleet_command(own, "drain", "p3")
    own.await_settled(frozenset(kafka.brokers), ["p1", "p2"])
    fleet_command(own, "undrain", "p3")
    own.await_settled(frozenset(kafka.brokers))
    before, generation = owners(own, "p1"), own.ownership("p1").generation
    assert generation > 2

    if number == signal.SIGKILL:
        own.kill(*own.members)
    else:
        for proxy_id in own.members:
            own.terminate(proxy_id)
        assert {own.processes[proxy_id].wait(LIMIT_S) for proxy_id in own.members} == {0}
    assert own.running == ()
    own.start()
    own.await_ready()
    own.await_settled(frozenset(kafka.brokers))
    for proxy_id in own.members:
        assert owners(own, proxy_id) == before
        assert own.ownership(proxy_id).generation >= generation
        with Connection(own.bootstrap_endpoint(proxy_id)) as connection:
            table = wire.brokers_of(connection.ask(wire.metadata(1)))
        assert {each: (own.owner_of(endpoint),) for each, endpoint in table.items()} == before
