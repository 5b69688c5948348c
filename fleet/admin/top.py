"""The live fleet as tables for a terminal: the same as the page of an admin address."""

from __future__ import annotations

from collections import Counter
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from fleet.admin.documents import (
    IdentityDocument,
    IdentityRate,
    LiveDocument,
    MemberDocument,
    OwnershipDocument,
    TakeoverDocument,
)
from fleet.admin.tables import COLOURS, duration, titled
from fleet.model import ProxyId

LATEST: Final = 5
"""Takeovers."""
_UNITS: Final = ("B/s", "kB/s", "MB/s")


def rate(bytes_per_s: float) -> str:
    """Bytes per second as an operator says them."""
    for unit in _UNITS:
        if bytes_per_s < 1000:
            return f"{bytes_per_s:.0f} {unit}"
        bytes_per_s /= 1000
    return f"{bytes_per_s:.1f} GB/s"


def print_live(live: LiveDocument, console: Console) -> None:
    """All of it, once."""
    console.print(screen(live))


def screen(live: LiveDocument, most: int | None = None) -> RenderableType:
    """What a terminal shows.

    Args:
        most: identities; None for all of them.
    """
    fleet = live.ownership
    parts: list[RenderableType] = [_head(fleet), *_troubles(fleet), _members(fleet), _owners(live, most)]
    missing = [each.proxy_id for each in live.counted if each.error is not None]
    if missing:
        parts.append(f"[yellow]not counted[/]: {escape(', '.join(missing))}")
    if fleet.takeovers:
        parts.append(_takeovers(fleet.takeovers[-LATEST:]))
    return Group(*parts)


def _head(fleet: OwnershipDocument) -> str:
    leader = escape(fleet.leader) if fleet.leader else "[red]none[/]"
    return (
        f"[bold]{escape(fleet.fleet)}[/]: generation {fleet.generation}, leader {leader}, "
        f"term {fleet.term} (told by {escape(fleet.proxy_id)})"
    )


def _troubles(fleet: OwnershipDocument) -> list[str]:
    found = []
    if not fleet.quorum.present:
        found.append(f"[red]no quorum for {duration(fleet.quorum.lost_s)}[/]: ownership cannot be committed")
    if fleet.raft_trouble is not None:
        found.append(f"[red]{escape(fleet.proxy_id)} takes no part in Raft[/]: {escape(fleet.raft_trouble)}")
    lost = [str(each.broker_id) for each in fleet.brokers if each.up is False]
    if lost:
        found.append(f"[red]{escape(fleet.proxy_id)} does not reach broker {' '.join(lost)}[/]")
    return found


def _members(fleet: OwnershipDocument) -> Table:
    owned = Counter(owner for each in fleet.identities for owner in each.advertised)
    found = titled("Members", "member", "state", "role", "rack", "identities", "generation", "heard of")
    for each in fleet.members:
        found.add_row(
            escape(each.proxy_id),
            f"[{COLOURS[each.state]}]{each.state}[/]",
            _role(each, fleet.leader),
            escape(each.rack or "-"),
            str(owned[each.proxy_id]),
            "-" if each.generation is None else str(each.generation),
            _heard(each.silent_s),
        )
    return found


def _role(member: MemberDocument, leader: ProxyId | None) -> str:
    if member.proxy_id == leader:
        return "leader"
    return "witness" if member.witness else "voter" if member.voter else "observer"


def _heard(silent_s: float | None) -> str:
    if silent_s is None:
        return "never"
    return "now" if silent_s < 1 else f"{duration(silent_s)} ago"


def _owners(live: LiveDocument, most: int | None) -> Table:
    fleet = live.ownership
    names = [each.proxy_id for each in fleet.members if not each.witness]
    rates = {each.broker_id: each for each in live.rates}
    titles = [escape(each) for each in names]
    found = titled("Identities", "broker", *titles, "connections", "to broker", "to clients")
    for each in fleet.identities[:most]:
        passes = rates.get(each.broker_id, IdentityRate(each.broker_id, 0, 0.0, 0.0))
        found.add_row(
            str(each.broker_id),
            *(_cell(each, name) for name in names),
            str(passes.connections),
            rate(passes.to_broker_bytes_per_s),
            rate(passes.to_client_bytes_per_s),
        )
    left = len(fleet.identities[most:]) if most is not None else 0
    if left:
        found.caption = f"and {left} more"
    return found


def _cell(identity: IdentityDocument, name: ProxyId) -> str:
    if name in identity.advertised:
        return "[bold green]owner[/]" + (" (pinned)" if identity.pinned_to == name else "")
    if name in identity.committed:
        return "[yellow]by Raft[/]"
    if name in identity.successors:
        return f"[dim]{identity.successors.index(name) + 1}[/]"
    return ""


def _takeovers(recent: tuple[TakeoverDocument, ...]) -> Table:
    found = titled("Takeovers and moves", "member", "why", "brokers", "advertised after", "committed after")
    for each in reversed(recent):
        found.add_row(
            escape(each.proxy_id),
            escape(each.reason),
            " ".join(map(str, each.broker_ids)),
            _after(each.detected_mono_s, each.advertised_mono_s),
            _after(each.detected_mono_s, each.committed_mono_s),
        )
    return found


def _after(began_s: float, ended_s: float | None) -> str:
    return "not yet" if ended_s is None else f"{max(0.0, 1000 * (ended_s - began_s)):.0f} ms"
