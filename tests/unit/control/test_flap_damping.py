"""Flapping members wait longer each time, and as configured again once they have stayed up."""

from __future__ import annotations

from dataclasses import replace

from fleet.control.flap_damping import FLAP_WINDOW_S, MAX_WAIT_S, FlapDamper
from fleet.core.model import FleetState, Member, MemberStatus

STEADY_S = 2.0
UP, DOWN, DRAINING = MemberStatus.UP, MemberStatus.DOWN, MemberStatus.DRAINING


class Play:
    """One member whose committed status the play sets."""

    def __init__(self) -> None:
        self.flaps = FlapDamper(STEADY_S)
        self.now_s = 100.0
        self.state = FleetState()

    def becomes(self, status: MemberStatus, after_s: float = 0.0) -> float:
        """How long the member would have to wait now."""
        self.now_s += after_s
        state = replace(self.state, members={"p1": Member("p1", status=status)})
        self.flaps.on_committed(self.state, state, self.now_s)
        self.state = state
        return self.flaps.steady_s("p1")


def test_a_member_that_stays_waits_as_configured() -> None:
    play = Play()
    assert play.becomes(UP) == STEADY_S
    assert play.becomes(DOWN, after_s=FLAP_WINDOW_S) == STEADY_S
    assert play.flaps.steady_s("never seen") == STEADY_S


def test_flapping_member_waits_twice_as_long_up_to_a_limit() -> None:
    play = Play()
    waits = []
    for _ in range(8):
        play.becomes(UP, after_s=5.0)
        waits.append(play.becomes(DOWN, after_s=1.0))
    assert waits == [STEADY_S, 4.0, 8.0, 16.0, 32.0, MAX_WAIT_S, MAX_WAIT_S, MAX_WAIT_S]


def test_longer_wait_requires_a_longer_stay() -> None:
    play = Play()
    for _ in range(4):
        play.becomes(UP)
        play.becomes(DOWN)
    assert play.flaps.steady_s("p1") == 16.0
    play.becomes(UP)
    assert play.becomes(DOWN, after_s=31.0) == 32.0
    play.becomes(UP)
    assert play.becomes(DOWN, after_s=64.0) == STEADY_S


def test_cleanly_stopped_member_does_not_flap() -> None:
    play = Play()
    for _ in range(5):
        play.becomes(UP)
        play.becomes(DRAINING)
        assert play.becomes(DOWN) == STEADY_S


def test_configured_wait_above_the_limit_is_kept() -> None:
    flaps = FlapDamper(2 * MAX_WAIT_S)
    up = FleetState(members={"p1": Member("p1", status=UP)})
    down = FleetState(members={"p1": Member("p1", status=DOWN)})
    flaps.on_committed(FleetState(), up, 0.0)
    flaps.on_committed(up, down, 1.0)
    assert flaps.steady_s("p1") == 2 * MAX_WAIT_S
