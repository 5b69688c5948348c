"""Which journal a voter has, how often that was opened, and how far it has come.

A journal that is restored from a copy, or made again on an empty disk, is as valid as any: nothing in its
entries shows that promises are missing. So each journal has a random id and counts its starts, in bytes of
its header that earlier releases leave at zero and skip. Peers remember both: see ``memory.py``.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

IDENTITY_BYTES: Final = 12
NO_IDENTITY: Final = bytes(IDENTITY_BYTES)
"""What an earlier release has in the place of an identity."""

_ID_BYTES: Final = 5
_IDENTITY: Final = struct.Struct(">5sBIH")
_CHECKED_BYTES: Final = IDENTITY_BYTES - 2
_CAUGHT_UP: Final = 1
_ERASED: Final = 2
_LIFE_BYTES: Final = 4
_MAX_TEXT_CHARACTERS: Final = 64
_MAX_INT: Final = 1 << 62

Packed: TypeAlias = list[str | int | None]


@dataclass(frozen=True, slots=True)
class Identity:
    """The journal as its header names it.

    Args:
        journal_id: random, as hex digits.
        starts: how often the journal was opened to be written to.
        has_caught_up: whether the voter had fetched everything from the others before it got this id.
        was_erased: whether an earlier release had written the journal, and so erased any id of it, before it
            got this one. The entries were there: an empty disk gets an id without this.
    """

    journal_id: str
    starts: int
    has_caught_up: bool = False
    was_erased: bool = False

    @property
    def flags(self) -> int:
        return _CAUGHT_UP * self.has_caught_up | _ERASED * self.was_erased

    def pack(self) -> bytes:
        fields = bytes.fromhex(self.journal_id), self.flags, self.starts, 0
        unchecked = _IDENTITY.pack(*fields)[:_CHECKED_BYTES]
        return unchecked + _checksum(unchecked)

    @staticmethod
    def unpack(data: bytes) -> Identity | None:
        """The identity in these bytes of a header; None where they hold none, or a damaged one."""
        if data == NO_IDENTITY or _checksum(data[:_CHECKED_BYTES]) != data[_CHECKED_BYTES:]:
            return None
        journal_id, flags, starts, _ = _IDENTITY.unpack(data)
        return Identity.of(journal_id.hex(), starts, flags)

    @staticmethod
    def of(journal_id: str, starts: int, flags: int) -> Identity:
        """The identity with these flags; a flag of a later release is left out."""
        return Identity(journal_id, starts, bool(flags & _CAUGHT_UP), bool(flags & _ERASED))

    @staticmethod
    def make(*, has_caught_up: bool = False, was_erased: bool = False) -> Identity:
        """A new one, at its first start."""
        return Identity(secrets.token_hex(_ID_BYTES), 1, has_caught_up, was_erased)

    def at_next_start(self) -> Identity:
        return replace(self, starts=self.starts + 1)


def _checksum(data: bytes) -> bytes:
    return struct.pack(">H", zlib.crc32(data) & 0xFFFF)


def make_life() -> str:
    """A name for one opening of a journal; two copies may count the same start, and differ in this."""
    return secrets.token_hex(_LIFE_BYTES)


@dataclass(frozen=True, slots=True)
class Standing:
    """What a voter says of its journal: what is in it is on disk when this is sent.

    Args:
        life: of this opening of the journal.
        term, voted_for: the newest term, and whom the voter has voted for in it.
        last_term, last_index: of the last entry.
    """

    identity: Identity
    life: str
    term: int
    voted_for: str | None
    last_term: int
    last_index: int

    def pack(self) -> Packed:
        """As plain values, for a message or a file."""
        named = self.identity
        return [
            *(named.journal_id, named.starts, named.flags, self.life),
            *(self.term, self.voted_for, self.last_term, self.last_index),
        ]

    @staticmethod
    def unpack(value: Any) -> Standing:
        """Read what ``pack`` has made, or anything else from outside.

        Raises: ValueError: it is no standing
        """
        if not isinstance(value, list | tuple) or len(value) != 8:
            raise ValueError("standing is no list of 8")
        journal_id, starts, flags, life, term, voted_for, last_term, last_index = value
        for text in (journal_id, life, "" if voted_for is None else voted_for):
            if not isinstance(text, str) or len(text) > _MAX_TEXT_CHARACTERS:
                raise ValueError(f"standing holds {text!r:.80} where a text is due")
        for number in (starts, flags, term, last_term, last_index):
            if type(number) is not int or not 0 <= number < _MAX_INT:  # True is no int here
                raise ValueError(f"standing holds {number!r:.80} where a number is due")
        identity = Identity.of(journal_id, starts, flags)
        return Standing(identity, life, term, voted_for, last_term, last_index)
