"""The clients of a run, each in a process of its own, and the promises to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fleet.drills.workload.checker import Promise, Stream
from fleet.drills.workload.clients import (
    Acks,
    ClientSettings,
    GroupProtocol,
    Workload,
    WorkloadSpec,
    read_log,
)
from fleet.drills.workload.history import Event, HistoryReader
from fleet.drills.workload.streams import Traffic

PARTITIONS: Final = 6
_RATE_PER_S: Final = 60
_DESYNCHRONIZED = "Fatal error: Broker: Broker received an out of order sequence number"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of workload.

    Args:
        keys: number of keys of each partition; see `WorkloadSpec`.
        topic: configuration of the topic.
        module: the module that runs in the process.
    """

    promise: Promise
    acks: Acks = "all"
    group_protocol: GroupProtocol = "classic"
    keys: int = 0
    topic: tuple[tuple[str, str], ...] = ()
    module: str = "fleet.drills.workload.clients"


KINDS: Final = MappingProxyType(
    {
        "idempotent": Kind(Promise("always", exact=True)),
        "kip848": Kind(Promise("always", exact=True), group_protocol="consumer"),
        "acks1": Kind(Promise("proxies", exact=False), acks="1"),
        "acks0": Kind(Promise("never", exact=False), acks="0"),
        "transactional": Kind(
            Promise("always", exact=True), module="tests.chaos.seeded.client_transactional"
        ),
        "compacted": Kind(
            Promise("always", exact=True),
            keys=20,
            topic=(
                ("cleanup.policy", "compact"),
                ("segment.ms", "1000"),
                ("min.cleanable.dirty.ratio", "0.01"),
            ),
        ),
        "java": Kind(Promise("always", exact=True), module="tests.chaos.seeded.client_java"),
        "share": Kind(
            Promise("always", exact=True, ordered=False), module="tests.chaos.seeded.client_share_group"
        ),
        "aiokafka": Kind(Promise("always", exact=True), module="tests.chaos.seeded.client_aiokafka"),
    }
)


class Client:
    """One workload of a run.

    Args:
        name: a key of `KINDS`.
        folder: folder of the histories and the log.
        settings: settings of librdkafka.
        client_config: a file with further settings of the client.
        rate_per_s: records per second.
        group_protocol: overrides the protocol of the kind.
    """

    def __init__(
        self,
        name: str,
        bootstrap_servers: str,
        topic: str,
        folder: Path,
        settings: ClientSettings = "recommended",
        client_config: str = "",
        rate_per_s: int = _RATE_PER_S,
        group_protocol: GroupProtocol | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        self.name = name
        self.topic = topic
        self.kind = KINDS[name]
        spec = WorkloadSpec(
            bootstrap_servers,
            topic,
            str(folder),
            group=topic,
            partitions=PARTITIONS,
            rate_per_s=rate_per_s,
            client=settings,
            acks=self.kind.acks,
            group_protocol=group_protocol or self.kind.group_protocol,
            keys=self.kind.keys,
            client_config=client_config,
        )
        self.workload = Workload(spec, self.kind.module)
        self.traffic = Traffic(self.workload)

    def stop(self) -> None:
        """Wait until all records are delivered and consumed.

        Raises: DemoError: the workload did not finish, or a record of an exact producer was not delivered.
        """
        self.workload.stop(strict=self.kind.promise.exact and not self.gave_up())

    def gave_up(self) -> bool:
        """Whether librdkafka ended its producer permanently, after a retry with another set of records.

        Observed when a broker is killed: once in 8 producers without a fleet (librdkafka 2.16.1).
        """
        log = self.workload.log
        return log.exists() and _DESYNCHRONIZED in log.read_text(errors="replace")

    def refused(self) -> int:
        return len(self._history("failed"))

    def stream(self, brokers: str) -> Stream:
        """The workload's history and the log. Raises: DemoError: the log cannot be read."""
        return replace(self.seen(), log=read_log(brokers, self.topic))

    def seen(self) -> Stream:
        """The workload's history up to now, without the log."""
        return Stream(
            self.name,
            self.kind.promise,
            PARTITIONS,
            self.workload.acknowledged(),
            self.workload.received(),
            log=(),
            aborted=self._history("aborted"),
            gave_up=self.gave_up(),
            keys=self.kind.keys,
        )

    def _history(self, name: str) -> Sequence[Event]:
        return list(HistoryReader(self.workload.spec.path(name)).read())
