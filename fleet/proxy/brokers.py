"""The real brokers as one worker sees them: where each is, which are up, which serves a bootstrap connection.

Where a broker is comes from control's directories alone: what passes on a client's connection is no evidence.
That a broker is up or down is learned from the worker's own attempts to connect, and from control, which
probes the brokers for all workers of the member: what one finds, the others know as soon as it is verified.
A broker that takes connections and does not answer control is not up for that: a kernel takes connections for
a process that is stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet.core.model import Broker, BrokerId, Endpoint
from fleet.runtime.outbound import MAX_PORT

AVOID_S: Final = 5.0
"""How long a broker that could not be reached is tried after the others."""

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LIMIT_S = 1.0  # not Final: tests change it, and a compiler would write its value into the code
"""Between two attempts at a broker that is down, of all connections together; each wait is twice the last."""
_MANY_FAILURES: Final = 16
"""After as many in a row the limit of the back-off is reached."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A broker to dial.

    Args:
        broker_id: None for an address of the configuration whose id is not known.
        is_ipv4: whether the host is an IPv4 address, and no name that has to be looked up.
    """

    broker_id: BrokerId | None
    endpoint: Endpoint
    is_ipv4: bool = field(default=False, compare=False)


@dataclass(slots=True)
class _Down:
    """An address that could not be reached: how often in a row, when last, and whether it is being tried."""

    failures: int
    failed_at_s: float
    trying: bool = False

    def next_try_s(self) -> float:
        return self.failed_at_s + min(
            BACKOFF_LIMIT_S, BACKOFF_FIRST_S * 2.0 ** min(self.failures - 1, _MANY_FAILURES)
        )


class Upstreams:
    """What the directory and attempts to connect have said about brokers.

    Args:
        bootstrap_servers: where to begin while no broker is known, and when none of the known ones answers.
    """

    def __init__(self, bootstrap_servers: tuple[Endpoint, ...]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._committed: Mapping[BrokerId, Candidate] = {}
        self._down: dict[Endpoint, _Down] = {}
        self._up: dict[BrokerId, bool] = {}
        self._unanswering: frozenset[BrokerId] = frozenset()
        """Those that have not answered control."""
        self._turn = 0

    def commit(self, brokers: Mapping[BrokerId, Broker]) -> None:
        """Take the brokers of a new directory."""
        self._committed = {each.broker_id: _candidate(each) for each in brokers.values()}
        known = {each.endpoint for each in self._known()} | set(self._bootstrap_servers)
        self._down = {each: down for each, down in self._down.items() if each in known}
        self._up = {each: up for each, up in self._up.items() if each in brokers}

    def broker(self, broker_id: BrokerId) -> Candidate | None:
        """Where an identity's connections lead; None while nobody knows."""
        return self._committed.get(broker_id)

    def candidates(self, now_s: float) -> list[Candidate]:
        """Brokers for one bootstrap connection, best first: each call begins with another one.

        Those that failed lately, or do not answer control, come after the others; the configured addresses
        stand in for unknown brokers.
        """
        known = self._known()
        self._turn += 1
        first = self._turn % max(1, len(known))
        rotated = [*known[first:], *known[:first]]
        taken = {each.endpoint for each in known}
        rotated += [Candidate(None, each) for each in self._bootstrap_servers if each not in taken]
        return sorted(rotated, key=lambda each: self._is_avoided(each, now_s))

    def admits(self, candidate: Candidate, now_s: float) -> bool:
        """Whether to try to connect. One that is down is tried by one connection at a time, and not all the
        time: the others' clients are better off with a closed connection than with waiting for a time-out.

        After True, ``succeeded``, ``failed`` or ``given_up`` must follow.
        """
        down = self._down.get(candidate.endpoint) if self._down else None
        if down is None:
            return True
        if down.trying or now_s < down.next_try_s():
            return False
        down.trying = True
        return True

    def succeeded(self, candidate: Candidate) -> None:
        if self._down:  # an address is a tuple's worth of hashing, and mostly none is
            self._down.pop(candidate.endpoint, None)
        if candidate.broker_id is not None and candidate.broker_id not in self._unanswering:
            self._note(candidate.broker_id, up=True)

    def failed(self, candidate: Candidate, now_s: float) -> bool:
        """It could not be reached; whether that is news."""
        down = self._down.get(candidate.endpoint)
        if candidate.broker_id is not None:
            self._note(candidate.broker_id, up=False)
        if down is None:
            self._down[candidate.endpoint] = _Down(1, now_s)
            return True
        # Attempts that were under way together when it went down count once.
        down.failures += now_s >= down.next_try_s()
        down.failed_at_s = now_s
        down.trying = False
        return False

    def given_up(self, candidate: Candidate) -> None:
        """The client went away before there was an answer."""
        down = self._down.get(candidate.endpoint)
        if down is not None:
            down.trying = False

    def told(self, reachable: Mapping[BrokerId, bool], now_s: float) -> None:
        """Control has found that these brokers answer, or do not.

        One that does not is still tried now and then, because a broker may be too slow for a probe alone.
        """
        self._unanswering = frozenset(broker_id for broker_id, up in reachable.items() if not up)
        for broker_id, up in reachable.items():
            candidate = self.broker(broker_id)
            if candidate is None:
                continue
            if up:
                self.succeeded(candidate)
            elif candidate.endpoint not in self._down:
                self._down[candidate.endpoint] = _Down(_MANY_FAILURES, now_s)
                self._note(broker_id, up=False)

    @property
    def up(self) -> Mapping[BrokerId, bool]:
        """Whether a broker was reached last; only those that somebody has tried."""
        return self._up

    def _note(self, broker_id: BrokerId, *, up: bool) -> None:
        self._up[broker_id] = up

    def _known(self) -> list[Candidate]:
        return list(self._committed.values())

    def _is_avoided(self, candidate: Candidate, now_s: float) -> bool:
        down = self._down.get(candidate.endpoint)
        failed_lately = down is not None and now_s - down.failed_at_s < AVOID_S
        return failed_lately or candidate.broker_id in self._unanswering


def _candidate(broker: Broker) -> Candidate:
    host, port = broker.host, broker.port
    is_ipv4 = host.count(".") == 3 and host.replace(".", "").isdecimal() and port <= MAX_PORT
    return Candidate(broker.broker_id, Endpoint(host, port), is_ipv4)
