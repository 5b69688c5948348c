"""Which connections of a worker may have a broker, and which may only ask what other members ask.

Limits count every connection from its beginning. One above them is not closed unheard: it may be another
member's question whether this one lives, and without an answer a flood of clients would make it look dead. It
is closed when it sends anything else, when it sends nothing for a moment, or when there are too many like it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Generic, Protocol, TypeVar

from fleet.core.errors import LimitExceeded

SILENCE_S: Final = 1.0
"""How long a connection above a limit may say nothing, at least. Members ask at once."""


class Guest(Protocol):
    """What is asked of a connection."""

    source: str
    answered: int
    """How many of its requests were answered without a broker."""


GuestT = TypeVar("GuestT", bound=Guest)


class Admission(Generic[GuestT]):
    """The connections of one worker.

    Args:
        most: how many there may be; most_of_source: from one address, None for any number.
        reserve: how many more may be there for as long as they ask nothing of a broker; above 0.
        silence_s: for how long these may say nothing; not below the time between two looks at them, so that
            whoever has come right before one has it, too.
    """

    def __init__(
        self, most: int, most_of_source: int | None, reserve: int, silence_s: float = SILENCE_S
    ) -> None:
        self._silence_s = silence_s
        self._most = most
        self._most_of_source = most_of_source
        self._reserve = reserve
        self._admitted: set[GuestT] = set()
        self._of_source: dict[str, int] = {}
        """How many of these have come from one address; those that have none are left out."""
        self._beyond: dict[GuestT, tuple[LimitExceeded, float]] = {}
        """Above which limit, and since when."""

    def enter(self, guest: GuestT, now_s: float) -> tuple[GuestT, LimitExceeded] | None:
        """Take in a connection; returns one that has to go for it, and why."""
        error = self._admit(guest)
        if error is None:
            return None
        self._beyond[guest] = (error, now_s)
        if len(self._beyond) <= self._reserve:
            return None
        goes = self._least_like_a_member(guest)
        return goes, self._beyond.pop(goes)[0]

    def ask_for_broker(self, guest: GuestT) -> LimitExceeded | None:
        """Why a connection may not have one: it was above a limit, and still would be."""
        if guest in self._admitted:
            return None
        error = self._admit(guest)
        if error is None:
            self._beyond.pop(guest, None)
        return error

    @property
    def beyond(self) -> int:
        """How many are above a limit."""
        return len(self._beyond)

    def silent(self, now_s: float) -> list[tuple[GuestT, LimitExceeded]]:
        """Those above a limit that have had their moment, and why each one has to go."""
        return [
            (guest, error)
            for guest, (error, since_s) in self._beyond.items()
            if not guest.answered and now_s - since_s > self._silence_s
        ]

    def leave(self, guest: GuestT) -> None:
        """A connection has ended."""
        if self._beyond:
            self._beyond.pop(guest, None)
        if guest in self._admitted:
            self._admitted.remove(guest)
            others = self._of_source[guest.source] - 1
            if others:
                self._of_source[guest.source] = others
            else:
                del self._of_source[guest.source]

    def _least_like_a_member(self, newest: GuestT) -> GuestT:
        """One above a limit: of a source that has more than half of them, if there is one; there one that was
        not answered; of these the oldest. It is not the newest, which had no time to ask.
        """
        of_source = Counter(each.source for each in self._beyond)
        half = len(self._beyond) / 2
        others = (each for each in self._beyond if each is not newest)
        return max(others, key=lambda each: (of_source[each.source] > half, not each.answered))

    def _admit(self, guest: GuestT) -> LimitExceeded | None:
        source = guest.source
        others = self._of_source.get(source, 0)
        if self._most_of_source is not None and others >= self._most_of_source:
            return LimitExceeded("max_connections_per_source", f"{others} connections of {source} are open")
        if len(self._admitted) >= self._most:
            return LimitExceeded("max_connections", f"{len(self._admitted)} connections are open")
        self._admitted.add(guest)
        self._of_source[source] = others + 1
        return None
