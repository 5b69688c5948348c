"""Follows each takeover from detection over advertisement to commit, for metrics and for /ownership."""

from __future__ import annotations

from dataclasses import replace

from fleet.admin.view import Moment, Takeover, TakeoverLog
from fleet.model import Directory, FleetState, ProxyId


class TakeoverWatch:
    """The takeovers that this member has seen; the clocks are passed in.

    A takeover is open from its detection until it is advertised and committed, or until the member is back
    before that.
    """

    def __init__(self) -> None:
        self.log = TakeoverLog()
        self._open: dict[ProxyId, Takeover] = {}
        self._revisions: dict[ProxyId, int] = {}
        """Of open takeovers that are not advertised yet: the first directory that goes around the member."""

    def detected(
        self, proxy_id: ProxyId, reason: str, state: FleetState, now: Moment, alive_s: float | None = None
    ) -> None:
        """This member stopped to believe in an owner, or learnt that it is to own nothing.

        Args:
            state: what was committed at that moment.
            alive_s: see `fleet.membership.Detector.alive_s`.
        """
        owned = tuple(sorted(b for b, ownership in state.ownership.items() if proxy_id in ownership.owners))
        if owned and proxy_id not in self._open:
            alive = None if alive_s is None else now.back_to(min(alive_s, now.mono_s))
            self._put(Takeover(proxy_id, reason, now, owned, alive=alive))

    def published(self, directory: Directory) -> None:
        """This directory was handed to the workers."""
        for proxy_id, takeover in self._open.items():
            if takeover.advertised is None and not any(
                proxy_id in directory.advertised.get(broker_id, ()) for broker_id in takeover.broker_ids
            ):
                self._revisions.setdefault(proxy_id, directory.revision)

    def applied(self, revision: int, now: Moment) -> None:
        """Every worker has this revision in use."""
        for proxy_id, wanted in list(self._revisions.items()):
            if wanted <= revision:
                del self._revisions[proxy_id]
                self._put(replace(self._open[proxy_id], advertised=now))

    def committed(self, state: FleetState, now: Moment) -> None:
        """Raft committed a state; takeovers whose identities have left their owner are complete."""
        for takeover in list(self._open.values()):
            if takeover.committed is None and not any(
                takeover.proxy_id in state.ownership[broker_id].owners
                for broker_id in takeover.broker_ids
                if broker_id in state.ownership
            ):
                self._put(replace(takeover, committed=now))

    def returned(self, proxy_id: ProxyId) -> None:
        """This member believes in another one again: what that one loses from now on is another takeover."""
        self._open.pop(proxy_id, None)
        self._revisions.pop(proxy_id, None)

    def _put(self, takeover: Takeover) -> None:
        self.log = self.log.put(takeover)
        self._open[takeover.proxy_id] = takeover
        if takeover.advertised is not None and takeover.committed is not None:
            del self._open[takeover.proxy_id]
