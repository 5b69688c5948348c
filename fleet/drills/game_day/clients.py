"""The clients of a game day: an idempotent producer and a group, with their own topic, through the fleet."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.core.errors import DemoError, GameDayError
from fleet.drills.game_day.plan import Options, Plan
from fleet.drills.game_day.verdict import ClientReport
from fleet.drills.workload.checker import Promise, Stream
from fleet.drills.workload.clients import Workload, WorkloadSpec, properties, read_log
from fleet.drills.workload.history import HistoryReader
from fleet.drills.workload.streams import Traffic
from fleet.drills.workload.waiting import wait_until

PROMISE: Final = Promise("always", exact=True)
FLOW_LIMIT_S: Final = 60.0
_ADMIN_LIMIT_S = 30.0
_FORBIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


class Topic:
    """The topic of one game day.

    Args:
        bootstrap_servers: bootstrap addresses of the fleet.
    """

    def __init__(self, plan: Plan, options: Options, bootstrap_servers: str) -> None:
        self.name = f"{options.topic_prefix}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        self._plan = plan
        self._bootstrap_servers = bootstrap_servers
        self._settings = {
            "log_level": 0,
            **properties(options.client_config),
            "bootstrap.servers": bootstrap_servers,
        }

    def create(self) -> None:
        """Create the topic. Raises: GameDayError: the topic cannot be created; names the fix."""
        topic = NewTopic(
            self.name,
            self._plan.partitions,
            replica_assignment=self._plan.assignment,
            config={"min.insync.replicas": str(self._plan.min_in_sync)},
        )
        admin = AdminClient(self._settings)
        try:
            admin.create_topics([topic])[self.name].result(_ADMIN_LIMIT_S)
        except (KafkaException, TimeoutError) as error:
            raise GameDayError(self._creation_error(error)) from error

    def delete(self) -> None:
        """Delete the group and the topic. Raises: GameDayError: the topic stays."""
        # A new client: older connections may lead to a member that was broken since.
        admin = AdminClient(self._settings)
        with suppress(KafkaException, TimeoutError):
            admin.delete_consumer_groups([self.name])[self.name].result(_ADMIN_LIMIT_S)
        try:
            admin.delete_topics([self.name])[self.name].result(_ADMIN_LIMIT_S)
        except (KafkaException, TimeoutError) as error:
            raise GameDayError(
                f"cannot delete topic {self.name}: {_reason(error)}; delete it by hand"
            ) from error

    def _creation_error(self, error: Exception) -> str:
        reason = _reason(error)
        if isinstance(error, KafkaException) and error.args[0].code() in _FORBIDDEN:
            return (
                f"not allowed to create topic {self.name}: {reason}; set --topic-prefix to an allowed "
                "prefix, or allow Create, Describe, Write, Read and Delete on it"
            )
        return (
            f"cannot create topic {self.name} through the fleet at {self._bootstrap_servers}: {reason}; "
            "check that every broker is up, and that this machine reaches all advertised addresses"
        )


def _reason(error: Exception) -> str:
    return str(error.args[0].str()) if isinstance(error, KafkaException) else "no answer in time"


class Clients:
    """A producer and a group, in a process of their own.

    Args:
        folder: folder of their histories and their log.
    """

    def __init__(
        self, plan: Plan, options: Options, topic: str, bootstrap_servers: str, folder: Path
    ) -> None:
        self._spec = WorkloadSpec(
            bootstrap_servers,
            topic,
            str(folder),
            group=topic,
            partitions=plan.partitions,
            rate_per_s=options.rate_per_s * plan.partitions,
            client="recommended",
            client_config=str(options.client_config or ""),
        )
        self.workload = Workload(self._spec)
        self.traffic = Traffic(self.workload)

    async def await_flow(self) -> None:
        """Wait until records flow on every partition. Raises: GameDayError: a partition is stuck."""
        since_s = time.monotonic()

        def flows() -> bool:
            self.workload.check()
            return self.traffic.flows_since(since_s)

        try:
            await wait_until(flows, "records acknowledged and received on every partition", FLOW_LIMIT_S)
        except DemoError as error:
            last = "".join(f"; last error of a client: {each.text}" for each in self.reports()[-1:])
            raise GameDayError(f"{error}{last}") from error

    def stop(self) -> str:
        """Stop after all records are delivered and consumed. Returns: the error; empty without an error."""
        try:
            self.workload.stop(strict=False)
        except DemoError as error:
            return str(error)
        return ""

    def refused(self) -> dict[str, int]:
        """Number of undelivered records that the producer reported to the application, by reason."""
        found: dict[str, int] = {}
        for event in HistoryReader(self._spec.path("failed")).read():
            reason = KafkaError(event.offset).str()
            found[reason] = found.get(reason, 0) + 1
        return found

    def reports(self) -> list[ClientReport]:
        """The errors that clients reported so far."""
        return reports_in(self.workload.reported())

    def stream(self) -> Stream:
        """The clients' history, and the log. Raises: GameDayError: the log cannot be read."""
        spec = self._spec
        try:
            log = read_log(spec.bootstrap_servers, spec.topic, client_config=spec.client_config)
        except (DemoError, KafkaException) as error:
            raise GameDayError(f"cannot read topic {spec.topic} to its end: {error}") from error
        return Stream(
            "clients",
            PROMISE,
            spec.partitions,
            self.workload.acknowledged(),
            self.workload.received(),
            log,
        )


def reports_in(lines: Iterable[str]) -> list[ClientReport]:
    """Parse the errors that clients reported. Lines without a time are ignored."""
    found = []
    for line in lines:
        at_s, _, text = line.partition(" ")
        with suppress(ValueError):
            found.append(ClientReport(float(at_s), text))
    return found
