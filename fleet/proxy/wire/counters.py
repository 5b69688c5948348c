"""Plain numbers that the sessions of one worker add to: no labels, no locks, no look-ups on the hot path."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet.proxy.wire._tables import APIS


@dataclass(slots=True)
class WireCounters:
    """Shared by all sessions and address books of one worker; cumulative.

    Args:
        requests: number of requests by api key, used as index.
        rewritten: number of responses in which an address or a configuration was replaced, by api key.
        local_replies: requests that were answered without any broker, the fleet's own probes among them.
        unserved: addresses given as port 0, because no member has a port for that broker id.
    """

    requests: list[int] = field(default_factory=lambda: [0] * (max(APIS) + 1))
    rewritten: list[int] = field(default_factory=lambda: [0] * (max(APIS) + 1))
    local_replies: int = 0
    unserved: int = 0
