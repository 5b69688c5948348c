"""Which listeners a member states to the others while some of them run an older release. Pure.

A member that does not know a kind of addressing would ignore the field with that kind, and advertise wrong
addresses to its clients. So the listener is left out until every other member knows the kind. Clients of a
member that does not know a listener of the owner get an address of another member, which serves them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from fleet.core.model import Member

_KNOWN_TO_ALL: Final = frozenset({"identity_ports", "sni"})


def as_known(member: Member, others: Iterable[Member]) -> Member:
    """Return a member without the listeners whose addressing one of the others does not know."""
    kinds = {listener.addressing for listener in member.listeners} - _KNOWN_TO_ALL
    if not kinds:
        return member
    unknown = {kind for other in others for kind in kinds if kind not in other.known_addressing}
    kept = tuple(listener for listener in member.listeners if listener.addressing not in unknown)
    return member if len(kept) == len(member.listeners) else replace(member, listeners=kept)
