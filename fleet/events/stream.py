"""Makes the events of one member and sends them to the topics."""

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

SPOOL_FILE: Final = "events.sqlite"


class EventStream:
    """Records and publishes the events of one member. Only `stop` blocks.

    Args:
        settings: section `events` of the configuration.
        fleet: name of the fleet.
        me: id of this member.
        incarnation: incarnation of this member.
        folder: folder of the spool.
        servers: returns addresses of brokers; called in another thread.
        access: credentials and TLS settings for the brokers.
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
            folder / SPOOL_FILE,
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
        """How often the sending thread has failed and was started again."""
        return self._publisher.restarts

    def start(self) -> None:
        self._publisher.start()

    def stop(self, limit_s: float) -> None:
        """Store all events on the disk and end. Blocks for at most `limit_s`."""
        self._publisher.stop(limit_s)

    def record_commit(
        self,
        applied: Iterable[Applied],
        after: FleetState,
        takeovers: TakeoverLog,
        now_ms: int,
        *,
        leads: bool,
    ) -> None:
        """Publish the events of applied commands; see `Recorder.record_commit`.

        Args:
            leads: whether this member is the Raft leader. Only the leader writes the compacted copy, so that
                no slow member writes an old owner after a new one.
        """
        events = self._recorder.record_commit(applied, after, takeovers, now_ms)
        elected = leads and not self._leads
        self._leads = leads
        self._publish(events)
        if elected:
            # The previous leader may have died before it wrote the latest events.
            self._publisher.put(_latest(event) for event in self._latest.values())

    def record_advertisement(self, takeovers: TakeoverLog) -> None:
        """Publish the events of new advertisements; see `Recorder.record_advertisement`."""
        self._publish(self._recorder.record_advertisement(takeovers))

    def record_transitions(self, transitions: Iterable[Transition], now_ms: int) -> None:
        """Publish the events of transitions in the failure detector."""
        self._publish(self._recorder.record_transitions(transitions, now_ms))

    def record_traffic(self, message: TrafficMessage) -> None:
        """Publish the events of a worker's traffic; see `Recorder.record_traffic`."""
        self._publish(list(self._recorder.record_traffic(message)))
        if message.dropped:
            self._publisher.drop(message.dropped)

    def _publish(self, events: Sequence[Event]) -> None:
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
