"""Decides which connections of a worker may have a broker, and which may only send what other members send.

Limits count every connection from its beginning. A connection above a limit is not closed at once, because it
may be a probe of another member. Without answers to probes, a flood of clients would make this member look
dead. A connection above a limit is closed when it sends anything else, when it is silent for a moment, or
when too many connections are above a limit.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Generic, Protocol, TypeVar

from fleet.core.errors import LimitExceeded

MAX_SILENCE_S: Final = 1.0
"""The shortest time that a connection above a limit may stay silent. Members send their probe at once."""


class Guest(Protocol):
    """The part of a connection that ``Admission`` needs."""

    source: str
    answered: int
    """Number of requests of the connection that were answered without a broker."""


GuestT = TypeVar("GuestT", bound=Guest)


class Admission(Generic[GuestT]):
    """The connections of one worker, admitted or above a limit.

    Args:
        max_connections: the number of admitted connections.
        max_per_source: the number of admitted connections from one address; None for no limit.
        reserve: how many connections may be above a limit, as long as they need no broker; at least 1.
        silence_s: how long a connection above a limit may be silent. The value must not be below the interval
            of sweeps, so that a connection which opens just before a sweep has the whole time, too.
    """

    def __init__(
        self, max_connections: int, max_per_source: int | None, reserve: int, silence_s: float = MAX_SILENCE_S
    ) -> None:
        self._silence_s = silence_s
        self._max_connections = max_connections
        self._max_per_source = max_per_source
        self._reserve = reserve
        self.admitted: set[GuestT] = set()
        self.connections_of_source: dict[str, int] = {}
        """Address → number of admitted connections; an address without any has no entry."""
        self._over_limit: dict[GuestT, tuple[LimitExceeded, float]] = {}
        """Connection above a limit → which limit, and since when."""

    def enter(self, guest: GuestT, now_s: float) -> tuple[GuestT, LimitExceeded] | None:
        """Add a connection. Returns: the connection to close to make room, and the reason; or None."""
        error = self._admit(guest)
        if error is None:
            return None
        self._over_limit[guest] = (error, now_s)
        if len(self._over_limit) <= self._reserve:
            return None
        evicted = self._least_like_a_member(guest)
        return evicted, self._over_limit.pop(evicted)[0]

    def ask_for_broker(self, guest: GuestT) -> LimitExceeded | None:
        """Admit a connection that was above a limit. Returns: the error if the limit is still reached."""
        if guest in self.admitted:
            return None
        error = self._admit(guest)
        if error is None:
            self._over_limit.pop(guest, None)
        return error

    @property
    def over_limit_count(self) -> int:
        """Number of connections above a limit."""
        return len(self._over_limit)

    def silent_guests(self, now_s: float) -> list[tuple[GuestT, LimitExceeded]]:
        """Return the connections above a limit that were silent too long, with reasons."""
        return [
            (guest, error)
            for guest, (error, since_s) in self._over_limit.items()
            if not guest.answered and now_s - since_s > self._silence_s
        ]

    def leave(self, guest: GuestT) -> None:
        """Remove a connection that has ended."""
        if self._over_limit:
            self._over_limit.pop(guest, None)
        if guest in self.admitted:
            self.admitted.remove(guest)
            others = self.connections_of_source[guest.source] - 1
            if others:
                self.connections_of_source[guest.source] = others
            else:
                del self.connections_of_source[guest.source]

    def _least_like_a_member(self, newest: GuestT) -> GuestT:
        """Choose the connection above a limit that is least likely a member.

        The choice prefers a source with more than half of these connections, then a connection without any
        answer, then the oldest. The newest is never chosen, because it had no time to send a request.
        """
        of_source = Counter(each.source for each in self._over_limit)
        half = len(self._over_limit) / 2
        others = (each for each in self._over_limit if each is not newest)
        return max(others, key=lambda each: (of_source[each.source] > half, not each.answered))

    def _admit(self, guest: GuestT) -> LimitExceeded | None:
        source = guest.source
        others = self.connections_of_source.get(source, 0)
        if self._max_per_source is not None and others >= self._max_per_source:
            return LimitExceeded("max_connections_per_source", f"{others} connections of {source} are open")
        if len(self.admitted) >= self._max_connections:
            return LimitExceeded("max_connections", f"{len(self.admitted)} connections are open")
        self.admitted.add(guest)
        self.connections_of_source[source] = others + 1
        return None
