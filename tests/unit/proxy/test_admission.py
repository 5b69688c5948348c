"""Admission of connections above the limits."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.proxy.admission import MAX_SILENCE_S, Admission

A, B, PEER = "192.0.2.1", "192.0.2.2", "192.0.2.9"


@dataclass(eq=False)
class Guest:
    source: str = A
    answered: int = 0


def entered(admission: Admission[Guest], count: int, source: str = A, now_s: float = 0.0) -> list[Guest]:
    """Return new connections, none of which is evicted."""
    guests = [Guest(source) for _ in range(count)]
    assert [admission.enter(each, now_s) for each in guests] == [None] * count
    return guests


def refusal(admission: Admission[Guest], guest: Guest) -> str | None:
    error = admission.ask_for_broker(guest)
    return None if error is None else f"{error.reason}: {error}"


def test_connections_within_the_limit_get_a_broker() -> None:
    admission: Admission[Guest] = Admission(3, None, 5)
    first = entered(admission, 3)
    (fourth,) = entered(admission, 1)
    assert [refusal(admission, each) for each in first] == [None] * 3
    assert refusal(admission, fourth) == "max_connections: 3 connections are open"


def test_source_has_a_limit_of_its_own() -> None:
    admission: Admission[Guest] = Admission(10, 2, 5)
    many, other = entered(admission, 3), entered(admission, 1, B)
    assert [refusal(admission, each) for each in (*many[:2], *other)] == [None] * 3
    assert refusal(admission, many[2]) == f"max_connections_per_source: 2 connections of {A} are open"


def test_connection_is_admitted_once_there_is_room() -> None:
    admission: Admission[Guest] = Admission(1, 1, 5)
    (first,), (second,), (third,) = (entered(admission, 1) for _ in range(3))
    admission.leave(first)
    assert refusal(admission, third) is None
    assert refusal(admission, second) is not None
    admission.leave(second)  # was never counted
    assert refusal(admission, Guest()) is not None
    admission.leave(third)
    assert refusal(admission, Guest()) is None


def test_silence_above_a_limit_ends_the_connection() -> None:
    admission: Admission[Guest] = Admission(1, None, 5)
    (inside,) = entered(admission, 1)
    silent, asking = entered(admission, 2)
    asking.answered = 1
    assert admission.silent_guests(MAX_SILENCE_S) == []
    ((guest, error),) = admission.silent_guests(MAX_SILENCE_S + 0.1)
    assert (guest, error.reason) == (silent, "max_connections")
    assert inside not in (guest, asking)
    admission.leave(silent)
    assert admission.silent_guests(100.0) == []


def test_oldest_unanswered_connection_is_evicted() -> None:
    admission: Admission[Guest] = Admission(1, None, 3)
    entered(admission, 1)
    asking, oldest, _ = entered(admission, 3)
    asking.answered = 1
    evicted = admission.enter(Guest(), 0.0)
    assert evicted is not None
    assert (evicted[0], evicted[1].reason) == (oldest, "max_connections")
    again = admission.enter(Guest(), 0.0)
    assert again is not None
    assert again[0] not in (oldest, asking), "each connection is evicted once"


def test_flood_from_one_address_evicts_no_other_address() -> None:
    """Even if the flood imitates members; and the newest connection always has time to send a request."""
    for imitated in (0, 1):
        admission: Admission[Guest] = Admission(1, None, 10)
        entered(admission, 1)
        held = entered(admission, 2, PEER)
        held[0].answered = imitated
        for _ in range(100):
            flood = Guest(A)
            evicted = admission.enter(flood, 0.0)
            assert evicted is None or evicted[0] not in (*held, flood)
            flood.answered = imitated
        late = Guest(PEER)
        evicted = admission.enter(late, 0.0)
        assert evicted is not None
        assert evicted[0].source == A


def test_closed_connections_leave_no_state() -> None:
    admission: Admission[Guest] = Admission(2, 2, 2)
    for number in range(50):
        guests = entered(admission, 3, f"198.51.100.{number}")
        for each in guests:
            admission.leave(each)
    assert not admission.admitted
    assert not admission.connections_of_source
    assert not admission.over_limit_count
