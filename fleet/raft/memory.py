"""A voter's memory of the other voters' journals, which decides whose votes it counts.

A voter whose disk is empty, or was restored from a copy, may have forgotten a vote or an acknowledged entry.
The voter cannot detect the loss itself, but its peers can. Each voter states its journal and how far that has
come (``identity.py``), and the others compare the statement with their memory. The votes of a voter that has
forgotten anything do not count until it has caught up, as after a reset (``rejoin.py``).

The comparison applies only to a new start. Within one life a log may legitimately shrink, for example when a
new leader replaces entries that were never committed.
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
"""A new start is on disk before it counts. Progress within one life may be written this late."""
_MAX_FORMER_IDS: Final = 16


@dataclass(frozen=True, slots=True)
class _Known:
    """The remembered journals of one voter.

    Args:
        newest: the last statement about its journal; None while it runs a release that sends none.
        former_ids: ids of its earlier journals, oldest first.
    """

    newest: Standing | None
    former_ids: tuple[str, ...] = ()


class VoterMemory:
    """The journals of the other voters, in memory and in a file.

    Args:
        path: the file; created at the first save.
        others: the other voters. Entries of other members in the file are dropped.
        is_outdated: ignore the file, because this member has run an earlier release in between, which does
            not update it.
    """

    def __init__(self, path: Path, others: Iterable[ProxyId], *, is_outdated: bool = False) -> None:
        self._path = path
        self._others = frozenset(others)
        self._known: dict[ProxyId, _Known] = {} if is_outdated else self._read()
        self.is_changed = self._is_urgent = False
        self._saved_s: float | None = None

    def judge(self, peer: ProxyId, standing: Standing | None) -> str:
        """Compare the statement of a voter about its journal with the memory, and remember it if they agree.

        Args:    standing: None from a release that sends no statement; accepted without comparison
        Returns: what the voter has forgotten; empty if nothing, so that its votes count
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
        """Write the memory if necessary. Call it before sending a message that depends on a judgement.

        Raises: JournalError: the file cannot be written
        """
        is_due = self._saved_s is None or now_s - self._saved_s >= _SAVE_INTERVAL_S
        if not self._is_urgent and not (self.is_changed and is_due):
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
        self.is_changed = self._is_urgent = False
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
            self._put(peer, _Known(_merge(before, standing), former_ids))
            return
        self._put(peer, _Known(standing, former_ids))
        self._is_urgent = True

    def _put(self, peer: ProxyId, known: _Known) -> None:
        if self._known.get(peer) != known:
            self._known[peer] = known
            self.is_changed = True

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
                "memory of the other voters' journals is damaged, starting a new one: %s (%s); a voter "
                "that is restored from a copy meanwhile is not detected by this member",
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


def _objection(known: _Known, stated: Standing) -> str:
    """The evidence that a voter has forgotten something; empty if there is none."""
    identity, newest = stated.identity, known.newest
    if identity.journal_id in known.former_ids:
        return "its journal is a copy of an earlier journal of this voter"
    if newest is None:
        return ""
    if identity.journal_id != newest.identity.journal_id:
        if identity.has_caught_up:
            return ""
        if identity.was_erased:  # by an earlier release, which keeps all promises: compare them
            return _lost_promise(newest, stated)
        return "its journal is new, but the voter had a journal before"
    if identity.starts < newest.identity.starts:
        return (
            f"its journal is a copy: it is at start {identity.starts}, but start {newest.identity.starts} "
            "was seen before"
        )
    if identity.starts == newest.identity.starts:
        return "" if stated.life == newest.life else f"two journals exist at start {identity.starts}"
    return _lost_promise(newest, stated)


def _lost_promise(newest: Standing, stated: Standing) -> str:
    """The promise from before a new start that the journal lacks; empty if it has all."""
    if stated.term < newest.term:
        return f"its journal is a copy: it is in term {stated.term}, but was in term {newest.term}"
    if stated.term == newest.term and newest.voted_for not in (None, stated.voted_for):
        return f"its journal is a copy: its vote for {newest.voted_for!r} in term {newest.term} is missing"
    if (stated.last_term, stated.last_index) < (newest.last_term, newest.last_index):
        return (
            f"its journal is a copy: it ends at entry {stated.last_index} of term {stated.last_term}, but "
            f"ended at entry {newest.last_index} of term {newest.last_term}"
        )
    return ""


def _merge(before: Standing, after: Standing) -> Standing:
    """All promises of two moments in one life."""
    vote = max((before, after), key=lambda each: (each.term, each.voted_for is not None))
    end = max((before, after), key=lambda each: (each.last_term, each.last_index))
    return replaced(
        after,
        term=vote.term,
        voted_for=vote.voted_for,
        last_term=end.last_term,
        last_index=end.last_index,
    )


def _former_ids(known: _Known | None) -> tuple[str, ...]:
    """The ids of all earlier journals of a voter after its newest one is replaced."""
    if known is None or known.newest is None:
        return () if known is None else known.former_ids
    return (*known.former_ids, known.newest.identity.journal_id)[-_MAX_FORMER_IDS:]
