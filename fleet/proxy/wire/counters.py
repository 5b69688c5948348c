"""Counters of a worker's sessions: plain numbers, without labels, locks and look-ups on the hot path."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet.proxy.wire._tables import APIS


@dataclass(slots=True)
class WireCounters:
    """Shared by all sessions and address books of one worker; cumulative.

    Args:
        requests: number of requests; the index is the API key.
        rewritten: number of responses with a replaced address or configuration; the index is the API key.
        local_replies: number of requests that were answered without a broker, including the fleet's probes.
        unserved: number of addresses given with port 0, because no member has a port for the broker id.
    """

    requests: list[int] = field(default_factory=lambda: [0] * (max(APIS) + 1))
    rewritten: list[int] = field(default_factory=lambda: [0] * (max(APIS) + 1))
    local_replies: int = 0
    unserved: int = 0
