"""Follows each takeover from detection over advertisement to commit, for metrics and for /ownership."""

from __future__ import annotations

from dataclasses import replace

from fleet.admin.view import Moment, Takeover, TakeoverLog
from fleet.model import FleetState, ProxyId


class TakeoverWatch:
    """The takeovers that this member has seen; the clocks are passed in."""

    def __init__(self) -> None:
        self.log = TakeoverLog()
        self._waiting: list[tuple[Takeover, int]] = []

    def detected(self, proxy_id: ProxyId, reason: str, state: FleetState, revision: int, now: Moment) -> None:
        """This member stopped to believe in an owner, and put out a directory that goes around it.

        Args:
            state: what was committed at that moment.
            revision: of the directory that goes around it.
        """
        owned = tuple(sorted(b for b, ownership in state.ownership.items() if proxy_id in ownership.owners))
        if owned and self.log.find_open(proxy_id) is None:
            takeover = Takeover(proxy_id, reason, now, owned)
            self.log = self.log.put(takeover)
            self._waiting.append((takeover, revision))

    def applied(self, revision: int, now: Moment) -> None:
        """Every worker has this revision in use."""
        still = []
        for takeover, wanted in self._waiting:
            if wanted <= revision:
                self.log = self.log.put(replace(self._newest(takeover), advertised=now))
            else:
                still.append((takeover, wanted))
        self._waiting = still

    def committed(self, state: FleetState, now: Moment) -> None:
        """Raft committed a state; takeovers whose identities have left their owner are complete."""
        for takeover in self.log.recent:
            if takeover.committed is None and not any(
                takeover.proxy_id in state.ownership[broker_id].owners
                for broker_id in takeover.broker_ids
                if broker_id in state.ownership
            ):
                self.log = self.log.put(replace(takeover, committed=now))

    def _newest(self, takeover: Takeover) -> Takeover:
        """The same takeover as the log has it now: it may have been committed since."""
        key = (takeover.proxy_id, takeover.detected)
        return next((each for each in self.log.recent if (each.proxy_id, each.detected) == key), takeover)
