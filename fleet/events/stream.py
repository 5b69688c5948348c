"""One member's events, from what its control process learns to the topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from fleet.config import EventsSettings
from fleet.core import event_schema
from fleet.core.event_schema import Event, OwnershipEvent
from fleet.core.liveness import Transition
from fleet.core.model import BrokerId, Endpoint, FleetState, ProxyId
from fleet.core.replication import Applied
from fleet.core.takeover import TakeoverLog
from fleet.events.progress import EventsView
from fleet.events.publisher import Publisher
from fleet.events.recorder import Recorder
from fleet.events.spool import Record
from fleet.runtime.ipc import TrafficMessage
from fleet.tls.broker_credentials import KafkaAccess

SPOOL: Final = "events.sqlite"


class EventStream:
    """Tells of a member's life; its methods but `stop` never block.

    Args:
        incarnation: of this life.
        folder: the spool goes there.
        servers: where to find brokers; called in another thread.
        access: how they let this member in.
    """

    def __init__(
        self,
        settings: EventsSettings,
        fleet: str,
        me: ProxyId,
        incarnation: int,
        folder: Path,
        servers: Callable[[], Sequence[Endpoint]],
        access: KafkaAccess,
    ) -> None:
        self._recorder = Recorder(fleet, me, f"{me}/{incarnation}")
        self._publisher = Publisher(
            f"fleet-events-{me}",
            servers,
            access,
            settings.topic_prefix,
            folder / SPOOL,
            settings.spool_bytes,
            settings.replication_factor,
        )
        self._latest: dict[BrokerId, OwnershipEvent] = {}
        self._leads = False

    @property
    def progress(self) -> EventsView:
        return self._publisher.progress

    @property
    def restarts(self) -> int:
        """How often the thread that sends has ended by an error, and was started again."""
        return self._publisher.restarts

    def start(self) -> None:
        self._publisher.start()

    def stop(self, limit_s: float) -> None:
        """Bring all events to the disk, and end. Blocks, for so many seconds at most."""
        self._publisher.stop(limit_s)

    def committed(
        self,
        applied: Iterable[Applied],
        after: FleetState,
        takeovers: TakeoverLog,
        now_ms: int,
        *,
        leads: bool,
    ) -> None:
        """Commands came out of the log; see `Recorder.committed`.

        Args:
            leads: whether this member is the Raft leader: it alone writes the compacted copy, so that nobody
                who is late puts an old owner behind a new one.
        """
        events = self._recorder.committed(applied, after, takeovers, now_ms)
        elected = leads and not self._leads
        self._leads = leads
        self._tell(events)
        if elected:
            # The last leader may have died before it had written them.
            self._publisher.put(_latest(event) for event in self._latest.values())

    def advertised(self, takeovers: TakeoverLog) -> None:
        """Something is advertised that was not; see `Recorder.advertised`."""
        self._tell(self._recorder.advertised(takeovers))

    def observed(self, transitions: Iterable[Transition], now_ms: int) -> None:
        """The failure detector has changed its mind."""
        self._tell(self._recorder.observed(transitions, now_ms))

    def passed(self, message: TrafficMessage) -> None:
        """Something has passed a worker; see `Recorder.passed`."""
        self._tell(list(self._recorder.passed(message)))
        if message.dropped:
            self._publisher.drop(message.dropped)

    def _tell(self, events: Sequence[Event]) -> None:
        records = []
        for event in events:
            records.append(
                Record(
                    event_schema.TOPICS[event.kind],
                    event_schema.key(event),
                    event_schema.EVENTS.encode(event),
                )
            )
            if isinstance(event, OwnershipEvent) and self._is_latest(event):
                self._latest[event.broker_id] = event
                if self._leads:
                    records.append(_latest(event))
        self._publisher.put(records)

    def _is_latest(self, event: OwnershipEvent) -> bool:
        known = self._latest.get(event.broker_id)
        return known is None or known.generation <= event.generation


def _latest(event: OwnershipEvent) -> Record:
    return Record(event_schema.LATEST, event_schema.key(event), event_schema.EVENTS.encode(event))
