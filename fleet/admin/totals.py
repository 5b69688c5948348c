"""Sums of the counters of workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TypeVar

from fleet.runtime.ipc import WorkerCounters

KeyT = TypeVar("KeyT")


def _sum(one: Mapping[KeyT, int], other: Mapping[KeyT, int]) -> dict[KeyT, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


def add(one: WorkerCounters, other: WorkerCounters) -> WorkerCounters:
    """The sum of two workers' counters and gauges.

    ``upstream_up`` is true if either worker reaches the broker, ``generation`` and ``revision`` are the newer
    ones, and ``draining`` is true if result workers drain.
    """
    upstream = {**one.upstream_up}
    for broker_id, up in other.upstream_up.items():
        upstream[broker_id] = up or upstream.get(broker_id, False)
    return WorkerCounters(
        requests=_sum(one.requests, other.requests),
        bytes_to_broker=_sum(one.bytes_to_broker, other.bytes_to_broker),
        bytes_to_client=_sum(one.bytes_to_client, other.bytes_to_client),
        connections=_sum(one.connections, other.connections),
        errors=_sum(one.errors, other.errors),
        limited=_sum(one.limited, other.limited),
        rewrite_buckets=tuple(map(sum, zip(one.rewrite_buckets, other.rewrite_buckets, strict=True))),
        rewrite_sum_s=one.rewrite_sum_s + other.rewrite_sum_s,
        upstream_up=upstream,
        generation=max(one.generation, other.generation),
        revision=max(one.revision, other.revision),
        draining=one.draining and other.draining,
        dropped_log_lines=one.dropped_log_lines + other.dropped_log_lines,
    )


def total(counters: Iterable[WorkerCounters]) -> WorkerCounters:
    """The sum over any number of workers."""
    return reduce(add, counters, WorkerCounters())


def retire(retired: WorkerCounters, ended: WorkerCounters) -> WorkerCounters:
    """Add the totals of a worker that has ended, without its gauges."""
    result = add(retired, ended)
    return WorkerCounters(
        requests=result.requests,
        bytes_to_broker=result.bytes_to_broker,
        bytes_to_client=result.bytes_to_client,
        errors=result.errors,
        limited=result.limited,
        rewrite_buckets=result.rewrite_buckets,
        rewrite_sum_s=result.rewrite_sum_s,
        dropped_log_lines=result.dropped_log_lines,
    )
