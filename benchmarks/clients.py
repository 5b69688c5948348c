"""Clients of several kinds at one fleet, for benchmarks of what moves and failures cost them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import click

from fleet.drills.demo.run import Stage, create_topic, delete_topic
from fleet.drills.workload.audit import Audit
from fleet.drills.workload.checker import audit_of
from fleet.drills.workload.clients import ClientSettings
from fleet.drills.workload.waiting import in_thread, wait_until
from tests.chaos.seeded.workloads import PARTITIONS, Client

Command: TypeAlias = Callable[..., Any]

FLOW_LIMIT_S: Final = 60.0
RATE_PER_S: Final = 180
"""Records per second of each client, as in the chaos runs."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of client.

    Args:
        workload: its name in `tests.chaos.seeded.workloads`.
        settings: which of librdkafka's settings it has.
        overrides: further settings of the client.
    """

    workload: str
    settings: ClientSettings
    overrides: Mapping[str, str] = field(default_factory=dict)


def client_option(kinds: Mapping[str, Kind]) -> Callable[[Command], Command]:
    """The option `--client`, which gives a command the `names` of the clients to run."""
    return click.option(
        "--client",
        "names",
        type=click.Choice(list(kinds)),
        multiple=True,
        default=list(kinds),
        help="Run this client only; may be repeated.  [default: all at the same time]",
    )


@asynccontextmanager
async def running_clients(
    running: Stage, purpose: str, kinds: Mapping[str, Kind], rate_per_s: int = RATE_PER_S
) -> AsyncIterator[dict[str, Client]]:
    """Have clients produce and consume, each on a topic of its own; yield them once records flow.

    Args:   rate_per_s: records per second that each client produces.
    Raises: DemoError: records do not flow.
    """
    stamp = time.time_ns() // 1_000_000
    clients: dict[str, Client] = {}
    async with AsyncExitStack() as stack:
        for number, (name, kind) in enumerate(kinds.items()):
            topic = f"fleet-{purpose}-{stamp}-{number}"
            replicas = min(3, len(running.broker_ids))
            await in_thread(partial(create_topic, running.brokers, topic, replicas, PARTITIONS))
            stack.push_async_callback(in_thread, partial(delete_topic, running.brokers, topic))
            config = running.folder / f"{topic}.properties"
            config.write_text("".join(f"{key}={value}\n" for key, value in kind.overrides.items()))
            client = Client(
                kind.workload,
                running.fleet.bootstrap(),
                topic,
                running.folder / topic,
                kind.settings,
                str(config),
                rate_per_s,
            )
            clients[name] = client
            stack.callback(client.workload.kill)
            client.workload.start()
        await await_flow(clients)
        yield clients


def stalls_ms(clients: Mapping[str, Client], since_s: float, until_s: float) -> dict[str, float]:
    """The longest interval of any partition without an acknowledgement, and without a record of the group."""
    found: dict[str, float] = {}
    for name, client in clients.items():
        found |= zip((name, f"{name}: group"), client.traffic.stalls_ms(since_s, until_s), strict=True)
    return found


async def finish_and_audit(running: Stage, clients: Mapping[str, Client]) -> dict[str, Audit]:
    """Let clients deliver and consume all records, and audit them. Raises: DemoError: a client cannot."""
    audits = {}
    for name, client in clients.items():
        await in_thread(client.stop)
        audits[name] = audit_of(await in_thread(partial(client.stream, running.brokers)))
    return audits


async def await_flow(clients: Mapping[str, Client], limit_s: float = FLOW_LIMIT_S) -> None:
    """Wait until records pass on every partition of every client. Raises: DemoError: they do not."""
    since_s = time.monotonic()

    def flows() -> bool:
        for client in clients.values():
            client.workload.check()
        return all([client.traffic.flows_since(since_s) for client in clients.values()])

    await wait_until(flows, "records of every client", limit_s)
