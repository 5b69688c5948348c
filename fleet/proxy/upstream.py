"""The real brokers as one worker sees them: where each one is, and which serves a bootstrap connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fleet.model import Broker, BrokerId, Endpoint

AVOID_S: Final = 5.0
"""How long a broker that could not be reached is tried after the others."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A broker to dial; ``broker_id`` is None for an address of the configuration whose id is not known."""

    broker_id: BrokerId | None
    endpoint: Endpoint


class Upstreams:
    """What the directory, passing responses and attempts to connect have said about brokers.

    Args:
        bootstrap_servers: where to begin while no broker is known, and when none of the known ones answers.
    """

    def __init__(self, bootstrap_servers: tuple[Endpoint, ...]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._committed: Mapping[BrokerId, Broker] = {}
        self._seen: dict[BrokerId, Broker] = {}
        self._failed_at_s: dict[Endpoint, float] = {}
        self._up: dict[BrokerId, bool] = {}
        self._turn = 0

    def commit(self, brokers: Mapping[BrokerId, Broker]) -> None:
        """Take the brokers of a new directory; what it says of one replaces what was merely seen of it."""
        self._committed = brokers
        self._seen = {each: broker for each, broker in self._seen.items() if each not in brokers}
        known = {each.endpoint for each in self._known()} | set(self._bootstrap_servers)
        self._failed_at_s = {each: at_s for each, at_s in self._failed_at_s.items() if each in known}
        self._up = {each: up for each, up in self._up.items() if each in brokers or each in self._seen}

    def saw(self, brokers: Iterable[Broker]) -> None:
        """A response named these brokers: newer than any directory, and clients dial them next."""
        self._seen.update((broker.broker_id, broker) for broker in brokers)

    def broker(self, broker_id: BrokerId) -> Candidate | None:
        """Where an identity's connections lead; None while nobody knows."""
        found = self._seen.get(broker_id) or self._committed.get(broker_id)
        return None if found is None else Candidate(broker_id, Endpoint(found.host, found.port))

    def candidates(self, now_s: float) -> list[Candidate]:
        """Brokers for one bootstrap connection, best first: each call begins with another one.

        Those that failed lately come after the others; the configured addresses stand in for unknown brokers.
        """
        known = self._known()
        self._turn += 1
        first = self._turn % max(1, len(known))
        rotated = [*known[first:], *known[:first]]
        taken = {each.endpoint for each in known}
        rotated += [Candidate(None, each) for each in self._bootstrap_servers if each not in taken]
        return sorted(rotated, key=lambda each: self._failed_lately(each.endpoint, now_s))

    def succeeded(self, candidate: Candidate) -> None:
        self._failed_at_s.pop(candidate.endpoint, None)
        if candidate.broker_id is not None:
            self._up[candidate.broker_id] = True

    def failed(self, candidate: Candidate, now_s: float) -> bool:
        """It could not be reached; whether that is news."""
        news = candidate.endpoint not in self._failed_at_s
        self._failed_at_s[candidate.endpoint] = now_s
        if candidate.broker_id is not None:
            self._up[candidate.broker_id] = False
        return news

    @property
    def up(self) -> Mapping[BrokerId, bool]:
        """Whether the last attempt to connect to a broker succeeded; only brokers that were tried."""
        return self._up

    def _known(self) -> list[Candidate]:
        brokers = {**self._committed, **self._seen}
        return [Candidate(each.broker_id, Endpoint(each.host, each.port)) for each in brokers.values()]

    def _failed_lately(self, endpoint: Endpoint, now_s: float) -> bool:
        failed_at_s = self._failed_at_s.get(endpoint)
        return failed_at_s is not None and now_s - failed_at_s < AVOID_S
