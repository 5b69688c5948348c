"""Renders the live fleet as tables for a terminal, with the content of the live page."""

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

MAX_TAKEOVERS: Final = 5
"""Newest takeovers on the screen."""
MAX_BROKERS_IN_WARNING: Final = 10
"""Broker ids that a warning lists."""
FIXED_LINES: Final = 9 + MAX_TAKEOVERS
"""Lines of titles, column heads and takeovers."""
MIN_IDENTITIES: Final = 3
"""Identities that a terminal of any height shows."""
_UNITS: Final = ("B/s", "kB/s", "MB/s")


def rate(bytes_per_s: float) -> str:
    """A number of bytes per second for people, such as ``1.2 GB/s`` or ``17 kB/s``."""
    for unit in _UNITS:
        if bytes_per_s < 1000:
            return f"{bytes_per_s:.0f} {unit}"
        bytes_per_s /= 1000
    return f"{bytes_per_s:.1f} GB/s"


def print_live(live: LiveDocument, console: Console) -> None:
    """Print the whole document once."""
    console.print(screen(live))


def screen(live: LiveDocument, height: int | None = None, silent_s: float = 0.0) -> RenderableType:
    """Everything that the terminal shows.

    Args:
        height: lines of the terminal; None to show all identities.
        silent_s: seconds since the last update; 0 if the document is current.
    """
    fleet = live.ownership
    lines = [_head(fleet), *_warnings(fleet)]
    if silent_s:
        lines.insert(0, f"[bold red]no update for {duration(silent_s)}[/]; showing the last known state")
    notes = _notes(live)
    max_identities = None
    if height is not None:
        # Without this limit, a long table would push the first lines off the screen.
        others = FIXED_LINES + len(fleet.members) + len(lines) + len(notes)
        max_identities = max(MIN_IDENTITIES, height - others)
    parts: list[RenderableType] = [*lines, _members(fleet), _owners(live, max_identities), *notes]
    if fleet.takeovers:
        parts.append(_takeovers(fleet.takeovers[-MAX_TAKEOVERS:]))
    return Group(*parts)


def _head(fleet: OwnershipDocument) -> str:
    leader = escape(fleet.leader) if fleet.leader else "[red]none[/]"
    stale = f"[red]stale for {duration(fleet.staleness_s)}[/]" if fleet.staleness_s else "not stale"
    return (
        f"[bold]{escape(fleet.fleet)}[/]: generation {fleet.generation}, leader {leader}, term {fleet.term}, "
        f"{stale}, version {escape(fleet.version)} (reported by {escape(fleet.proxy_id)})"
    )


def _warnings(fleet: OwnershipDocument) -> list[str]:
    me = escape(fleet.proxy_id)
    warnings = []
    if not fleet.quorum.present:
        lost = duration(fleet.quorum.lost_s)
        warnings.append(f"[red]no quorum for {lost}[/]: changes of ownership cannot be committed")
    if fleet.raft_error is not None:
        warnings.append(f"[red]{me} takes no part in Raft[/]: {escape(fleet.raft_error)}")
    unserved = [each.broker_id for each in fleet.identities if not each.advertised]
    if unserved:
        warnings.append(f"[red]no member serves broker {_first_ids(unserved)}[/]")
    unreachable = [each.broker_id for each in fleet.brokers if each.up is False]
    if unreachable:
        warnings.append(f"[red]{me} cannot reach broker {_first_ids(unreachable)}[/]")
    return warnings


def _first_ids(broker_ids: Sequence[BrokerId]) -> str:
    shown = ", ".join(map(str, broker_ids[:MAX_BROKERS_IN_WARNING]))
    return shown + (" and more" if len(broker_ids) > MAX_BROKERS_IN_WARNING else "")


def _notes(live: LiveDocument) -> list[str]:
    uncounted = [each.proxy_id for each in live.rate_sources if each.error is not None]
    notes = (("no traffic counters from", uncounted), ("no rates yet from", live.unrated))
    return [f"[yellow]{note}[/]: {escape(', '.join(names))}" for note, names in notes if names]


def _members(fleet: OwnershipDocument) -> Table:
    owned = Counter(owner for each in fleet.identities for owner in each.advertised)
    table = titled("Members", "member", "state", "role", "rack", "identities", "generation", "last heard")
    for each in fleet.members:
        table.add_row(
            escape(each.proxy_id),
            _state(each),
            _role(each, fleet.leader),
            escape(each.rack or "-"),
            str(owned[each.proxy_id]),
            "-" if each.generation is None else str(each.generation),
            _last_heard(each.silent_s),
        )
    return table


def _state(member: MemberDocument) -> str:
    suffix = ", drained" if member.drained and member.condition != "drained" else ""
    return f"[{COLOURS[member.condition]}]{member.condition}[/]{suffix}"


def _role(member: MemberDocument, leader: ProxyId | None) -> str:
    if member.proxy_id == leader:
        return "leader"
    return "witness" if member.witness else "voter" if member.voter else "observer"


def _last_heard(silent_s: float | None) -> str:
    if silent_s is None:
        return "never"
    return "now" if silent_s < 1 else f"{duration(silent_s)} ago"


def _owners(live: LiveDocument, max_identities: int | None) -> Table:
    fleet = live.ownership
    names = [each.proxy_id for each in fleet.members if not each.witness]
    rates = {each.broker_id: each for each in live.rates}
    has_rates = any(each.rated for each in live.rate_sources)
    titles = [escape(each) for each in names]
    table = titled("Identities", "broker", *titles, "connections", "to broker", "to clients")
    for each in fleet.identities[:max_identities]:
        traffic = rates.get(each.broker_id, IdentityRate(each.broker_id, 0, 0.0, 0.0))
        table.add_row(
            str(each.broker_id),
            *(_cell(each, name) for name in names),
            str(traffic.connections),
            rate(traffic.to_broker_bytes_per_s) if has_rates else "-",
            rate(traffic.to_client_bytes_per_s) if has_rates else "-",
        )
    hidden = len(fleet.identities[max_identities:]) if max_identities is not None else 0
    if hidden:
        table.caption = f"and {hidden} more"
    return table


def _cell(identity: IdentityDocument, name: ProxyId) -> str:
    if name in identity.advertised:
        return "[bold green]owner[/]" + (" (pinned)" if identity.pinned_to == name else "")
    if name in identity.committed:
        return "[yellow]committed[/]"
    if name in identity.successors:
        return f"[dim]{identity.successors.index(name) + 1}[/]"
    return ""


def _takeovers(recent: tuple[TakeoverDocument, ...]) -> Table:
    table = titled(
        "Takeovers and moves", "at", "member", "reason", "brokers", "advertised after", "committed after"
    )
    for each in reversed(recent):
        table.add_row(
            datetime.fromtimestamp(each.detected_ms / 1000).strftime("%H:%M:%S"),
            escape(each.proxy_id),
            escape(each.reason),
            " ".join(map(str, each.broker_ids)),
            _delay(each.detected_mono_s, each.advertised_mono_s),
            _delay(each.detected_mono_s, each.committed_mono_s),
        )
    return table


def _delay(detected_s: float, done_s: float | None) -> str:
    return "not yet" if done_s is None else f"{max(0.0, 1000 * (done_s - detected_s)):.0f} ms"
