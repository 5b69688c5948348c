"""The proofs of network faults, from answers and from members' reports of their peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fleet.admin.documents import OwnershipDocument
from fleet.core.errors import FaultNotObserved
from fleet.core.model import Endpoint
from tests.chaos.seeded import effects, faults
from tests.chaos.seeded.faults import Injector
from tests.chaos.seeded.network import Knock, Link
from tests.chaos.seeded.schedule import Direction, Fault, Kind
from tests.drills.test_demo_view import document, member

LINK = Link(proxy=None, at=Endpoint("127.0.0.1", 1))
QUICK = Knock(0.001, bytes_out=30 * 1024, bytes_in=60 * 1024)
RESET = Knock(None, broken=True)
SILENT = Knock(None)
MEMBERS = ("p1", "p2", "p3")
LEADER = "p1"


def slow(took_s: float) -> Knock:
    return replace(QUICK, took_s=took_s)


class Play:
    """A fleet and its network, on which toxics have the effect that a test sets, and no other.

    Args:
        poisoned: what comes of asking over a link while there is a toxic: in turn, the last one for ever.
        lost: the pairs of members of which the first has no link with the other meanwhile.
    """

    def __init__(self) -> None:
        self.poisoned: list[Knock] = [QUICK]
        self.lost: set[tuple[str, str]] = set()
        self.toxic: tuple[str, dict[str, int], Direction] | None = None
        self.toxics: list[tuple[str, dict[str, int], Direction]] = []
        self.asked = 0

    # -------------------------------------------------------------------------------------- the network

    def links(self, target: object) -> list[Link]:
        return [LINK]

    client_links = peer_links = broker_links = links

    def poison(self, links: list[Link], toxic: str, attributes: dict[str, int], direction: Direction) -> None:
        self.toxic = (toxic, attributes, direction)
        self.toxics.append(self.toxic)

    def heal(self, links: list[Link]) -> None:
        self.toxic = None

    async def knock(self, at: Endpoint, limit_s: float, requests: int = 1, padding: int = 0) -> Knock:
        if self.toxic is None:
            return QUICK
        self.asked += 1
        return self.poisoned.pop(0) if len(self.poisoned) > 1 else self.poisoned[0]

    # ---------------------------------------------------------------------------------------- the fleet

    members = MEMBERS

    def leader(self) -> str:
        return LEADER

    def is_ready(self, proxy_id: str) -> bool:
        return True

    def ownership(self, observer: str) -> OwnershipDocument:
        def is_lost(peer: str) -> bool:
            return self.toxic is not None and (observer, peer) in self.lost

        seen = tuple(replace(member(each), connected=not is_lost(each)) for each in MEMBERS)
        return replace(document(observer), members=seen)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    play = Play()
    monkeypatch.setattr(faults, "knock", play.knock)
    monkeypatch.setattr(effects, "knock", play.knock)
    monkeypatch.setattr(faults, "PROOF_LIMIT_S", 0.0)
    return play


async def proof_of(play: Play, fault: Fault) -> str:
    """Inject a fault. Returns: its proof. Raises: FaultNotObserved; either way the network is whole again."""
    fleet: Any = play
    injector = Injector(fleet, fleet, fleet, fleet, lambda *_: True, lambda _: None)
    try:
        return (await injector.inject(fault)).proof
    finally:
        assert play.toxics, "nothing was done"
        assert play.toxic is None, "nobody has healed it"


RESETS = (
    Fault(0.0, Kind.RESET_CLIENTS, "leader", 0.0),
    Fault(0.0, Kind.RESET_BROKER, "1", 0.0),
)
JITTER = Fault(0.0, Kind.JITTER_CLIENTS, "leader", 0.0, 300)
LATENCIES = (
    Fault(0.0, Kind.LATENCY_CLIENTS, "leader", 0.0, 200),
    Fault(0.0, Kind.LATENCY_BROKER, "1", 0.0, 200, "in"),
)
RESET_PEERS = Fault(0.0, Kind.RESET_PEERS, "leader", 0.0)
PAIRS = {("p2", "p1"), ("p3", "p1"), ("p1", "p2"), ("p1", "p3")}


@pytest.mark.parametrize("fault", RESETS, ids=str)
async def test_reset_is_proved_by_a_broken_connection(play: Play, fault: Fault) -> None:
    play.poisoned = [RESET]
    assert await proof_of(play, fault) == "a connection was reset"
    assert play.toxics == [("reset_peer", {"timeout": 0}, "both")]


@pytest.mark.parametrize("answer", [QUICK, SILENT], ids=["answered", "silent"])
@pytest.mark.parametrize("fault", RESETS, ids=str)
async def test_reset_without_a_broken_connection_is_reported(play: Play, fault: Fault, answer: Knock) -> None:
    play.poisoned = [answer]
    with pytest.raises(FaultNotObserved, match=f"{fault.kind}.*a connection was not reset"):
        await proof_of(play, fault)


async def test_peer_reset_is_proved_by_all_members_reports(play: Play) -> None:
    play.lost = PAIRS
    assert await proof_of(play, RESET_PEERS) == "links were broken"
    assert play.toxics == [("reset_peer", {"timeout": 0}, "both")]


@pytest.mark.parametrize(
    "kept",
    [PAIRS, *({pair} for pair in sorted(PAIRS))],
    ids=lambda kept: " ".join("-".join(pair) for pair in sorted(kept)),
)
async def test_peer_reset_that_leaves_a_link_is_reported(play: Play, kept: set[tuple[str, str]]) -> None:
    play.lost = PAIRS - kept
    with pytest.raises(
        FaultNotObserved, match=r"reset_peers leader.* does not report a broken link"
    ) as found:
        await proof_of(play, RESET_PEERS)
    assert any(f"{observer} does not report" in str(found.value) for observer, _ in kept)


@pytest.mark.parametrize("fault", LATENCIES, ids=str)
async def test_latency_is_proved_by_a_slow_answer(play: Play, fault: Fault) -> None:
    play.poisoned = [slow(0.16)]
    assert "an answer took 160 ms, 1 ms before" in await proof_of(play, fault)
    assert play.toxics == [("latency", {"latency": 200}, fault.direction)]


@pytest.mark.parametrize("fault", LATENCIES, ids=str)
async def test_latency_without_delay_is_reported(play: Play, fault: Fault) -> None:
    play.poisoned = [slow(0.159)]
    with pytest.raises(FaultNotObserved, match=f"{fault.kind}.* an answer took only 159 ms"):
        await proof_of(play, fault)


async def test_jitter_is_proved_by_one_slow_answer_of_eight(play: Play) -> None:
    play.poisoned = [QUICK] * 7 + [slow(0.12), QUICK]
    assert "an answer took 120 ms, 1 ms before" in await proof_of(play, JITTER)
    assert play.toxics == [("latency", {"latency": 150, "jitter": 150}, "both")]


@pytest.mark.parametrize("answer", [QUICK, slow(0.119)], ids=["nothing", "too-little"])
async def test_jitter_without_a_slow_answer_is_reported(play: Play, answer: Knock) -> None:
    play.poisoned = [QUICK] * 7 + [answer, slow(9.0)]
    with pytest.raises(FaultNotObserved, match=r"jitter_clients leader.* took only .* ms"):
        await proof_of(play, JITTER)
    assert play.asked == 8


def bandwidth(kind: Kind, direction: Direction) -> Fault:
    """By which what `QUICK` has sent takes 0.94 s, or, where only answers are slow, what came back 1.88 s."""
    return Fault(0.0, kind, "1" if kind is Kind.BANDWIDTH_BROKER else "leader", 0.0, 32, direction)


NARROW: list[tuple[Direction, float]] = [("both", 0.75), ("in", 0.75), ("out", 1.5)]
"""The shortest accepted time by direction."""
BANDWIDTHS = pytest.mark.parametrize("kind", [Kind.BANDWIDTH_CLIENTS, Kind.BANDWIDTH_BROKER])


@BANDWIDTHS
@pytest.mark.parametrize(("direction", "least_s"), NARROW)
async def test_bandwidth_is_proved_by_slow_bytes(
    play: Play, kind: Kind, direction: Direction, least_s: float
) -> None:
    play.poisoned = [slow(least_s)]
    assert f"bytes took {least_s:.2f} s" in await proof_of(play, bandwidth(kind, direction))
    assert play.toxics == [("bandwidth", {"rate": 32}, direction)]


@BANDWIDTHS
@pytest.mark.parametrize("answer_of", [lambda _: QUICK, lambda least_s: slow(least_s - 0.01)])
@pytest.mark.parametrize(("direction", "least_s"), NARROW)
async def test_bandwidth_without_slow_bytes_is_reported(
    play: Play, kind: Kind, direction: Direction, least_s: float, answer_of: Callable[[float], Knock]
) -> None:
    play.poisoned = [answer_of(least_s)]
    with pytest.raises(FaultNotObserved, match=f"{kind}.* bytes took only .* s, not {least_s:.2f}"):
        await proof_of(play, bandwidth(kind, direction))


@pytest.mark.parametrize(
    "fault", [*LATENCIES, JITTER, bandwidth(Kind.BANDWIDTH_CLIENTS, "both")], ids=lambda each: each.kind.value
)
@pytest.mark.parametrize("answer", [RESET, SILENT], ids=["broken", "silent"])
async def test_missing_answer_does_not_prove_slow_answers(play: Play, fault: Fault, answer: Knock) -> None:
    play.poisoned = [answer]
    with pytest.raises(FaultNotObserved, match="answer"):
        await proof_of(play, fault)
