"""From traffic to ownership and back: sixty real brokers, six proxies, real Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.core.event_schema import EVENTS, Event, OwnershipEvent, TrafficEvent
from fleet.core.model import BrokerId, IdentitySpace, ProxyId
from fleet.core.weights import Weights
from fleet.drills.cluster.fleet import LocalFleet
from fleet.pipeline.load import CPU_US_PER_BYTE, CPU_US_PER_REQUEST
from tests.chaos.harness import wait_for
from tests.conftest import IMPATIENT
from tests.integration.clients import count
from tests.integration.test_events import everything
from tests.integration.test_weights import owners
from tests.long.many_brokers import ManyBrokers
from tests.property.test_weighing import BROKERS, PROXIES, ZIPF, dealt_from_scratch, skew

HOSTS = tuple(f"127.0.0.{number}" for number in range(11, 17))
"""The clients' addresses: the fleet spreads clients of an identity with several owners by address."""
RATE_PER_S = 40.0
"""The rate of each client."""
TOPIC, PREFIX = "skewed", "loop."
MOVE_LIMIT_S = 600.0
"""A minute is summed up two minutes after its end, and the first whole minute may be the second one."""
SETTLED_S = 240.0
"""The time without a move before the load is measured, in its second half."""
SETTLE_LIMIT_S = 1_200.0


@pytest.mark.timeout(2_400)
def test_skewed_load_is_halved_with_few_moves(tmp_path: Path) -> None:
    with ManyBrokers(BROKERS, tmp_path / "kafka") as kafka:
        broker_ids = sorted(kafka.brokers)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        topic = NewTopic(TOPIC, BROKERS, replica_assignment=[[each] for each in broker_ids])
        admin.create_topics([topic])[TOPIC].result(60)
        with LocalFleet(
            tmp_path / "fleet",
            kafka.endpoints[:3],
            PROXIES,
            identities=IdentitySpace(1, BROKERS),
            racks=False,
            timing={**IMPATIENT, "control_grace_s": 30.0},
            events={"topic_prefix": PREFIX, "replication_factor": 1},
            balance={"by": "weights", "every_s": 60},
        ) as fleet:
            fleet.await_settled(frozenset(broker_ids))
            first, generation = owners(fleet), fleet.ownership(fleet.members[0]).generation
            weights = skewed_against(first)
            with producers_running(fleet, [weights[each] for each in broker_ids], tmp_path) as clients:
                with pipeline(fleet, tmp_path):
                    began_ms = now_ms()
                    wait_for(
                        lambda: owners(fleet) != first, "the first move by weight", MOVE_LIMIT_S, every_s=1
                    )
                    moved_ms = now_ms()
                    await_settled(fleet)
                    until_ms = now_ms()
                last = owners(fleet)
            acknowledged = [json.loads(each.communicate(timeout=60)[0])["acknowledged"] for each in clients]

        assert [each.returncode for each in clients] == [0] * len(HOSTS)
        assert sum(acknowledged) == count(kafka.bootstrap_servers, TOPIC, range(BROKERS))
        events = [EVENTS.decode(each) for each in everything(kafka, f"{PREFIX}traffic")]
        skew_before = skew(loads(events, began_ms, moved_ms))
        skew_after = skew(loads(events, until_ms - int(500 * SETTLED_S), until_ms))
        changed = [EVENTS.decode(each) for each in everything(kafka, f"{PREFIX}ownership")]
        assert owners_after(changed) == last
        moves = moves_since(changed, generation)
        from_scratch = dealt_from_scratch(Weights(weights), dict.fromkeys(fleet.members))
        moves_from_scratch = sum(first[each] != from_scratch[each].owners for each in broker_ids)
        print(f"load skew: {skew_before:.2f}, then {skew_after:.2f}; moves={moves} of {moves_from_scratch}")
        assert skew_after <= skew_before / 2
        assert 0 < moves <= moves_from_scratch


def skewed_against(owned: Mapping[BrokerId, tuple[ProxyId, ...]]) -> dict[BrokerId, float]:
    """Zipf's weights: the greatest are all at one proxy, the next at a second one, and so on."""
    ranks = enumerate(sorted(owned, key=lambda broker_id: (owned[broker_id], broker_id)), 1)
    return {broker_id: rank**-ZIPF for rank, broker_id in ranks}


@contextmanager
def producers_running(
    fleet: LocalFleet, parts: list[float], folder: Path
) -> Iterator[list[subprocess.Popen[str]]]:
    """Run producers with their own addresses, and ask them to finish at the end."""
    clients = []
    try:
        for seed, host in enumerate(HOSTS):
            spec = json.dumps([host, fleet.bootstrap(), TOPIC, RATE_PER_S, parts, seed])
            command = [sys.executable, "-m", "tests.long.skewed", spec]
            with (folder / f"client-{host}.log").open("wb") as log:
                clients.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True))
        yield clients
    finally:
        for client in clients:
            client.terminate()
        for client in clients:
            client.wait(60)


@contextmanager
def pipeline(fleet: LocalFleet, folder: Path) -> Iterator[None]:
    """Run the jobs that make weights, as an operator does."""
    jobs = ["--job", "load", "--job", "weights"]
    command = [sys.executable, "-m", "fleet", "pipeline", "run", "--config", str(fleet.config), *jobs]
    with (folder / "pipeline.log").open("wb") as log:
        process = subprocess.Popen([*command, "--out", str(folder / "out")], stdout=log, stderr=log)
        try:
            yield
            assert process.poll() is None, f"the pipeline has ended; see {log.name}"
            process.terminate()
            assert process.wait(60) == 0, f"the pipeline has failed; see {log.name}"
        finally:
            process.kill()
            process.wait()


def await_settled(fleet: LocalFleet) -> None:
    """Wait until nothing has moved for a while."""
    known, since_s = owners(fleet), time.monotonic()

    def settled() -> bool:
        nonlocal known, since_s
        if (seen := owners(fleet)) != known:
            known, since_s = seen, time.monotonic()
        return time.monotonic() - since_s > SETTLED_S

    wait_for(settled, f"no move for {SETTLED_S:g} s", SETTLE_LIMIT_S, every_s=1)


def loads(events: Iterable[Event], from_ms: int, until_ms: int) -> dict[ProxyId, float]:
    """The load of each proxy, from the members' events of a period."""
    sums = {f"p{number}": 0.0 for number in range(1, PROXIES + 1)}
    for event in events:
        assert isinstance(event, TrafficEvent)
        if from_ms <= event.at_ms < until_ms and event.broker_id >= 0:
            requests = sum(each.requests for each in event.apis.values())
            size_bytes = event.bytes_to_broker + event.bytes_to_client
            sums[event.told_by] += requests * CPU_US_PER_REQUEST + size_bytes * CPU_US_PER_BYTE
    return sums


def owners_after(events: Iterable[Event]) -> dict[BrokerId, tuple[ProxyId, ...]]:
    found: dict[BrokerId, OwnershipEvent] = {}
    for each in events:
        assert isinstance(each, OwnershipEvent)
        if each.broker_id not in found or each.generation > found[each.broker_id].generation:
            found[each.broker_id] = each
    return {broker_id: each.owners for broker_id, each in found.items()}


def moves_since(events: Iterable[Event], generation: int) -> int:
    """The number of times that an identity left an owner: there and back are two."""
    lost: dict[str, set[ProxyId]] = {}
    for each in events:
        assert isinstance(each, OwnershipEvent)
        if each.generation > generation and each.before is not None:
            lost[each.id] = set(each.before) - set(each.owners)
    return sum(map(len, lost.values()))


def now_ms() -> int:
    return time.time_ns() // 1_000_000
