"""The detector in a simulated world: peers that are killed, frozen, unreachable and slow, in any order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.control.detector import NO_QUORUM_PERIODS, FailureDetector
from fleet.core.liveness import ProbeOutcome, Transition
from fleet.core.model import Liveness
from tests.examples import examples

STEP_S = 0.025
SETTLE_S = 2.0


@dataclass(frozen=True)
class Timing:
    heartbeat_s: float = 0.1
    suspect_after_s: float = 0.8
    control_grace_s: float = 5.0
    probe_interval_s: float = 1.0
    grace_s: float = 10.0
    overlay_ttl_s: float = 10.0


@dataclass(frozen=True)
class Behaviour:
    """The behaviour of a peer, and the expected liveness after ``SETTLE_S`` of it."""

    linked: bool
    beats: bool
    ready: bool
    probe: ProbeOutcome | None
    """None: the probe cannot be sent, for a reason of this member itself."""
    expected: Liveness | None
    """None: the former liveness, because the probe shows nothing new."""


class Mode(Enum):
    HEALTHY = Behaviour(True, True, True, ProbeOutcome.ANSWERED, Liveness.UP)
    KILLED = Behaviour(False, False, False, ProbeOutcome.REFUSED, Liveness.SUSPECT)
    FROZEN = Behaviour(True, False, False, ProbeOutcome.TIMED_OUT, Liveness.SUSPECT)
    CUT_OFF = Behaviour(False, False, False, ProbeOutcome.TIMED_OUT, Liveness.SUSPECT)
    LISTENER_GONE = Behaviour(True, True, True, ProbeOutcome.REFUSED, Liveness.SUSPECT)
    LISTENER_SILENT = Behaviour(True, True, True, ProbeOutcome.TIMED_OUT, Liveness.SUSPECT)
    NOT_READY = Behaviour(True, True, False, ProbeOutcome.ANSWERED, Liveness.SUSPECT)
    NOT_ASKED = Behaviour(True, True, True, None, None)
    KILLED_AND_NOT_ASKED = Behaviour(False, False, False, None, Liveness.SUSPECT)


class World:
    """One detector, some peers, and a clock that advances by steps."""

    def __init__(self, peers: list[str]) -> None:
        self.now_s = 50.0
        self.detector = FailureDetector("me", peers, Timing(), self.now_s)
        self.modes = dict.fromkeys(peers, Mode.KILLED)
        self.lives = dict.fromkeys(peers, 0)
        self.transitions: list[Transition] = []
        self._beat_s = dict.fromkeys(peers, 0.0)
        self._results: dict[str, tuple[float, ProbeOutcome | None]] = {}
        for peer in peers:
            self.become(peer, Mode.HEALTHY)

    def become(self, peer: str, mode: Mode) -> None:
        before, self.modes[peer] = self.modes[peer].value, mode
        if before.linked and not mode.value.linked:
            self.detector.link_down(peer, self.now_s)
        if mode.value.probe is ProbeOutcome.REFUSED or mode is Mode.KILLED_AND_NOT_ASKED:
            self.detector.worker_given_up(peer, self.now_s)
        if mode.value.linked and not before.linked:
            self.lives[peer] += 1
            self.detector.link_up(peer, self.now_s)

    def run(self, for_s: float) -> None:
        held = dict(self.detector.liveness)
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s += STEP_S
            self._observe()
            for each in self.detector.tick(self.now_s):
                # Every change is reported once, and starts from the former liveness.
                assert held[each.peer] is each.before is not each.after
                held[each.peer] = each.after
                self.transitions.append(each)
            assert held == self.detector.liveness
            for peer in self.detector.probes_due(self.now_s):
                assert peer not in self._results, "one probe at a time"
                outcome = self.modes[peer].value.probe
                took_s = 0.5 if outcome is ProbeOutcome.TIMED_OUT else 0.01
                self._results[peer] = (self.now_s + took_s, outcome)

    def held(self, peer: str) -> Liveness:
        return self.detector.liveness[peer]

    def _observe(self) -> None:
        for peer, mode in self.modes.items():
            if peer in self._results and self._results[peer][0] <= self.now_s:
                self._end_probe(peer, self._results.pop(peer)[1])
            self._hold(peer, mode)
            if mode.value.beats and self.now_s >= self._beat_s[peer]:
                self._beat_s[peer] = self.now_s + Timing.heartbeat_s
                self.detector.heartbeat(peer, mode.value.ready, self.lives[peer], self.now_s)

    def _end_probe(self, peer: str, outcome: ProbeOutcome | None) -> None:
        if outcome is None:
            self.detector.probe_failed_here(peer, self.now_s)
        else:
            self.detector.probe_result(peer, outcome, self.now_s)

    def _hold(self, peer: str, mode: Mode) -> None:
        """Probe over the persistent connection to the peer's worker, if it has one."""
        if mode.value.probe is ProbeOutcome.REFUSED or mode is Mode.KILLED_AND_NOT_ASKED:
            return
        self.detector.worker_asked(peer, self.now_s)
        if mode.value.probe is ProbeOutcome.ANSWERED or mode is Mode.NOT_ASKED:
            self.detector.worker_answered(peer, self.now_s)


Plays: TypeAlias = list[tuple[str, Mode, float]]
modes = st.sampled_from(Mode)
durations = st.sampled_from([0.05, 0.3, 0.7, 1.0, 2.5])
plays = st.lists(st.tuples(st.sampled_from(["p1", "p2"]), modes, durations), max_size=12)


@settings(max_examples=examples(150))
@given(plays)
def test_verdict_becomes_right_after_any_history(play: Plays) -> None:
    world = World(["p1", "p2"])
    world.run(0.5)
    for peer, mode, for_s in play:
        world.become(peer, mode)
        world.run(for_s)
    world.run(SETTLE_S)
    for peer, mode in world.modes.items():
        assert mode.value.expected in (None, world.detector.liveness[peer])


@settings(max_examples=examples(150))
@given(plays, st.sampled_from([Mode.KILLED, Mode.FROZEN, Mode.CUT_OFF, Mode.KILLED_AND_NOT_ASKED]))
def test_a_death_is_noticed_in_time_after_any_history(play: Plays, death: Mode) -> None:
    world = World(["p1", "p2"])
    for peer, mode, for_s in play:
        world.become(peer, mode)
        world.run(for_s)
    world.become("p1", Mode.HEALTHY)
    world.run(SETTLE_S)
    assert world.held("p1") is Liveness.UP
    world.become("p1", death)
    world.run(0.1 if death is Mode.KILLED else 0.8 + 2 * STEP_S)
    assert world.held("p1") is Liveness.SUSPECT


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.sampled_from(["p1", "p2"]), st.booleans(), durations), max_size=20))
def test_local_failures_change_nothing(play: list[tuple[str, bool, float]]) -> None:
    world = World(["p1", "p2"])
    world.run(0.5)
    for peer, fails, for_s in play:
        world.become(peer, Mode.NOT_ASKED if fails else Mode.HEALTHY)
        world.run(for_s)
    world.run(5.0)
    assert {each.after for each in world.transitions} == {Liveness.UP}
    assert len(world.transitions) == 2


@given(st.lists(st.floats(0.05, 0.65), min_size=5, max_size=60), st.lists(st.floats(0.0, 30.0), max_size=4))
def test_live_peer_with_uneven_heartbeats_is_never_suspected(gaps: list[float], pauses: list[float]) -> None:
    world = World(["p1"])
    world.run(0.5)
    for index, gap_s in enumerate(gaps):
        world.modes["p1"] = Mode.FROZEN
        world._results.clear()
        world.run(gap_s)
        # A probe of a slow peer is answered late, but is answered.
        world.detector.probe_result("p1", ProbeOutcome.ANSWERED, world.now_s)
        world.detector.worker_answered("p1", world.now_s)
        world._results.clear()
        if index < len(pauses):
            world.now_s += pauses[index]
        world.detector.heartbeat("p1", True, 1, world.now_s)
    assert [each.after for each in world.transitions] == [Liveness.UP]


@given(plays, st.lists(st.booleans(), min_size=12, max_size=12), st.sets(st.sampled_from(["p1", "p2"])))
def test_overlay_bypasses_suspects_alone_and_all_without_quorum(
    play: Plays, quorums: list[bool], down: set[str]
) -> None:
    world = World(["p1", "p2"])
    for (peer, mode, for_s), quorum in zip(play, quorums, strict=False):
        world.become(peer, mode)
        world.run(for_s)
        if not quorum:
            world.detector.bypassed(world.now_s, quorum, down)
            world.run(NO_QUORUM_PERIODS * Timing.suspect_after_s + 0.1)
        suspected = {p for p, liveness in world.detector.liveness.items() if liveness is Liveness.SUSPECT}
        overlay = world.detector.bypassed(world.now_s, quorum, down)
        assert overlay <= suspected
        assert overlay >= (suspected & down if quorum else suspected)
