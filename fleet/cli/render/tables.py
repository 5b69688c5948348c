"""Prints the documents of commands as text and tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from fleet.admin.documents import (
    AnswerDocument,
    CertsDocument,
    ConfigDocument,
    DoctorDocument,
    DrainDocument,
    IdentityDocument,
    MemberDocument,
    PinDocument,
    PlanDocument,
    ReadyDocument,
    RollingRestartDocument,
    StatusDocument,
)
from fleet.core.console import escape

COLOURS = {
    "up": "green",
    "unknown": "yellow",
    "suspect": "red",
    "down": "red",
    "leaving": "yellow",
    "drained": "yellow",
}


def _names(names: tuple[str, ...]) -> str:
    return escape(" ".join(names)) or "-"


def titled(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def duration(seconds: float) -> str:
    """A number of seconds for people: ``4.2 s``, ``3 min 5 s``, ``2 h 0 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _role(member: MemberDocument, answer: AnswerDocument | None) -> str:
    kind = "witness" if member.witness else "voter" if member.voter else "observer"
    return (
        f"{kind}, {escape(answer.role)}"
        if answer is not None and answer.role not in (None, "observer")
        else kind
    )


def _answered(answer: AnswerDocument | None) -> str:
    if answer is None:
        return "not asked"
    if answer.raft_error is not None:
        return f"yes; [red]takes no part in Raft[/]: {escape(answer.raft_error)}"
    return "yes" if answer.error is None else f"[red]no[/]: {escape(answer.error)}"


def _identity_row(identity: IdentityDocument) -> tuple[str, ...]:
    committed, advertised = _names(identity.committed), _names(identity.advertised)
    if identity.advertised != identity.committed:
        advertised = f"[yellow]{advertised}[/]"
    endpoints = "; ".join(f"{each.listener} {' '.join(each.addresses)}" for each in identity.endpoints)
    pin = f" (pinned to {escape(identity.pinned_to)})" if identity.pinned_to else ""
    return (
        str(identity.broker_id),
        committed + pin,
        advertised,
        _names(identity.successors),
        escape(endpoints),
    )


def print_status(status: StatusDocument, console: Console) -> None:
    quorum = status.quorum
    leader = escape(status.leader) if status.leader else "[red]none[/]"
    console.print(
        f"[bold]{escape(status.fleet)}[/]: generation {status.generation}, leader {leader}, "
        f"term {status.term} (reported by {escape(status.reported_by)})"
    )
    if not quorum.present:
        console.print(
            f"[red]no quorum for {duration(quorum.lost_s)}[/]: changes of ownership cannot be committed; "
            "the live members still serve every broker"
        )
    if not status.agree:
        console.print("[yellow]members report different generations[/]: at least one member is behind")
    answers = {answer.proxy_id: answer for answer in status.answers}
    table = titled("Members", "member", "state", "role", "rack", "generation", "stale", "answered")
    for member in status.members:
        answer = answers.get(member.proxy_id)
        has_answer = answer is not None and answer.error is None
        generation = answer.generation if answer is not None and has_answer else member.generation
        stale = duration(answer.staleness_s) if answer is not None and answer.staleness_s else "-"
        state = f"[{COLOURS[member.condition]}]{member.condition}[/]"
        if member.drained and member.condition != "drained":
            state += ", drained"
        table.add_row(
            escape(member.proxy_id),
            state,
            _role(member, answer),
            escape(member.rack or "-"),
            "-" if generation is None else str(generation),
            stale,
            _answered(answer),
        )
    console.print(table)
    owned = titled("Identities", "broker", "committed", "advertised", "successors", "clients connect to")
    for identity in status.identities:
        owned.add_row(*_identity_row(identity))
    console.print(owned)
    for trouble in status.troubles:
        console.print(f"[yellow]warning[/]: {escape(trouble)}", soft_wrap=True)


def print_config(document: ConfigDocument, console: Console) -> None:
    console.print(f"[green]{escape(document.source)}: no mistakes[/]")
    table = titled(f"Fleet {escape(document.fleet)}", "member", "role", "rack", "clients bootstrap at")
    for member in document.members:
        role = "witness" if member.witness else "voter" if member.voter else "observer"
        listeners = "; ".join(f"{each.name} {each.host}:{each.bootstrap_port}" for each in member.listeners)
        table.add_row(escape(member.proxy_id), role, escape(member.rack or "-"), escape(listeners) or "-")
    console.print(table)
    for sentence in document.tolerates:
        console.print(f"- {escape(sentence)}")
    for sentence in document.warnings:
        console.print(f"[yellow]warning[/]: {escape(sentence)}")


def print_certs(document: CertsDocument, console: Console) -> None:
    table = titled(f"Certificates of fleet {escape(document.fleet)}", "member", "certificate", "expires")
    for each in document.members:
        table.add_row(
            escape(each.proxy_id), escape(each.certificate), escape(each.expires or "not on this machine")
        )
    console.print(table)
    for sentence in document.next_steps:
        console.print(f"- {escape(sentence)}")


def print_plan(plan: PlanDocument, console: Console) -> None:
    by_weight = ["by weight"] if plan.weighed else []
    title = escape(", ".join([*by_weight, *(f"without {each}" for each in plan.without)]))
    title = f"{title[:1].upper()}{title[1:]}"
    if not plan.feasible:
        console.print(f"[red]{title}, no member could own a broker: nothing would move[/]")
    elif not plan.moves:
        console.print(f"{title}, nothing would move")
    table = titled(f"{title}, from generation {plan.generation}", "broker", "owners now", "owners after")
    for move in plan.moves:
        table.add_row(str(move.broker_id), _names(move.before), _names(move.after))
    if plan.moves:
        console.print(table)
    weighed = ("weight now", "weight after") if plan.weighed else ()
    loads = titled("Identities of each member", "member", "now", "after", *weighed)
    for load in plan.loads:
        weights = (f"{each:,.0f}" for each in (load.weight_before, load.weight_after) if each is not None)
        loads.add_row(escape(load.proxy_id), str(load.before), str(load.after), *weights)
    console.print(loads)


def print_doctor(document: DoctorDocument, console: Console) -> None:
    colours = {"ok": "green", "warning": "yellow", "failed": "red"}
    for each in document.findings:
        colour = colours[each.verdict]
        text = f"{escape(each.subject)}: {escape(each.detail)}"
        console.print(f"[{colour}]{each.verdict:8}[/]{escape(each.check):13}{text}", soft_wrap=True)
        if each.fix:
            console.print(f"{'':21}{escape(each.fix)}", soft_wrap=True)


def print_ready(document: ReadyDocument, console: Console) -> None:
    console.print("ready" if document.ready else "not ready")
    for each in document.checks:
        text = ": ".join(filter(None, (each.name, each.detail)))
        console.print(f"{'ok' if each.ok else 'failed':8}{escape(text)}", soft_wrap=True)


def print_drain(document: DrainDocument, console: Console) -> None:
    state = "drained" if document.drained else "undrained"
    effect = "other members take over its brokers" if document.drained else "it may own brokers again"
    _print_change(document.proxy_id, state, effect, document, console)


def print_pin(document: PinDocument, console: Console) -> None:
    is_pinned = document.proxy_id is not None
    state = f"pinned to {document.proxy_id}" if is_pinned else "unpinned"
    effect = "that member owns it as long as it can" if is_pinned else "any member may own it"
    _print_change(f"broker {document.broker_id}", state, effect, document, console)


def _print_change(
    subject: str, state: str, effect: str, document: DrainDocument | PinDocument, console: Console
) -> None:
    """One line: what has changed, or that nothing had to change."""
    if document.applied:
        text = f"{subject} is {state}: {effect} (generation {document.generation})"
    else:
        text = f"{subject} is already {state} (generation {document.generation})"
    console.print(escape(text), soft_wrap=True)


def print_rolling_restart(document: RollingRestartDocument, console: Console) -> None:
    table = titled("Restarted", "member", "was leader", "at rest after")
    for member in document.members:
        table.add_row(escape(member.proxy_id), "yes" if member.was_leader else "no", f"{member.took_s:.1f} s")
    console.print(table)
