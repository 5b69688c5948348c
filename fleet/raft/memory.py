"""What a voter remembers of the journals of the other voters, and whose votes it counts because of that.

A voter whose disk is empty, or was restored from a copy, may have forgotten a vote or an entry that it
acknowledged. It cannot know that by itself, but its peers can: each voter says which journal it has and how
far that has come (``identity.py``), and the others compare it with what they remember. A voter that has
forgotten anything gives no vote, until it has caught up as after a reset (``rejoin.py``).

Only a new start is judged. Within one life a log may shrink in good order, as where a new leader replaces
entries that were never committed.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Final

import msgpack  # type: ignore[import-untyped]

from fleet.core.errors import JournalError
from fleet.core.model import ProxyId
from fleet.raft.files import replace
from fleet.raft.identity import Standing

log = logging.getLogger(__name__)

FILE: Final = "peers"
"""Name of the file in the raft folder."""

MAGIC: Final = b"FLEETRM1"
_HEAD: Final = struct.Struct(">8sI")
_SAVE_INTERVAL_S: Final = 1.0
"""A new start is on disk before it counts; progress within one life may be this late."""
_MAX_FORMER_IDS: Final = 16


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of one voter.

    Args:
        newest: its journal as of late; None while it runs a release that says nothing of it.
        former_ids: of journals that it had before, oldest first.
    """

    newest: Standing | None
    former_ids: tuple[str, ...] = ()


class VoterMemory:
    """The journals of the other voters, in memory and in a file.

    Args:
        path: the file; made at the first save.
        others: the other voters; what the file says of anybody else is dropped.
        is_outdated: begin with nothing, whatever is in the file: this member has run an earlier release in
            between, which remembers nothing.
    """

    def __init__(self, path: Path, others: Iterable[ProxyId], *, is_outdated: bool = False) -> None:
        self._path = path
        self._others = frozenset(others)
        self._known: dict[ProxyId, _Known] = {} if is_outdated else self._read()
        self._is_changed = self._is_urgent = False
        self._saved_s: float | None = None

    def judge(self, peer: ProxyId, standing: Standing | None) -> str:
        """Compare what a voter says of its journal with what is remembered, and remember it where it fits.

        Args:    standing: None from a release that says nothing, which is taken as it is
        Returns: what the voter has forgotten; empty where it has not, so that its votes count
        """
        known = self._known.get(peer)
        if standing is None:
            if known is not None and known.newest is not None:
                self._put(peer, _Known(None, _former_ids(known)))
            return ""
        objection = "" if known is None else _objection(known, standing)
        if not objection:
            self._remember(peer, known, standing)
        return objection

    def flush(self, now_s: float) -> None:
        """Make durable what has to be: call it before anything is sent that rests on a judgement.

        Raises: JournalError: the disk does not take it
        """
        is_due = self._saved_s is None or now_s - self._saved_s >= _SAVE_INTERVAL_S
        if not self._is_urgent and not (self._is_changed and is_due):
            return
        known = {
            peer: (None if each.newest is None else each.newest.pack(), each.former_ids)
            for peer, each in sorted(self._known.items())
        }
        body: bytes = msgpack.packb(known)
        try:
            os.close(replace(self._path, _HEAD.pack(MAGIC, zlib.crc32(body)) + body))
        except OSError as error:
            raise JournalError(f"{self._path}: cannot be written: {error.strerror or error}") from error
        self._is_changed = self._is_urgent = False
        self._saved_s = now_s

    def newest(self, peer: ProxyId) -> Standing | None:
        known = self._known.get(peer)
        return None if known is None else known.newest

    def _remember(self, peer: ProxyId, known: _Known | None, standing: Standing) -> None:
        before = None if known is None else known.newest
        former_ids = () if known is None else known.former_ids
        if before is not None and before.identity.journal_id != standing.identity.journal_id:
            former_ids = _former_ids(known)
        if before is not None and before.life == standing.life and before.identity == standing.identity:
            self._put(peer, _Known(_furthest(before, standing), former_ids))
            return
        self._put(peer, _Known(standing, former_ids))
        self._is_urgent = True

    def _put(self, peer: ProxyId, known: _Known) -> None:
        if self._known.get(peer) != known:
            self._known[peer] = known
            self._is_changed = True

    def _read(self) -> dict[ProxyId, _Known]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise JournalError(f"{self._path}: cannot be read: {error.strerror or error}") from error
        try:
            return self._decode(data)
        except Exception as error:
            log.warning(
                "%s: damaged (%s): this member begins to remember the other voters' journals again; a voter "
                "that is restored from a copy meanwhile is not noticed here",
                self._path,
                error,
            )
            return {}

    def _decode(self, data: bytes) -> dict[ProxyId, _Known]:
        magic, checksum = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        if magic != MAGIC or checksum != zlib.crc32(body):
            raise ValueError("its checksum is wrong")
        found: dict[ProxyId, _Known] = {}
        for peer, (packed, former_ids) in msgpack.unpackb(body, use_list=False).items():
            if peer in self._others:
                newest = None if packed is None else Standing.unpack(packed)
                found[peer] = _Known(newest, tuple(map(str, former_ids)))
        return found


def _objection(known: _Known, said: Standing) -> str:
    """What shows that a voter has forgotten; empty where nothing does."""
    named, newest = said.identity, known.newest
    if named.journal_id in known.former_ids:
        return "its journal is a copy of one that it had before"
    if newest is None:
        return ""
    if named.journal_id != newest.identity.journal_id:
        if named.has_caught_up:
            return ""
        if named.was_erased:  # by an earlier release, which keeps all promises: those can be compared
            return _lost_promise(newest, said)
        return "its journal is new, and it had one before"
    if named.starts < newest.identity.starts:
        return f"its journal is a copy: start {named.starts}, and it has had start {newest.identity.starts}"
    if named.starts == newest.identity.starts:
        return "" if said.life == newest.life else f"there are two journals at start {named.starts}"
    return _lost_promise(newest, said)


def _lost_promise(newest: Standing, said: Standing) -> str:
    """What is missing at a new start that was promised before it."""
    if said.term < newest.term:
        return f"its journal is a copy: term {said.term}, and it was in term {newest.term}"
    if said.term == newest.term and newest.voted_for not in (None, said.voted_for):
        return f"its journal is a copy: its vote for {newest.voted_for!r} in term {newest.term} is missing"
    if (said.last_term, said.last_index) < (newest.last_term, newest.last_index):
        return (
            f"its journal is a copy: it ends at entry {said.last_index} of term {said.last_term}, and it "
            f"ended at entry {newest.last_index} of term {newest.last_term}"
        )
    return ""


def _furthest(one: Standing, other: Standing) -> Standing:
    """All promises of two moments in one life."""
    voted = max((one, other), key=lambda each: (each.term, each.voted_for is not None))
    ends = max((one, other), key=lambda each: (each.last_term, each.last_index))
    return replaced(
        other,
        term=voted.term,
        voted_for=voted.voted_for,
        last_term=ends.last_term,
        last_index=ends.last_index,
    )


def _former_ids(known: _Known | None) -> tuple[str, ...]:
    """The ids of all journals that a voter has had, once its newest one is replaced."""
    if known is None or known.newest is None:
        return () if known is None else known.former_ids
    return (*known.former_ids, known.newest.identity.journal_id)[-_MAX_FORMER_IDS:]
