"""Follows each takeover from detection over advertisement to commit, for metrics and for /ownership."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fleet.core.model import BrokerId, Directory, FleetState, Ownership, ProxyId
from fleet.core.state import OwnershipSet
from fleet.core.takeover import Moment, Takeover, TakeoverLog


class TakeoverWatch:
    """The takeovers that this member has seen; the clocks are passed in.

    A takeover is open from its detection until it is advertised and committed, or until the member is back
    before that.

    Args:
        on_end: told of each that is over and was advertised.
    """

    def __init__(self, on_end: Callable[[Takeover], None] = lambda _: None) -> None:
        self._on_end = on_end
        self.log = TakeoverLog()
        self._ownership: Mapping[BrokerId, Ownership] = {}
        """As it was committed last."""
        self._open: dict[ProxyId, Takeover] = {}
        self._revisions: dict[ProxyId, int] = {}
        """Of open takeovers that are not advertised yet: the first directory that goes around the member."""

    def on_detected(
        self, proxy_id: ProxyId, reason: str, state: FleetState, now: Moment, alive_s: float | None = None
    ) -> None:
        """This member suspected an owner, or learnt that it is to own nothing.

        Args:
            state: what was committed at that moment.
            alive_s: see `fleet.control.detector.FailureDetector.alive_s`.
        """
        self._ownership = state.ownership
        owned = tuple(sorted(b for b, ownership in state.ownership.items() if proxy_id in ownership.owners))
        if owned and proxy_id not in self._open:
            alive = None if alive_s is None else now.back_to(min(alive_s, now.mono_s))
            self._put(Takeover(proxy_id, reason, now, owned, alive=alive))

    def on_published(self, directory: Directory) -> None:
        """This directory was handed to the workers."""
        for proxy_id, takeover in self._open.items():
            if takeover.advertised is None and not any(
                proxy_id in directory.advertised.get(broker_id, ()) for broker_id in takeover.broker_ids
            ):
                self._revisions.setdefault(proxy_id, directory.revision)

    def on_applied(self, revision: int, now: Moment) -> None:
        """Every worker has this revision in use."""
        for proxy_id, wanted in list(self._revisions.items()):
            if wanted <= revision:
                del self._revisions[proxy_id]
                self._put(replace(self._open[proxy_id], advertised=now))

    def on_committed(self, state: FleetState, now: Moment, changes: Iterable[OwnershipSet] = ()) -> None:
        """Raft committed a state; takeovers whose identities have left their owner are complete.

        Args:
            changes: what led to the state, oldest first; nothing where it is a snapshot.
        """
        before, self._ownership = self._ownership, state.ownership
        for takeover in list(self._open.values()):
            if takeover.committed is None and not any(
                takeover.proxy_id in state.ownership[broker_id].owners
                for broker_id in takeover.broker_ids
                if broker_id in state.ownership
            ):
                change = _completing(takeover, before, changes)
                self._put(replace(takeover, committed=now, change=change))

    def on_returned(self, proxy_id: ProxyId) -> None:
        """This member believes in another one again: what that one loses from now on is another takeover."""
        takeover = self._open.pop(proxy_id, None)
        if takeover is not None and takeover.advertised is not None:
            self._on_end(takeover)
        self._revisions.pop(proxy_id, None)

    def _put(self, takeover: Takeover) -> None:
        self.log = self.log.put(takeover)
        self._open[takeover.proxy_id] = takeover
        if takeover.advertised is not None and takeover.committed is not None:
            del self._open[takeover.proxy_id]
            self._on_end(takeover)


def _completing(
    takeover: Takeover, before: Mapping[BrokerId, Ownership], changes: Iterable[OwnershipSet]
) -> str:
    """The id of the command by which the last identity leaves; empty where it is none of these.

    It is the same at members that have detected the takeover at other moments, with other identities.
    """
    proxy_id = takeover.proxy_id
    left = {b for b in takeover.broker_ids if b in before and proxy_id in before[b].owners}
    for change in changes if left else ():
        left.difference_update(change.removed)
        left -= {b for b, ownership in change.changes.items() if proxy_id not in ownership.owners}
        if not left:
            return change.command_id
    return ""
