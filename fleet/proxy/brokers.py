"""The real brokers as one worker sees them: their addresses, their state, and their bootstrap order.

Addresses of brokers come from control's directories alone: bytes on a client's connection are no evidence.
Whether a broker is up, a worker learns from its own attempts to connect and from control. Control probes the
brokers for all workers of the member, so what one worker finds, the others learn as soon as control verifies
it. A broker that accepts connections but does not answer control does not count as up, because a kernel
accepts connections for a stopped process, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet.core.model import Broker, BrokerId, Endpoint
from fleet.runtime.outbound import MAX_PORT

AVOID_FAILED_BROKER_S: Final = 5.0
"""For this long after a failed attempt, a broker comes after the other candidates."""

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LIMIT_S = 1.0  # not Final: tests change it, and a compiler would write its value into the code
"""The longest time between two attempts at a broker that is down, by all connections together. Each wait is
twice the previous one."""
_BACKOFF_LIMIT_FAILURES: Final = 16
"""Failures in a row after which the back-off reaches its limit."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A broker to dial.

    Args:
        broker_id: None for an address of the configuration whose id is not known.
        is_ipv4: whether the host is an IPv4 address, not a name that must be resolved.
    """

    broker_id: BrokerId | None
    endpoint: Endpoint
    is_ipv4: bool = field(default=False, compare=False)


@dataclass(slots=True)
class _Down:
    """An unreachable address: its failures in a row, the time of the last, and whether an attempt runs."""

    failures: int
    failed_at_s: float
    trying: bool = False

    def next_try_s(self) -> float:
        return self.failed_at_s + min(
            BACKOFF_LIMIT_S, BACKOFF_FIRST_S * 2.0 ** min(self.failures - 1, _BACKOFF_LIMIT_FAILURES)
        )


class Upstreams:
    """The brokers of the directory, with the results of attempts to connect.

    Args:
        bootstrap_servers: addresses to try while no broker is known, or when no known broker answers.
    """

    def __init__(self, bootstrap_servers: tuple[Endpoint, ...]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._committed: Mapping[BrokerId, Candidate] = {}
        self._down: dict[Endpoint, _Down] = {}
        self._up: dict[BrokerId, bool] = {}
        self._unanswering: frozenset[BrokerId] = frozenset()
        """Brokers that did not answer control."""
        self._turn = 0

    def commit(self, brokers: Mapping[BrokerId, Broker]) -> None:
        """Take the brokers of a new directory."""
        self._committed = {each.broker_id: _candidate(each) for each in brokers.values()}
        known = {each.endpoint for each in self._known_candidates()} | set(self._bootstrap_servers)
        self._down = {each: down for each, down in self._down.items() if each in known}
        self._up = {each: up for each, up in self._up.items() if each in brokers}

    def broker(self, broker_id: BrokerId) -> Candidate | None:
        """Return the broker of an identity; None while its address is unknown."""
        return self._committed.get(broker_id)

    def candidates(self, now_s: float) -> list[Candidate]:
        """Return the brokers for one bootstrap connection, best first; each call begins with the next broker.

        Brokers that failed lately, or do not answer control, come last. The configured addresses replace
        unknown brokers.
        """
        known = self._known_candidates()
        self._turn += 1
        first = self._turn % max(1, len(known))
        rotated = [*known[first:], *known[:first]]
        taken = {each.endpoint for each in known}
        rotated += [Candidate(None, each) for each in self._bootstrap_servers if each not in taken]
        return sorted(rotated, key=lambda each: self._is_avoided(each, now_s))

    def admits(self, candidate: Candidate, now_s: float) -> bool:
        """Whether to try to connect to a broker.

        Only one connection at a time tries a broker that is down, and only when the back-off has passed. The
        clients of the other connections are better off with a closed connection than with a time-out.

        After True, the caller must call ``succeeded``, ``failed`` or ``given_up``.
        """
        down = self._down.get(candidate.endpoint) if self._down else None
        if down is None:
            return True
        if down.trying or now_s < down.next_try_s():
            return False
        down.trying = True
        return True

    def succeeded(self, candidate: Candidate) -> None:
        if self._down:  # mostly empty; hashing an address costs as much as hashing a tuple
            self._down.pop(candidate.endpoint, None)
        if candidate.broker_id is not None and candidate.broker_id not in self._unanswering:
            self._note(candidate.broker_id, up=True)

    def failed(self, candidate: Candidate, now_s: float) -> bool:
        """Note that a broker could not be reached. Returns: whether its address was up before."""
        down = self._down.get(candidate.endpoint)
        if candidate.broker_id is not None:
            self._note(candidate.broker_id, up=False)
        if down is None:
            self._down[candidate.endpoint] = _Down(1, now_s)
            return True
        # Attempts that fail before the back-off is over began before the broker went down: count them once.
        down.failures += now_s >= down.next_try_s()
        down.failed_at_s = now_s
        down.trying = False
        return False

    def given_up(self, candidate: Candidate) -> None:
        """Note that the client left before the attempt had a result."""
        down = self._down.get(candidate.endpoint)
        if down is not None:
            down.trying = False

    def note_reachable(self, reachable: Mapping[BrokerId, bool], now_s: float) -> None:
        """Note control's findings: which brokers answer, and which do not.

        A broker that does not answer is still tried from time to time, because it may only be too slow for a
        probe.
        """
        self._unanswering = frozenset(broker_id for broker_id, up in reachable.items() if not up)
        for broker_id, up in reachable.items():
            candidate = self.broker(broker_id)
            if candidate is None:
                continue
            if up:
                self.succeeded(candidate)
            elif candidate.endpoint not in self._down:
                self._down[candidate.endpoint] = _Down(_BACKOFF_LIMIT_FAILURES, now_s)
                self._note(broker_id, up=False)

    @property
    def up(self) -> Mapping[BrokerId, bool]:
        """Broker id → whether the last attempt reached the broker; only for brokers that were tried."""
        return self._up

    def _note(self, broker_id: BrokerId, *, up: bool) -> None:
        self._up[broker_id] = up

    def _known_candidates(self) -> list[Candidate]:
        return list(self._committed.values())

    def _is_avoided(self, candidate: Candidate, now_s: float) -> bool:
        down = self._down.get(candidate.endpoint)
        failed_lately = down is not None and now_s - down.failed_at_s < AVOID_FAILED_BROKER_S
        return failed_lately or candidate.broker_id in self._unanswering


def _candidate(broker: Broker) -> Candidate:
    host, port = broker.host, broker.port
    is_ipv4 = host.count(".") == 3 and host.replace(".", "").isdecimal() and port <= MAX_PORT
    return Candidate(broker.broker_id, Endpoint(host, port), is_ipv4)
