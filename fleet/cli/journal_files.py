"""What ``fleet journal`` does: look at a member's Raft files, trim them, or set them aside.

Trimming and setting aside happen under the lock of the data directory, so never while the member runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from rich.console import Console

from fleet.config import Settings
from fleet.core.codec import Codec
from fleet.core.errors import JournalError
from fleet.core.model import ProxyId
from fleet.core.text import make_printable
from fleet.raft import survey
from fleet.raft.rejoin import max_forgetful_voters
from fleet.raft.survey import Survey
from fleet.runtime import data_dir

Action: TypeAlias = Literal["check", "repair", "reset"]


@dataclass(frozen=True, slots=True)
class JournalResult:
    """What was found, what was done, and what is to be done next.

    Args:
        running: whether the member runs, so that its last write may be under way.
        changed: the files that were trimmed or removed, or the new names of what was set aside.
        advice: a sentence for a person.
    """

    action: Action
    folder: Path
    running: bool
    survey: Survey
    changed: tuple[Path, ...]
    advice: str


JOURNAL: Final = Codec(JournalResult)


def check(settings: Settings, proxy_id: ProxyId) -> JournalResult:
    """Read everything, change nothing.

    Raises: JournalError: a file cannot be read
    """
    member = settings.member(proxy_id)
    folder = data_dir.raft_folder(member)
    running = data_dir.is_locked(member)
    found = survey.survey(folder, proxy_id)
    if data_dir.lacks_journal(member):
        refusal = f"{member.data_dir / data_dir.RAFT} leads to {folder}, and that is missing."
        found = replace(found, verdict="corrupt", refusal=refusal)
    return JournalResult("check", folder, running, found, (), _advice(found, running))


def repair(settings: Settings, proxy_id: ProxyId) -> JournalResult:
    """Trim what an interrupted write has left; refuse whatever is more than that.

    Raises:
        StartError: the member runs, or its data directory cannot be had.
        JournalError: nothing but a reset helps.
    """
    folder = settings.member(proxy_id).private_dir / data_dir.RAFT
    with _stopped(settings, proxy_id):
        found = survey.survey(folder, proxy_id)
        if found.refusal:
            raise JournalError(
                f"{found.refusal} A repair would forget entries that this member may have acknowledged, and "
                "with them what was committed: there is only the reset."
            )
        changed = survey.trim(folder, found.journal_bytes - found.torn_bytes)
        found = survey.survey(folder, proxy_id)
    return JournalResult("repair", folder, False, found, changed, _advice(found, False))


def reset(settings: Settings, proxy_id: ProxyId, start_over: bool) -> JournalResult:
    """Set the files aside; a voter of three or more then follows without a vote until it is caught up.

    Args: start_over: leave no mark. For a fleet that begins anew, with every voter stopped and reset.

    Raises:
        StartError: the member runs, or its data directory cannot be had.
        JournalError: this is the only voter, or the disk does not take it.
    """
    member, voters = settings.member(proxy_id), settings.voters
    folder = member.private_dir / data_dir.RAFT
    if voters == (proxy_id,) and not start_over:
        raise JournalError(
            f"{proxy_id} is the only voter: nobody has what it would forget. To begin with nothing all the "
            "same, run this again with --start-over"
        )
    mark = member.voter and max_forgetful_voters(len(voters)) > 0 and not start_over
    with _stopped(settings, proxy_id, for_reset=True):
        changed = survey.set_aside(folder, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), mark)
        found = survey.survey(folder, proxy_id)
    advice = "Start the member: it fetches everything from the others."
    if mark:
        advice = (
            "Start the member: it fetches everything from the others, and votes once all other voters have "
            "been heard of. Until then the fleet can lose "
            f"{max_forgetful_voters(len(voters)) - 1} more voters."
        )
    elif start_over:
        advice = (
            "Start this member once every voter is stopped and reset: whatever one still has is in force."
        )
    return JournalResult("reset", folder, False, found, changed, advice)


def _advice(found: Survey, running: bool) -> str:
    if found.verdict == "corrupt":
        return "Stop the member, and run `fleet journal reset`."
    if found.verdict == "torn" and running:
        return "A write is under way; stop the member to be sure."
    if found.verdict == "torn":
        return "The next start trims the tail, and so does `fleet journal repair`: nobody was told of it."
    if found.rejoining:
        return "The member was reset: it votes once it is caught up, and all other voters have been heard of."
    return "Nothing needs to be done."


def print_result(result: JournalResult, console: Console) -> None:
    """The same for people."""
    found = result.survey

    def line(name: str, value: object) -> None:
        console.print(f"{name:<13} {make_printable(value)}", markup=False)

    line("files", f"{result.folder}: {found.verdict}{', in use' if result.running else ''}")
    line("journal", f"{found.entries} entries ({found.first_index} to {found.last_index})")
    line(
        "id",
        f"{found.journal_id}, start {found.starts}" if found.journal_id else "none before the next start",
    )
    line("term", f"{found.term}, voted for {found.voted_for or 'nobody'}")
    line("commit index", "unknown" if found.commit_index is None else found.commit_index)
    if found.snapshot_index is not None:
        line("snapshot", f"up to entry {found.snapshot_index} of term {found.snapshot_term}")
    if found.torn_bytes:
        line("torn", f"{found.torn_bytes} bytes at the end")
    for each in found.damage:
        line("damage", f"{each.file}, offset {each.offset}: {each.detail}")
    if found.refusal:
        line("refused", found.refusal)
    for path in result.changed:
        line(result.action, path)
    line("next", result.advice)


@contextmanager
def _stopped(settings: Settings, proxy_id: ProxyId, for_reset: bool = False) -> Iterator[None]:
    lock = data_dir.acquire(settings.member(proxy_id), for_reset)
    try:
        yield
    finally:
        lock.close()
