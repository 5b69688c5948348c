"""Checks, repairs and resets the Raft files of a member, for ``fleet journal``.

Repair and reset hold the lock of the data directory, so they cannot run while the member runs.
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
    """What the files contain, what was changed, and what to do next.

    Args:
        running: whether the member runs, so that its last write may be incomplete.
        changed: the files that were trimmed or removed, or the new names of the files that were set aside.
        advice: the next step, as a sentence for people.
    """

    action: Action
    folder: Path
    running: bool
    survey: Survey
    changed: tuple[Path, ...]
    advice: str


JOURNAL: Final = Codec(JournalResult)


def check(settings: Settings, proxy_id: ProxyId) -> JournalResult:
    """Read all files; change nothing.

    Raises: JournalError: a file cannot be read
    """
    member = settings.member(proxy_id)
    folder = data_dir.raft_folder(member)
    running = data_dir.is_locked(member)
    found = survey.survey(folder, proxy_id)
    if data_dir.lacks_journal(member):
        refusal = f"{member.data_dir / data_dir.RAFT} is a link to {folder}, which does not exist."
        found = replace(found, verdict="corrupt", refusal=refusal)
    return JournalResult("check", folder, running, found, (), _advice(found, running))


def repair(settings: Settings, proxy_id: ProxyId) -> JournalResult:
    """Trim an incomplete write at the end of the journal; refuse every other damage.

    Raises:
        StartError: the member runs, or its data directory cannot be locked.
        JournalError: only a reset helps.
    """
    folder = settings.member(proxy_id).private_dir / data_dir.RAFT
    with _lock_stopped_member(settings, proxy_id):
        found = survey.survey(folder, proxy_id)
        if found.refusal:
            raise JournalError(
                f"{found.refusal} A repair would remove entries that this member may have acknowledged, and "
                "with them committed changes; run `fleet journal reset` instead"
            )
        changed = survey.trim(folder, found.journal_bytes - found.torn_bytes)
        found = survey.survey(folder, proxy_id)
    return JournalResult("repair", folder, False, found, changed, _advice(found, False))


def reset(settings: Settings, proxy_id: ProxyId, start_over: bool) -> JournalResult:
    """Set the files aside. With three or more voters, this member does not vote until it has caught up.

    Args: start_over: let the member vote at once. For a new fleet, with every voter stopped and reset.

    Raises:
        StartError: the member runs, or its data directory cannot be locked.
        JournalError: this is the only voter, or the disk refuses the change.
    """
    member, voters = settings.member(proxy_id), settings.voters
    folder = member.private_dir / data_dir.RAFT
    if voters == (proxy_id,) and not start_over:
        raise JournalError(
            f"{proxy_id} is the only voter: no other member has the data that it would lose; to start from "
            "nothing anyway, add --start-over"
        )
    mark = member.voter and max_forgetful_voters(len(voters)) > 0 and not start_over
    with _lock_stopped_member(settings, proxy_id, for_reset=True):
        changed = survey.set_aside(folder, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), mark)
        found = survey.survey(folder, proxy_id)
    advice = "Start the member: it gets everything from the other members."
    if mark:
        advice = (
            "Start the member: it gets everything from the other members, and votes after contact with all "
            "other voters. Until then the fleet tolerates the loss of "
            f"{max_forgetful_voters(len(voters)) - 1} more voters."
        )
    elif start_over:
        advice = (
            "Stop and reset every voter before you start this member: files that a voter keeps stay valid."
        )
    return JournalResult("reset", folder, False, found, changed, advice)


def _advice(found: Survey, running: bool) -> str:
    if found.verdict == "corrupt":
        return "Stop the member, and run `fleet journal reset`."
    if found.verdict == "torn" and running:
        return "The member may be writing; stop it and check again."
    if found.verdict == "torn":
        return "The next start trims the tail, as `fleet journal repair` does. No tail was ever acknowledged."
    if found.rejoining:
        return "The member was reset: it votes after contact with all other voters, when it has caught up."
    return "Nothing to do."


def print_result(result: JournalResult, console: Console) -> None:
    """Print the result for people."""
    found = result.survey

    def line(name: str, value: object) -> None:
        console.print(f"{name:<13} {make_printable(value)}", markup=False)

    line("files", f"{result.folder}: {found.verdict}{', in use' if result.running else ''}")
    line("journal", f"{found.entries} entries ({found.first_index} to {found.last_index})")
    line(
        "id",
        f"{found.journal_id}, start {found.starts}" if found.journal_id else "none before the next start",
    )
    line("term", f"{found.term}, voted for {found.voted_for or 'no member'}")
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
def _lock_stopped_member(settings: Settings, proxy_id: ProxyId, for_reset: bool = False) -> Iterator[None]:
    lock = data_dir.acquire(settings.member(proxy_id), for_reset)
    try:
        yield
    finally:
        lock.close()
