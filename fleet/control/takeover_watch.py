"""Tracks each takeover from detection to advertisement and commit, for metrics and for /ownership."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fleet.core.model import BrokerId, Directory, FleetState, Ownership, ProxyId
from fleet.core.state import OwnershipSet
from fleet.core.takeover import Moment, Takeover, TakeoverLog


class TakeoverWatch:
    """The takeovers that this member has seen. The caller passes the time in.

    A takeover is open from its detection until it is advertised and committed, or until the member returns
    before then.

    Args:
        on_end: called with each takeover that is over and was advertised.
    """

    def __init__(self, on_end: Callable[[Takeover], None] = lambda _: None) -> None:
        self._on_end = on_end
        self.log = TakeoverLog()
        self._ownership: Mapping[BrokerId, Ownership] = {}
        """The ownership that was committed last."""
        self._open: dict[ProxyId, Takeover] = {}
        self._revisions: dict[ProxyId, int] = {}
        """For open takeovers that are not advertised yet: the first revision that bypasses the member."""

    def on_detected(
        self, proxy_id: ProxyId, reason: str, state: FleetState, now: Moment, alive_s: float | None = None
    ) -> None:
        """This member has suspected an owner, or has learned that the owner must own nothing.

        Args:
            state: the committed state at that moment.
            alive_s: see `fleet.control.detector.FailureDetector.alive_s`.
        """
        self._ownership = state.ownership
        owned = tuple(sorted(b for b, ownership in state.ownership.items() if proxy_id in ownership.owners))
        if owned and proxy_id not in self._open:
            alive = None if alive_s is None else now.back_to(min(alive_s, now.mono_s))
            self._put(Takeover(proxy_id, reason, now, owned, alive=alive))

    def on_published(self, directory: Directory) -> None:
        """A directory was sent to the workers."""
        for proxy_id, takeover in self._open.items():
            if takeover.advertised is None and not any(
                proxy_id in directory.advertised.get(broker_id, ()) for broker_id in takeover.broker_ids
            ):
                self._revisions.setdefault(proxy_id, directory.revision)

    def on_applied(self, revision: int, now: Moment) -> None:
        """Every worker uses this revision, or a later one."""
        for proxy_id, first_revision in list(self._revisions.items()):
            if first_revision <= revision:
                del self._revisions[proxy_id]
                self._put(replace(self._open[proxy_id], advertised=now))

    def on_committed(self, state: FleetState, now: Moment, changes: Iterable[OwnershipSet] = ()) -> None:
        """Raft has committed a state. A takeover is committed once all its identities have left their owner.

        Args:
            changes: the commands that led to the state, oldest first; empty if the state is a snapshot.
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
        """A suspected member is up again. Identities that it loses from now on belong to a new takeover."""
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
    """The id of the command that moves the last identity away; empty if none of ``changes`` does.

    The id is the same at all members, even if they detected the takeover at different times or with different
    identities.
    """
    proxy_id = takeover.proxy_id
    remaining = {b for b in takeover.broker_ids if b in before and proxy_id in before[b].owners}
    for change in changes if remaining else ():
        remaining.difference_update(change.removed)
        remaining -= {b for b, ownership in change.changes.items() if proxy_id not in ownership.owners}
        if not remaining:
            return change.command_id
    return ""
