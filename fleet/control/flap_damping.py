"""How long a member that comes back must have been steady, longer each time it goes down again soon. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fleet.core.model import FleetState, Member, MemberStatus, ProxyId

FLAP_WINDOW_S: Final = 10.0
"""A member that goes down within this time after it was taken in again flaps, or within twice its wait."""
MAX_WAIT_S: Final = 60.0
"""What it has to wait at most."""


class FlapDamper:
    """Follows the committed states, at every member, so that a new leader knows what the former one knew.

    Args:
        steady_after_s: what a member has to wait that does not flap.
    """

    def __init__(self, steady_after_s: float) -> None:
        self._steady_after_s = steady_after_s
        self._up_again_s: dict[ProxyId, float] = {}
        self._wait_s: dict[ProxyId, float] = {}

    def on_committed(self, before: FleetState, after: FleetState, now_s: float) -> None:
        """A state has taken the place of another one."""
        if before.members is after.members:
            return
        for proxy_id, member in after.members.items():
            was, now = _status(before.members, proxy_id), member.status
            if now is MemberStatus.UP and was is MemberStatus.DOWN:
                self._up_again_s[proxy_id] = now_s
            elif now is MemberStatus.DOWN and was is MemberStatus.UP:
                self._on_down(proxy_id, now_s)

    def _on_down(self, proxy_id: ProxyId, now_s: float) -> None:
        waited_s = self.steady_s(proxy_id)
        up_s = now_s - self._up_again_s.get(proxy_id, float("-inf"))
        if up_s < max(FLAP_WINDOW_S, 2 * waited_s):
            self._wait_s[proxy_id] = max(self._steady_after_s, min(2 * waited_s, MAX_WAIT_S))
        else:
            self._wait_s.pop(proxy_id, None)

    def steady_s(self, proxy_id: ProxyId) -> float:
        """How long a member must have been ready before it is taken in again."""
        return self._wait_s.get(proxy_id, self._steady_after_s)


def _status(members: Mapping[ProxyId, Member], proxy_id: ProxyId) -> MemberStatus | None:
    return members[proxy_id].status if proxy_id in members else None
