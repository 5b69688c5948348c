"""The live fleet as tables for a terminal: the same as the page of an admin address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table

from fleet.admin.documents import (
    IdentityDocument,
    IdentityRate,
    LiveDocument,
    MemberDocument,
    OwnershipDocument,
    TakeoverDocument,
)
from fleet.cli.render.tables import COLOURS, duration, titled
from fleet.core.console import escape
from fleet.core.model import BrokerId, ProxyId

LATEST: Final = 5
"""Takeovers."""
NAMED: Final = 10
"""Brokers of which the same is wrong."""
AROUND: Final = 9 + LATEST
"""Lines of titles, heads and takeovers."""
LEAST: Final = 3
"""Identities."""
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


def screen(live: LiveDocument, height: int | None = None, silent_s: float = 0.0) -> RenderableType:
    """What a terminal shows.

    Args:
        height: lines that there are; None to show all identities.
        silent_s: for how long nothing has been heard; 0 where something is.
    """
    fleet = live.ownership
    lines = [_head(fleet), *_troubles(fleet)]
    if silent_s:
        lines.insert(0, f"[bold red]not heard for {duration(silent_s)}[/]: what is below is as it was then")
    notes = _notes(live)
    most = None
    if height is not None:
        # What does not fit would push the head out of sight.
        most = max(LEAST, height - AROUND - len(fleet.members) - len(lines) - len(notes))
    parts: list[RenderableType] = [*lines, _members(fleet), _owners(live, most), *notes]
    if fleet.takeovers:
        parts.append(_takeovers(fleet.takeovers[-LATEST:]))
    return Group(*parts)


def _head(fleet: OwnershipDocument) -> str:
    leader = escape(fleet.leader) if fleet.leader else "[red]none[/]"
    stale = f"[red]stale for {duration(fleet.staleness_s)}[/]" if fleet.staleness_s else "not stale"
    return (
        f"[bold]{escape(fleet.fleet)}[/]: generation {fleet.generation}, leader {leader}, term {fleet.term}, "
        f"{stale}, version {escape(fleet.version)} (told by {escape(fleet.proxy_id)})"
    )


def _troubles(fleet: OwnershipDocument) -> list[str]:
    found = []
    if not fleet.quorum.present:
        found.append(f"[red]no quorum for {duration(fleet.quorum.lost_s)}[/]: ownership cannot be committed")
    if fleet.raft_error is not None:
        found.append(f"[red]{escape(fleet.proxy_id)} takes no part in Raft[/]: {escape(fleet.raft_error)}")
    unserved = [each.broker_id for each in fleet.identities if not each.advertised]
    if unserved:
        found.append(f"[red]nobody stands for {_some(unserved)}[/]")
    lost = [each.broker_id for each in fleet.brokers if each.up is False]
    if lost:
        found.append(f"[red]{escape(fleet.proxy_id)} does not reach broker {_some(lost)}[/]")
    return found


def _some(broker_ids: Sequence[BrokerId]) -> str:
    return ", ".join(map(str, broker_ids[:NAMED])) + (" and more" if len(broker_ids) > NAMED else "")


def _notes(live: LiveDocument) -> list[str]:
    missing = [each.proxy_id for each in live.rate_sources if each.error is not None]
    said = (("not counted", missing), ("no rates yet", live.unrated))
    return [f"[yellow]{what}[/]: {escape(', '.join(names))}" for what, names in said if names]


def _members(fleet: OwnershipDocument) -> Table:
    owned = Counter(owner for each in fleet.identities for owner in each.advertised)
    found = titled("Members", "member", "state", "role", "rack", "identities", "generation", "heard of")
    for each in fleet.members:
        found.add_row(
            escape(each.proxy_id),
            _state(each),
            _role(each, fleet.leader),
            escape(each.rack or "-"),
            str(owned[each.proxy_id]),
            "-" if each.generation is None else str(each.generation),
            _heard(each.silent_s),
        )
    return found


def _state(member: MemberDocument) -> str:
    also = ", drained" if member.drained and member.condition != "drained" else ""
    return f"[{COLOURS[member.condition]}]{member.condition}[/]{also}"


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
    known = any(each.rated for each in live.rate_sources)
    titles = [escape(each) for each in names]
    found = titled("Identities", "broker", *titles, "connections", "to broker", "to clients")
    for each in fleet.identities[:most]:
        passes = rates.get(each.broker_id, IdentityRate(each.broker_id, 0, 0.0, 0.0))
        found.add_row(
            str(each.broker_id),
            *(_cell(each, name) for name in names),
            str(passes.connections),
            rate(passes.to_broker_bytes_per_s) if known else "-",
            rate(passes.to_client_bytes_per_s) if known else "-",
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
    found = titled(
        "Takeovers and moves", "at", "member", "why", "brokers", "advertised after", "committed after"
    )
    for each in reversed(recent):
        found.add_row(
            datetime.fromtimestamp(each.detected_ms / 1000).strftime("%H:%M:%S"),
            escape(each.proxy_id),
            escape(each.reason),
            " ".join(map(str, each.broker_ids)),
            _after(each.detected_mono_s, each.advertised_mono_s),
            _after(each.detected_mono_s, each.committed_mono_s),
        )
    return found


def _after(began_s: float, ended_s: float | None) -> str:
    return "not yet" if ended_s is None else f"{max(0.0, 1000 * (ended_s - began_s)):.0f} ms"
