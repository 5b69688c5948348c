"""Counters of clients' requests and connections at the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class ApiTraffic:
    """Traffic of one API.

    Args:
        requests: number of all requests.
        sampled: number of requests whose answer was timed.
        request_bytes, response_bytes: bytes of the sampled requests and their answers, size fields included.
        latency: bucket → number of sampled requests, by the time from the arrival of the request to the first
            byte of its answer. Bucket ``b`` holds times from 2^(b/4) to 2^((b+1)/4) microseconds.
    """

    requests: int
    sampled: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    latency: Mapping[int, int] = field(default_factory=dict)


ConnectionEnd: TypeAlias = Literal["client", "moved", "unanswered", "broker", "unreachable", "refused"]
