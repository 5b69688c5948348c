"""Proofs of network faults: each kind of fault passes its proof, and a healthy network does not."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fleet.control.links import Hello
from fleet.core.errors import FaultNotObserved
from fleet.core.model import Endpoint
from fleet.drills.cluster.ports import free_ports
from tests.chaos.greetings import Proof, prove_late, prove_narrow, prove_uneven
from tests.chaos.seeded.effects import prove_black, time_of_answer
from tests.chaos.seeded.faults import Done, Injector
from tests.chaos.seeded.network import Link, Toxiproxy, hang_up, knock
from tests.chaos.seeded.run import toxiproxy
from tests.chaos.seeded.schedule import BROKER_LINKS, Direction, Fault, Kind

pytestmark = pytest.mark.size("test-all")

LATENCY_S = 0.4
MAX_ATTEMPTS = 5
HELLO = Hello("demo", "p2", 1)
DIRECTIONS: tuple[Direction, ...] = ("both", "in", "out")


@pytest.fixture
async def server() -> AsyncIterator[Endpoint]:
    """Answers each frame with a frame, and closes the connection on an impossible length."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                if size < 0:
                    break
                await reader.readexactly(size)
                writer.write(struct.pack(">i", 16) + b"x" * 16)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield Endpoint(*listening.sockets[0].getsockname()[:2])
    listening.close()


@pytest.fixture
def through(server: Endpoint, tmp_path: Path) -> Iterator[tuple[Toxiproxy, Link]]:
    with toxiproxy(tmp_path) as network:
        (port,) = free_ports(1)
        yield network, network.lead(Endpoint("127.0.0.1", port), server)


Through = tuple[Toxiproxy, Link]


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_black_hole_answers_nothing_until_it_is_healed(through: Through, direction: Direction) -> None:
    network, link = through
    network.poison([link], "timeout", {"timeout": 0}, direction)
    assert "no answer" in await prove_black(link)
    network.heal([link])
    assert (await knock(link.at, 5.0)).took_s is not None


async def test_healthy_network_is_no_black_hole(through: Through) -> None:
    with pytest.raises(FaultNotObserved):
        await prove_black(through[1])


async def test_refusing_network_is_no_black_hole(through: Through) -> None:
    network, link = through
    network.poison([link], "reset_peer", {"timeout": 0}, "both")
    assert (await knock(link.at, 5.0)).broken
    with pytest.raises(FaultNotObserved):
        await prove_black(link)


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_latency_is_seen_in_answers(through: Through, direction: Direction) -> None:
    network, link = through
    assert await time_of_answer(link) < LATENCY_S
    network.poison([link], "latency", {"latency": int(LATENCY_S * 1000)}, direction)
    assert await time_of_answer(link) >= LATENCY_S * (2 if direction == "both" else 1)


async def test_latency_shows_when_the_target_closes(through: Through) -> None:
    network, link = through
    before_s = await hang_up(link.at, 5.0)
    assert before_s is not None
    assert before_s < LATENCY_S
    network.poison([link], "latency", {"latency": int(LATENCY_S * 1000)}, "both")
    after_s = await hang_up(link.at, 5.0)
    assert after_s is not None
    assert after_s >= LATENCY_S


@pytest.mark.parametrize(("direction", "requests", "padding"), [("in", 60, 480), ("out", 2000, 0)])
async def test_bandwidth_is_seen_in_many_answers(
    through: Through, direction: Direction, requests: int, padding: int
) -> None:
    network, link = through
    before = await knock(link.at, 20.0, requests, padding)
    network.poison([link], "bandwidth", {"rate": 32}, direction)
    after = await knock(link.at, 20.0, requests, padding)
    assert before.took_s is not None
    assert after.took_s is not None
    size = after.bytes_out if direction == "in" else after.bytes_in
    assert before.took_s < 0.8 * size / 1024 / 32 <= after.took_s


LATE = partial(prove_late, latency_s=LATENCY_S)
UNEVEN = partial(prove_uneven, spread_s=0.3)
NARROW = partial(prove_narrow, bytes_per_s=8_000)


@pytest.mark.parametrize(
    ("proof", "toxic", "attributes", "direction"),
    [
        (LATE, "latency", {"latency": int(LATENCY_S * 1000)}, "in"),
        (LATE, "latency", {"latency": int(LATENCY_S * 1000)}, "out"),
        (UNEVEN, "latency", {"latency": 300, "jitter": 290}, "in"),
        (UNEVEN, "latency", {"latency": 300, "jitter": 290}, "out"),
        (NARROW, "bandwidth", {"rate": 8}, "in"),
    ],
)
async def test_bad_links_show_in_answers_to_hello(
    through: Through, proof: Proof, toxic: str, attributes: dict[str, int], direction: Direction
) -> None:
    network, link = through
    assert await fails(proof, link)
    network.poison([link], toxic, attributes, direction)
    await proof(link, HELLO)


async def test_latency_in_both_directions_fails_the_one_way_proof(through: Through) -> None:
    network, link = through
    network.poison([link], "latency", {"latency": int(LATENCY_S * 1000)}, "both")
    with pytest.raises(FaultNotObserved):
        await prove_late(link, HELLO, latency_s=LATENCY_S, limit_s=0.0)


async def fails(proof: Proof, link: Link) -> bool:
    """Whether a link fails a proof. On a busy machine a healthy link may briefly pass it."""
    for _ in range(MAX_ATTEMPTS):
        try:
            await proof(link, HELLO)
        except FaultNotObserved:
            return True
    return False


class InjectedLinks:
    """A broker and a member behind one link. Toxics affect all connections, or none."""

    members = ()

    def __init__(self, network: Toxiproxy, link: Link, *, touched: bool) -> None:
        self._link = link
        self._touched = touched
        self.heal = network.heal

    def links(self, target: object) -> list[Link]:
        return [self._link]

    broker_links = client_links = links

    def leader(self) -> str:
        return "p1"

    def poison(self, links: list[Link], toxic: str, attributes: dict[str, int], direction: Direction) -> None:
        for stream in self._link.streams(direction):
            self._link.proxy.add_toxic(
                type=toxic, stream=stream, attributes=attributes, toxicity=1.0 if self._touched else 0.0
            )


async def injected(through: Through, kind: Kind, amount: int, direction: Direction, *, touched: bool) -> Done:
    fleet_network: Any = InjectedLinks(*through, touched=touched)
    injector = Injector(
        fleet_network, fleet_network, fleet_network, fleet_network, lambda *_: True, lambda _: None
    )
    target = "1" if kind in BROKER_LINKS else "leader"
    return await injector.inject(Fault(0.0, kind, target, 0.0, amount, direction))


@pytest.mark.parametrize(
    ("kind", "amount", "direction"),
    [
        (Kind.RESET_CLIENTS, 0, "both"),
        (Kind.RESET_BROKER, 0, "both"),
        (Kind.LATENCY_CLIENTS, 100, "in"),
        (Kind.LATENCY_BROKER, 100, "out"),
        (Kind.JITTER_CLIENTS, 100, "both"),
        (Kind.BANDWIDTH_CLIENTS, 64, "in"),
        (Kind.BANDWIDTH_BROKER, 64, "out"),
    ],
)
async def test_a_toxic_that_touches_connections_proves_a_fault(
    through: Through, kind: Kind, amount: int, direction: Direction
) -> None:
    assert (await injected(through, kind, amount, direction, touched=True)).proof
    assert through[1].proxy.toxics() == {}
    assert (await knock(through[1].at, 5.0)).took_s is not None


@pytest.mark.parametrize(
    ("kind", "amount", "why"),
    [
        (Kind.RESET_CLIENTS, 0, "a connection was not reset"),
        (Kind.RESET_BROKER, 0, "a connection was not reset"),
        (Kind.LATENCY_CLIENTS, 4000, "took only .* ms"),
        (Kind.LATENCY_BROKER, 4000, "took only .* ms"),
        (Kind.JITTER_CLIENTS, 8000, "took only .* ms"),
        (Kind.BANDWIDTH_CLIENTS, 1, "took only .* s"),
        (Kind.BANDWIDTH_BROKER, 1, "took only .* s"),
    ],
)
@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_toxic_that_touches_no_connection_proves_no_fault(
    through: Through, kind: Kind, amount: int, why: str, direction: Direction
) -> None:
    """The amounts never occur on a healthy link, however busy the machine is."""
    with pytest.raises(FaultNotObserved, match=f"{kind}.*{why}"):
        await injected(through, kind, amount, direction, touched=False)
    assert through[1].proxy.toxics() == {}


@pytest.mark.parametrize(
    ("dials", "direction", "streams"),
    [
        (False, "both", ("upstream", "downstream")),
        (False, "in", ("upstream",)),
        (False, "out", ("downstream",)),
        (True, "in", ("downstream",)),
        (True, "out", ("upstream",)),
    ],
)
def test_a_direction_is_as_the_target_sees_it(
    dials: bool, direction: Direction, streams: tuple[str, ...]
) -> None:
    link = Link(proxy=None, at=Endpoint("127.0.0.1", 1), dials=dials)
    assert link.streams(direction) == streams
