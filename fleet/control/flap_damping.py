"""Flap damping: a member that keeps failing waits longer before it may own identities again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fleet.core.model import FleetState, Member, MemberStatus, ProxyId

FLAP_WINDOW_S: Final = 10.0
"""A member flaps if it goes down within this time after it was committed up, or within twice its wait."""
MAX_WAIT_S: Final = 60.0
"""Upper limit of the time that a flapping member must have been ready."""


class FlapDamper:
    """Tracks flapping members from the committed states.

    Every member runs a damper, so that a new leader has the same history as the previous leader.

    Args:
        steady_after_s: how long a member that does not flap must have been ready.
    """

    def __init__(self, steady_after_s: float) -> None:
        self._steady_after_s = steady_after_s
        self._up_again_s: dict[ProxyId, float] = {}
        self._wait_s: dict[ProxyId, float] = {}

    def on_committed(self, before: FleetState, after: FleetState, now_s: float) -> None:
        """Raft has committed ``after`` in place of ``before``."""
        if before.members is after.members:
            return
        for proxy_id, member in after.members.items():
            status_before, status = _status(before.members, proxy_id), member.status
            if status is MemberStatus.UP and status_before is MemberStatus.DOWN:
                self._up_again_s[proxy_id] = now_s
            elif status is MemberStatus.DOWN and status_before is MemberStatus.UP:
                self._on_down(proxy_id, now_s)

    def _on_down(self, proxy_id: ProxyId, now_s: float) -> None:
        waited_s = self.steady_s(proxy_id)
        up_s = now_s - self._up_again_s.get(proxy_id, float("-inf"))
        if up_s < max(FLAP_WINDOW_S, 2 * waited_s):
            self._wait_s[proxy_id] = max(self._steady_after_s, min(2 * waited_s, MAX_WAIT_S))
        else:
            self._wait_s.pop(proxy_id, None)

    def steady_s(self, proxy_id: ProxyId) -> float:
        """How long a member must have been ready before it is committed up again."""
        return self._wait_s.get(proxy_id, self._steady_after_s)


def _status(members: Mapping[ProxyId, Member], proxy_id: ProxyId) -> MemberStatus | None:
    return members[proxy_id].status if proxy_id in members else None
