"""What workers count of clients' requests and connections, by identity, API and client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class ApiTraffic:
    """Requests of one API.

    Args:
        requests: all of them.
        sampled: those whose answer was timed.
        request_bytes, response_bytes: of those, size fields included.
        latency: of those, from the request's arrival to the first byte of its answer: bucket → count. Bucket
            ``b`` holds what took from 2^(b/4) to 2^((b+1)/4) microseconds.
    """

    requests: int
    sampled: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    latency: Mapping[int, int] = field(default_factory=dict)


ConnectionEnd: TypeAlias = Literal["client", "moved", "unanswered", "broker", "unreachable", "refused"]
