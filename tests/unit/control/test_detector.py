"""The failure detector, as plays of observations: when a peer is suspected, and when it is not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fleet.control.detector import WORKER_LOSS_BYPASS_S, FailureDetector
from fleet.core.liveness import ProbeOutcome, Transition
from fleet.core.model import Liveness

ANSWERED, REFUSED, TIMED_OUT = ProbeOutcome.ANSWERED, ProbeOutcome.REFUSED, ProbeOutcome.TIMED_OUT
STEP_S = 0.02


@dataclass(frozen=True)
class Timing:
    heartbeat_s: float = 0.1
    suspect_after_s: float = 0.8
    control_grace_s: float = 5.0
    probe_interval_s: float = 1.0
    probe_timeout_s: float = 0.5
    grace_s: float = 10.0
    overlay_ttl_s: float = 10.0


class Play:
    """One detector and one peer, p2, whose behaviour the play sets. ``run`` advances the time."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.detector = FailureDetector("p1", ("p1", "p2"), Timing(), self.now_s)
        self.beating = False
        self.ready = True
        self.incarnation = 1
        self.answer: ProbeOutcome | None = ANSWERED
        """The outcome of a probe; None: a local fault prevents it."""
        self.transitions: list[Transition] = []
        self.probes: list[float] = []
        self.answers_after_s: float | None = -1.0
        """Delay of answers on the held connection; None: no answers; negative: no held connection."""
        self.late_s: float | None = None
        """Delay of the late answer to a probe; None: no late answer."""
        self._answers_s: list[float] = []
        self._late: list[tuple[float, float]] = []
        self._next_beat_s = self.now_s
        self._result: tuple[float, ProbeOutcome | None] | None = None

    def run(self, for_s: float) -> Play:
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s = min(self.now_s + STEP_S, end_s)
            self._world()
            self.transitions += self.detector.tick(self.now_s)
            if self.detector.probes_due(self.now_s):
                self.probes.append(self.now_s)
                outcome = self.answer if self.late_s is None else TIMED_OUT
                took_s = Timing.probe_timeout_s if outcome is TIMED_OUT else 0.001
                self._result = (self.now_s + took_s, outcome)
                if self.late_s is not None:
                    self._late.append((self.now_s, self.now_s + self.late_s))
        return self

    def _world(self) -> None:
        if self._result is not None and self._result[0] <= self.now_s:
            (_, outcome), self._result = self._result, None
            if outcome is None:
                self.detector.probe_failed_here("p2", self.now_s)
            else:
                self.detector.probe_result("p2", outcome, self.now_s)
        if self.beating and self.now_s >= self._next_beat_s:
            self._next_beat_s = self.now_s + Timing.heartbeat_s
            self.detector.heartbeat("p2", self.ready, self.incarnation, self.now_s)
            self._ask_worker()
        while self._answers_s and self._answers_s[0] <= self.now_s:
            self._answers_s.pop(0)
            self.detector.worker_answered("p2", self.now_s)
        while self._late and self._late[0][1] <= self.now_s:
            self.detector.answered_late("p2", self._late.pop(0)[0], self.now_s)

    @property
    def alive_ago_s(self) -> float:
        alive_s = self.detector.alive_s("p2")
        assert alive_s is not None
        return self.now_s - alive_s

    def _ask_worker(self) -> None:
        if self.answers_after_s is None or self.answers_after_s >= 0:
            self.detector.worker_asked("p2", self.now_s)
        if self.answers_after_s is not None and self.answers_after_s >= 0:
            self._answers_s.append(self.now_s + self.answers_after_s)

    def start(self) -> Play:
        self.detector.link_up("p2", self.now_s)
        self.beating = True
        return self

    def lose_link(self) -> Play:
        self.beating = False
        self.detector.link_down("p2", self.now_s)
        return self

    def run_to_probe(self) -> Play:
        """Run until a probe has just been sent. The play then answers it."""
        sent = len(self.probes)
        while len(self.probes) == sent:
            self.run(STEP_S)
        self._result = None
        return self

    @property
    def liveness(self) -> Liveness:
        return self.detector.liveness["p2"]

    def after_s(self, since_s: float) -> float:
        """The time from a moment to the only transition after it."""
        (transition,) = [each for each in self.transitions if each.at_s > since_s]
        return transition.at_s - since_s

    @property
    def reason(self) -> str:
        return self.transitions[-1].reason


@pytest.fixture
def up() -> Play:
    """A play in which p2 has been up for a while."""
    play = Play().start().run(3.0)
    assert play.liveness is Liveness.UP
    return play


def test_a_peer_is_up_with_its_first_good_report() -> None:
    play = Play()
    assert play.liveness is Liveness.UNKNOWN
    play.start().run(STEP_S)
    assert play.transitions == [Transition("p2", Liveness.UNKNOWN, Liveness.UP, "recovered", play.now_s)]


def test_a_peer_never_heard_of_is_unknown_for_the_grace() -> None:
    play = Play().run(9.9)
    assert play.liveness is Liveness.UNKNOWN
    assert play.probes == []
    assert play.run(0.2).liveness is Liveness.SUSPECT
    assert play.reason == "never_heard"


def test_a_peer_that_is_not_ready_yet_is_unknown_for_the_grace() -> None:
    play = Play()
    play.ready = False
    play.start().run(5.0)
    assert play.liveness is Liveness.UNKNOWN
    play.ready = True
    assert play.run(0.2).liveness is Liveness.UP


def test_a_killed_peer_is_suspected_with_the_first_refusal(up: Play) -> None:
    killed_s, up.answer = up.now_s, REFUSED
    up.lose_link()
    assert up.detector.probes_due(up.now_s) == ["p2"]
    up.detector.probe_result("p2", REFUSED, up.now_s)
    (transition,) = up.detector.tick(up.now_s)
    assert (transition.after, transition.at_s) == (Liveness.SUSPECT, killed_s)
    assert transition.reason == "reset"


def test_a_refusal_alone_does_not_outweigh_the_link(up: Play) -> None:
    up.run_to_probe()
    up.detector.probe_result("p2", REFUSED, up.now_s)
    up.run(2.0)
    assert len(up.transitions) == 1


def test_a_control_process_may_be_restarted_while_workers_answer(up: Play) -> None:
    lost_s = up.now_s
    up.lose_link().run(4.5)
    assert up.liveness is Liveness.UP
    assert len([at_s for at_s in up.probes if at_s > lost_s]) > 20
    up.start().run(2.0)
    assert len(up.transitions) == 1


def test_a_control_process_that_stays_away_is_suspected(up: Play) -> None:
    lost_s = up.now_s
    up.lose_link().run(6.0)
    assert 4.8 < up.after_s(lost_s) <= 5.0 + STEP_S
    assert up.reason == "control_gone"


def test_frozen_control_process_is_suspected_like_a_dead_one(up: Play) -> None:
    frozen_s, up.beating = up.now_s, False
    up.run(6.0)
    assert 4.8 < up.after_s(frozen_s) <= 5.0 + STEP_S


def test_a_worker_that_dies_after_its_control_process_is_noticed(up: Play) -> None:
    up.lose_link().run(2.0)
    died_s, up.answer = up.now_s, REFUSED
    up.run(1.0)
    assert up.after_s(died_s) <= 0.15


@pytest.mark.parametrize("frozen_for_s", [0.0, 0.03, 0.06, 0.09])
def test_a_frozen_peer_is_suspected_after_suspect_after_s(up: Play, frozen_for_s: float) -> None:
    up.run(frozen_for_s)
    frozen_s, up.beating, up.answer = up.now_s, False, TIMED_OUT
    up.run(1.5)
    assert 0.65 < up.after_s(frozen_s) <= 0.8 + 2 * STEP_S
    assert up.reason == "silent"


def test_a_black_hole_that_takes_the_link_is_suspected_in_time(up: Play) -> None:
    lost_s, up.answer = up.now_s, TIMED_OUT
    up.lose_link().run(1.5)
    assert 0.65 < up.after_s(lost_s) <= 0.8 + 2 * STEP_S


def test_half_a_silence_causes_a_probe_but_no_suspicion(up: Play) -> None:
    silent_s, up.beating = up.now_s, False
    up.run(0.7)
    assert next(at_s for at_s in up.probes if at_s > silent_s + 0.2) <= silent_s + 0.4 + 2 * STEP_S
    up.beating = True
    up.run(3.0)
    assert len(up.transitions) == 1


def test_refusing_listener_outweighs_heartbeats(up: Play) -> None:
    broken_s, up.answer = up.now_s, REFUSED
    up.run(2.0)
    assert up.after_s(broken_s) <= 1.0 + 0.1 + 4 * STEP_S
    assert up.reason == "unreachable"


def test_a_peer_whose_listener_is_dead_silent_is_suspected(up: Play) -> None:
    """There is no held connection, which would show the fault earlier."""
    broken_s, up.answer = up.now_s, TIMED_OUT
    up.run(6.0)
    assert 2.4 < up.after_s(broken_s) <= 1.0 + 2.4 + 4 * STEP_S
    assert up.reason == "unreachable"


def test_unreachable_peer_is_suspected_despite_heartbeats(up: Play) -> None:
    """Found: a black hole towards the leader alone was noticed after 1.0 to 2.0 s, depending on probes."""
    up.answers_after_s = 0.0
    up.run(1.0)
    broken_s, up.answer, up.answers_after_s = up.now_s, TIMED_OUT, None
    up.run(3.0)
    assert up.after_s(broken_s) <= 0.1 + 1.2 + 2 * STEP_S
    assert up.reason == "unreachable"


@pytest.mark.parametrize("latency_s", [0.6, 1.0])
def test_slow_answers_are_answers(up: Play, latency_s: float) -> None:
    """Found: with 300 ms each way every probe timed out, and the member lost its identities."""
    up.answers_after_s = 0.0
    up.run(1.0)
    up.answers_after_s = up.late_s = latency_s
    up.run(20.0)
    assert len(up.transitions) == 1


def test_a_held_connection_that_is_silent_alone_is_no_death(up: Play) -> None:
    up.answers_after_s = 0.0
    up.run(1.0)
    up.answers_after_s = None
    up.run(5.0)
    assert len(up.transitions) == 1


def test_a_held_connection_that_was_given_up_asks_nothing(up: Play) -> None:
    up.detector.worker_asked("p2", up.now_s)
    up.detector.worker_given_up("p2", up.now_s)
    assert up.detector.probes_due(up.now_s) == ["p2"]
    up.answer = TIMED_OUT
    up.run(1.5)
    assert len(up.transitions) == 1


def test_local_probe_failures_suspect_no_peer(up: Play) -> None:
    """Found: two failed look-ups outweighed link, heartbeats and answers on the held connection."""
    up.answers_after_s = 0.0
    up.answer = None
    up.run(20.0)
    assert len(up.transitions) == 1
    assert up.detector.failed_probes == frozenset()


def test_local_probe_failure_keeps_an_earlier_refusal(up: Play) -> None:
    up.run_to_probe()
    up.detector.probe_result("p2", REFUSED, up.now_s)
    assert up.detector.failed_probes == {"p2"}
    up.answer = None
    up.run(5.0)
    assert len(up.transitions) == 1
    assert up.detector.failed_probes == frozenset(), "this member cannot know whether p2 still refuses"
    resumed_s, up.answer = up.now_s, REFUSED
    up.run(2.0)
    assert up.after_s(resumed_s) <= 1.0 + 2 * STEP_S
    assert up.reason == "unreachable"


def test_killed_peer_is_suspected_when_probes_fail_locally(up: Play) -> None:
    killed_s, up.answer = up.now_s, None
    up.lose_link().run(3.0)
    assert 0.65 < up.after_s(killed_s) <= 0.8 + 2 * STEP_S
    assert up.reason == "silent"


def test_slow_lookup_is_no_silence_of_the_peer(up: Play) -> None:
    """A probe counts from its sending, not from the look-up of the name."""
    up.run_to_probe()
    due_s = up.now_s
    up.run(0.6)
    up.detector.probe_sent("p2", up.now_s)
    up.detector.probe_result("p2", ANSWERED, up.now_s)
    assert up.alive_ago_s == 0.0
    assert up.now_s - due_s >= 0.6


def test_held_connection_recovers_peer_when_probes_fail_here(up: Play) -> None:
    up.answers_after_s = 0.0
    up.ready = False
    up.run(1.0)
    assert up.reason == "not_ready"
    back_s, up.ready, up.answer = up.now_s, True, None
    up.run(2.0)
    assert up.reason == "recovered"
    assert up.after_s(back_s) <= 1.0 + 4 * STEP_S


def test_local_link_failure_is_no_death_of_control(up: Play) -> None:
    lost_s = up.now_s
    up.lose_link()
    while up.now_s < lost_s + 20.0:
        up.run(0.5)
        up.detector.link_failed_here("p2", up.now_s)
    assert up.liveness is Liveness.UP, "its workers answer"
    healed_s = up.now_s
    up.run(6.0)
    assert 4.8 < up.after_s(healed_s) <= 5.0 + STEP_S
    assert up.reason == "control_gone"


def test_local_link_failure_at_most_doubles_the_grace() -> None:
    """Found: the name of a removed peer did not resolve, so no member took over its identities."""
    play = Play()
    while play.now_s < 1019.0:
        play.run(0.5)
        play.detector.link_failed_here("p2", play.now_s)
        assert play.liveness is Liveness.UNKNOWN
    while play.now_s < 1021.0:
        play.run(0.5)
        play.detector.link_failed_here("p2", play.now_s)
    assert play.reason == "never_heard"
    assert 20.0 <= play.transitions[-1].at_s - 1000.0 <= 20.0 + 2 * STEP_S


def test_grace_restarts_after_local_link_failure() -> None:
    play = Play().run(5.0)
    play.detector.link_failed_here("p2", play.now_s)
    assert play.run(9.9).liveness is Liveness.UNKNOWN
    assert play.run(0.2).reason == "never_heard"


def test_failed_lookup_is_not_retried_fifty_times_a_second(up: Play) -> None:
    before = len(up.probes)
    up.answer = None
    up.lose_link().run(0.5)
    assert len(up.probes) - before <= 6


def test_a_peer_is_heard_while_its_heartbeats_arrive(up: Play) -> None:
    assert up.detector.receives_heartbeats("p2", up.now_s)
    up.beating = False
    up.run(0.9)
    assert not up.detector.receives_heartbeats("p2", up.now_s)
    up.beating = True
    up.run(0.2)
    assert up.detector.receives_heartbeats("p2", up.now_s)
    up.lose_link()
    assert not up.detector.receives_heartbeats("p2", up.now_s)


def test_single_probe_timeout_is_no_death(up: Play) -> None:
    up.run_to_probe().run(0.5)
    up.detector.probe_result("p2", TIMED_OUT, up.now_s)
    up.run(5.0)
    assert len(up.transitions) == 1


def test_a_peer_that_says_it_is_not_ready_is_suspected(up: Play) -> None:
    broken_s, up.ready = up.now_s, False
    up.run(0.5)
    assert up.after_s(broken_s) <= 0.1 + STEP_S
    back_s, up.ready = up.now_s, True
    up.run(1.0)
    assert up.liveness is Liveness.UP
    assert up.after_s(back_s) <= 0.1 + 3 * STEP_S


def test_recovery_takes_link_heartbeat_and_answer(up: Play) -> None:
    up.answer = REFUSED
    up.lose_link().run(1.0)
    assert up.liveness is Liveness.SUSPECT
    up.incarnation = 2
    up.start().run(1.0)
    assert up.liveness is Liveness.SUSPECT, "its listener still refuses"
    up.answer = ANSWERED
    assert up.run(1.2).liveness is Liveness.UP


def test_answer_to_an_earlier_question_is_no_recovery(up: Play) -> None:
    up.run_to_probe()
    up.ready = False
    up.run(0.2)
    assert up.liveness is Liveness.SUSPECT
    up.ready = True
    up.run(0.2)
    assert up.liveness is Liveness.SUSPECT
    up.detector.probe_result("p2", ANSWERED, up.now_s)
    assert up.detector.tick(up.now_s) == []
    assert up.detector.probes_due(up.now_s) == ["p2"]
    up.detector.probe_result("p2", ANSWERED, up.now_s)
    assert [each.after for each in up.detector.tick(up.now_s)] == [Liveness.UP]


def test_answer_just_before_a_freeze_gives_no_more_time(up: Play) -> None:
    up.run_to_probe()
    sent_s, up.beating, up.answer = up.now_s, False, TIMED_OUT
    up.run(0.4)
    # The answer took long.
    up.detector.probe_result("p2", ANSWERED, up.now_s)
    up.run(1.5)
    assert up.after_s(sent_s) <= 0.8 + 2 * STEP_S


def test_same_incarnation_recovers_with_its_link(up: Play) -> None:
    up.answer = TIMED_OUT
    up.lose_link().run(3.0)
    assert up.liveness is Liveness.SUSPECT
    up.run_to_probe()
    up.detector.probe_result("p2", TIMED_OUT, up.now_s)
    back_s, up.answer = up.now_s, ANSWERED
    up.start().run(1.0)
    assert up.after_s(back_s) <= 0.1 + 3 * STEP_S


def test_a_resumed_peer_recovers_at_once(up: Play) -> None:
    up.beating, up.answer = False, TIMED_OUT
    up.run(3.0)
    assert up.liveness is Liveness.SUSPECT
    resumed_s, up.beating, up.answer = up.now_s, True, ANSWERED
    up.run(1.0)
    assert up.after_s(resumed_s) <= 0.5 + 4 * STEP_S


def test_constant_latency_does_not_flap() -> None:
    play = Play()
    play.detector.link_up("p2", play.now_s)
    play.run(0.5)
    play.beating = True
    play.run(10.0)
    # … nor does latency that appears suddenly.
    play.beating = False
    play.run(0.5)
    play.beating = True
    play.run(5.0)
    assert [each.after for each in play.transitions] == [Liveness.UP]


def test_pause_of_this_process_is_no_silence_of_peers(up: Play) -> None:
    up.now_s += 30.0
    up.run(3.0)
    assert len(up.transitions) == 1


def test_probe_timeout_during_a_pause_is_no_evidence(up: Play) -> None:
    up.lose_link()
    assert up.detector.probes_due(up.now_s) == ["p2"]
    up.now_s += 30.0
    assert up.detector.tick(up.now_s) == []
    up.detector.probe_result("p2", REFUSED, up.now_s)
    assert up.detector.tick(up.now_s) == []
    assert up.detector.probes_due(up.now_s + 0.1) == ["p2"]


def test_death_during_a_pause_is_noticed(up: Play) -> None:
    up.now_s += 30.0
    resumed_s, up.answer = up.now_s, REFUSED
    up.lose_link().run(1.0)
    assert up.after_s(resumed_s) <= 0.1


def test_restart_clears_failed_probes(up: Play) -> None:
    up.run_to_probe()
    up.detector.heartbeat("p2", True, 2, up.now_s)
    up.detector.probe_result("p2", REFUSED, up.now_s)
    assert up.detector.tick(up.now_s) == []
    assert up.detector.probes_due(up.now_s) == ["p2"]
    up.detector.probe_result("p2", REFUSED, up.now_s)
    assert up.detector.tick(up.now_s) == [], "one refusal"


def test_a_healthy_peer_is_probed_once_an_interval(up: Play) -> None:
    before = len(up.probes)
    up.run(10.0)
    assert 9 <= len(up.probes) - before <= 11


def test_peer_has_one_probe_at_a_time(up: Play) -> None:
    up.lose_link()
    assert up.detector.probes_due(up.now_s) == ["p2"]
    assert up.detector.probes_due(up.now_s + 0.3) == []
    up.detector.probe_result("p2", ANSWERED, up.now_s + 0.3)
    assert up.detector.probes_due(up.now_s + 0.3) == ["p2"]


def test_the_next_deadline_is_never_far_and_never_late(up: Play) -> None:
    up.beating = False
    heard_s = up.now_s
    while up.now_s < heard_s + 2.0:
        deadline_s = up.detector.next_deadline_s(up.now_s)
        assert up.now_s <= deadline_s <= up.now_s + 0.1 + 1e-5
        up.now_s = max(deadline_s, up.now_s + 0.001)
        up.transitions += up.detector.tick(up.now_s)
        up.detector.probes_due(up.now_s)
    assert up.after_s(heard_s) <= 0.81


def bypassed(play: Play, has_quorum: bool = True, down: frozenset[str] = frozenset()) -> frozenset[str]:
    return play.detector.bypassed(play.now_s, has_quorum, down)


def kill(play: Play) -> Play:
    play.answer = REFUSED
    return play.lose_link().run(0.1)


def test_lost_worker_is_bypassed_before_the_verdict(up: Play) -> None:
    """Found by takeovers that took a second: a client had connected in the 20 ms before the refusal."""
    up.detector.worker_lost("p2", up.now_s)
    assert bypassed(up) == {"p2"}
    assert up.detector.probes_due(up.now_s) == ["p2"]
    up.detector.probe_result("p2", ANSWERED, up.now_s)
    assert up.detector.tick(up.now_s) == []
    assert bypassed(up) == {"p2"}, (
        "the dead member's listener takes connections until its last process is gone"
    )
    deadline_s = up.now_s + WORKER_LOSS_BYPASS_S
    while up.now_s < deadline_s:
        assert up.detector.next_deadline_s(up.now_s) <= deadline_s + 1e-5
        up.run(STEP_S)
    assert bypassed(up) == frozenset()
    assert len(up.transitions) == 1


def test_workers_that_come_and_go_move_clients_once(up: Play) -> None:
    up.detector.worker_lost("p2", up.now_s)
    up.run(1.0)
    up.detector.worker_lost("p2", up.now_s)
    assert bypassed(up) == frozenset()
    up.run(2.0)
    up.detector.worker_lost("p2", up.now_s)
    assert bypassed(up) == {"p2"}


def test_death_of_control_alone_causes_no_bypass(up: Play) -> None:
    up.lose_link()
    assert bypassed(up) == frozenset()


def test_unshared_suspicion_lapses_with_a_quorum(up: Play) -> None:
    bypassed(up)
    kill(up)
    assert bypassed(up) == {"p2"}
    up.run(9.5)
    assert bypassed(up) == {"p2"}
    # Not a moment later, because the workers must receive the change in time.
    lapses_s = up.now_s - 0.1 - 9.5 + Timing().overlay_ttl_s
    while bypassed(up):
        assert up.detector.next_deadline_s(up.now_s) < lapses_s
        up.run(STEP_S)
    assert up.now_s < lapses_s
    assert up.liveness is Liveness.SUSPECT
    assert bypassed(up, down=frozenset({"p2"})) == {"p2"}


def test_lapsed_suspicion_counts_again_after_recovery(up: Play) -> None:
    bypassed(up)
    kill(up).run(11.0)
    assert bypassed(up) == frozenset()
    up.answer = ANSWERED
    up.start().run(2.0)
    kill(up)
    assert bypassed(up) == {"p2"}


def test_without_a_quorum_a_suspicion_stays(up: Play) -> None:
    bypassed(up, has_quorum=False)
    kill(up)
    for _ in range(10):
        up.run(5.0)
        assert bypassed(up, has_quorum=False) == {"p2"}
    # This time does not count, because nothing could be committed.
    assert bypassed(up) == {"p2"}
    up.run(9.7)
    assert bypassed(up) == {"p2"}
    up.run(0.2)
    assert bypassed(up) == frozenset()


def test_elections_do_not_make_a_suspicion_last(up: Play) -> None:
    """Found: if two members hear each other one way only, leaders come and go. The suspicion started again
    each time, and later the time of each election was added."""
    bypassed(up)
    kill(up)
    started_s, has_quorum = up.now_s, False
    while bypassed(up, has_quorum):
        up.run(0.4)
        has_quorum = not has_quorum
    ttl_s = Timing().overlay_ttl_s
    assert ttl_s - 0.6 <= up.now_s - started_s <= ttl_s
    bypassed(up, has_quorum=False)
    up.run(0.4)
    assert bypassed(up, has_quorum=False) == frozenset(), "a lapsed suspicion stays lapsed"


def test_election_does_not_shorten_a_later_time_alone(up: Play) -> None:
    """Found by a reviewer: the time before the election counted as time alone, and was missing later."""
    bypassed(up)
    bypassed(up, has_quorum=False)
    up.run(1.4)
    kill(up)
    bypassed(up, has_quorum=False)
    up.run(0.1)
    assert bypassed(up) == {"p2"}
    bypassed(up, has_quorum=False)
    up.run(20.0)
    assert bypassed(up, has_quorum=False) == {"p2"}
    assert bypassed(up) == {"p2"}
    up.run(9.5)
    assert bypassed(up) == {"p2"}


def test_isolated_member_bypasses_all_suspects(up: Play) -> None:
    bypassed(up)
    kill(up).run(11.0)
    assert bypassed(up) == frozenset()
    assert bypassed(up, has_quorum=False) == frozenset()
    up.run(1.7)
    assert bypassed(up, has_quorum=False) == {"p2"}


def test_detector_does_not_watch_itself() -> None:
    assert FailureDetector("p1", ("p1", "p2", "p3"), Timing(), 0.0).liveness.keys() == {"p2", "p3"}


def test_alive_time_is_unknown_without_an_answer() -> None:
    play = Play().start()
    assert play.detector.alive_s("p2") is None
    play.answer = REFUSED
    assert play.run(2.0).detector.alive_s("p2") is None


def test_alive_time_is_when_the_question_was_sent() -> None:
    play = Play()
    play.answers_after_s = 0.25
    play.start().run(3.0)
    # p2 gets a question every 0.1 s, and answers each 0.25 s later.
    assert 0.25 <= play.alive_ago_s <= 0.25 + Timing.heartbeat_s + 2 * STEP_S
    asked_s = play.detector.alive_s("p2")
    play.answers_after_s, play.answer = None, TIMED_OUT
    play.run(0.25 + STEP_S)
    last_s = play.detector.alive_s("p2")
    assert asked_s is not None
    assert last_s is not None
    assert asked_s < last_s <= play.now_s - 0.25, "some answers are still in flight"
    play.run(0.1)
    assert play.detector.alive_s("p2") == last_s


def test_new_connection_does_not_answer_old_questions(up: Play) -> None:
    up.run(STEP_S)
    before_s = up.detector.alive_s("p2")
    up.detector.worker_asked("p2", up.now_s)
    up.detector.worker_given_up("p2", up.now_s)
    up.detector.worker_answered("p2", up.now_s + 0.01)
    assert up.detector.alive_s("p2") == before_s
    up.detector.worker_asked("p2", up.now_s + 0.02)
    up.detector.worker_lost("p2", up.now_s + 0.03)
    up.detector.worker_answered("p2", up.now_s + 0.04)
    assert up.detector.alive_s("p2") == before_s
    up.detector.worker_asked("p2", up.now_s + 0.05)
    up.detector.worker_answered("p2", up.now_s + 0.06)
    assert up.detector.alive_s("p2") == up.now_s + 0.05


def test_probe_answer_counts_from_its_sending(up: Play) -> None:
    up.run_to_probe()
    sent_s = up.probes[-1]
    up.detector.probe_result("p2", ANSWERED, up.now_s + 0.3)
    assert up.detector.alive_s("p2") == sent_s
    up.detector.answered_late("p2", sent_s - 0.5, up.now_s + 0.3)
    assert up.detector.alive_s("p2") == sent_s, "an answer to an older question changes nothing"
    up.detector.answered_late("p2", sent_s + 0.1, up.now_s + 0.4)
    assert up.detector.alive_s("p2") == sent_s + 0.1


def test_alive_time_is_on_the_callers_clock() -> None:
    play = Play()
    play.answers_after_s = 0.0
    play.start().run(3.0)
    alive_s = play.detector.alive_s("p2")
    play.now_s += 60.0
    play.detector.tick(play.now_s)
    assert play.detector.alive_s("p2") == alive_s
    play.run(1.0)
    assert play.alive_ago_s <= Timing.heartbeat_s + 2 * STEP_S
