"""Shows the progress of the demo: as plain lines, or as a live picture on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fleet.admin.documents import OwnershipDocument
from fleet.core.console import escape
from fleet.core.model import BrokerId, ProxyId
from fleet.core.text import make_printable
from fleet.drills.demo.result import Result, Round

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red")
_REFRESH_PER_S = 4.0


@dataclass(frozen=True, slots=True)
class Picture:
    """The state of the fleet and its clients at one moment.

    Args:
        members: every member, in order; None if a member does not answer.
        advertised: by identity, the owner in the Metadata of the first member that answers.
        acknowledged, received: records since the start.
        produced_per_s, consumed_per_s: records per second, over the last second.
    """

    members: Mapping[ProxyId, OwnershipDocument | None]
    advertised: Mapping[BrokerId, ProxyId | None]
    acknowledged: int
    received: int
    produced_per_s: float
    consumed_per_s: float


class View(Protocol):
    """Shows the progress of the demo."""

    shows_pictures: bool

    def say(self, line: str) -> None: ...

    def add_round(self, each: Round) -> None: ...

    def show(self, picture: Picture) -> None: ...

    def close(self) -> None: ...


def milliseconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.0f} ms"


def round_line(each: Round) -> str:
    """One kill and its takeover in one line."""
    role = "the Raft leader" if each.was_leader else "a follower"
    return (
        f"killed {each.killed}, {role}: detected after {milliseconds(each.detected_ms)}, "
        f"advertised after {milliseconds(each.advertised_ms)}, "
        f"committed after {milliseconds(each.committed_ms)}; "
        f"longest stall: producer {milliseconds(each.producer_stall_ms)}, "
        f"consumer {milliseconds(each.consumer_stall_ms)}"
    )


def audit_lines(result: Result) -> list[str]:
    """The result of the audit, as text."""
    found = result.audit
    return [
        f"acknowledged {found.acknowledged}, received {found.received} ({found.redelivered} redelivered)",
        f"lost {found.lost}, duplicated {found.duplicated}, out of order {found.out_of_order}",
        *result.unfinished,
        "the audit passed" if result.passed else "the audit FAILED",
    ]


class Lines:
    """Progress as lines on standard error, for pipes and logs."""

    shows_pictures = False

    def say(self, line: str) -> None:
        print(make_printable(line), file=sys.stderr, flush=True)

    def add_round(self, each: Round) -> None:
        self.say(round_line(each))

    def show(self, picture: Picture) -> None:
        """Do nothing: a live table is useless in a log."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


class Terminal:
    """The fleet as a live picture, with the progress lines above it."""

    shows_pictures = True

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(log_path=False)
        self._rounds: list[Round] = []
        self._current_step = ""
        self._picture: Picture | None = None
        self._live = Live(
            console=self._console,
            refresh_per_second=_REFRESH_PER_S,
            get_renderable=self._render,
            transient=False,
        )
        self._live.start()

    def say(self, line: str) -> None:
        self._current_step = line
        self._console.log(escape(line), highlight=False)

    def add_round(self, each: Round) -> None:
        self._rounds.append(each)

    def show(self, picture: Picture) -> None:
        self._picture = picture

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._picture is not None:
            parts = [ownership_table(self._picture), member_table(self._picture), rate_line(self._picture)]
        if self._rounds:
            parts.append(round_table(self._rounds))
        step = Text(self._current_step)
        return Panel(Group(*parts), title=step, box=box.ROUNDED) if parts else step


def _colour(picture: Picture, proxy_id: ProxyId) -> str:
    return _COLOURS[list(picture.members).index(proxy_id) % len(_COLOURS)]


def ownership_table(picture: Picture) -> Table:
    """The owners of each broker's identity: in clients' Metadata, and as committed by Raft."""
    table = Table("broker id", "advertised", "committed", "successors", box=box.SIMPLE_HEAD)
    newest = _newest_document(picture)
    rows = {each.broker_id: each for each in newest.identities} if newest else {}
    for broker_id, owner in picture.advertised.items():
        row = rows.get(broker_id)
        table.add_row(
            str(broker_id),
            Text(owner, style=f"bold {_colour(picture, owner)}") if owner else Text("no owner", style="red"),
            ", ".join(row.committed) if row else "",
            ", ".join(row.successors) if row else "",
        )
    return table


def member_table(picture: Picture) -> Table:
    """The state of each member."""
    table = Table("proxy", "state", "Raft", "generation", "advertised for", box=box.SIMPLE_HEAD)
    newest = _newest_document(picture)
    states = {each.proxy_id: each.condition for each in newest.members} if newest else {}
    for proxy_id, document in picture.members.items():
        owned = [str(broker_id) for broker_id, owner in picture.advertised.items() if owner == proxy_id]
        state = states.get(proxy_id, "unknown") if document else "dead"
        table.add_row(
            Text(proxy_id, style=f"bold {_colour(picture, proxy_id)}"),
            Text(state, style="green" if state == "up" else "red"),
            Text(document.role, style="bold" if document.role == "leader" else "") if document else "",
            str(document.generation) if document else "",
            ", ".join(owned),
        )
    return table


def rate_line(picture: Picture) -> Text:
    """The clients' rates and totals."""
    return Text(
        f" producer {picture.produced_per_s:6.0f} records/s, {picture.acknowledged} acknowledged   "
        f"consumer {picture.consumed_per_s:6.0f} records/s, {picture.received} received"
    )


def round_table(rounds: Sequence[Round]) -> Table:
    """The takeovers, one row for each kill."""
    table = Table(
        "killed",
        "detected",
        "advertised",
        "committed",
        "producer stall",
        "consumer stall",
        box=box.SIMPLE_HEAD,
    )
    for each in rounds:
        table.add_row(
            f"{each.killed} ({'leader' if each.was_leader else 'follower'})",
            milliseconds(each.detected_ms),
            milliseconds(each.advertised_ms),
            milliseconds(each.committed_ms),
            milliseconds(each.producer_stall_ms),
            milliseconds(each.consumer_stall_ms),
        )
    return table


def _newest_document(picture: Picture) -> OwnershipDocument | None:
    documents = [document for document in picture.members.values() if document is not None]
    return max(documents, key=lambda document: document.generation, default=None)
