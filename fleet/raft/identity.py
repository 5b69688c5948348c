"""The identity of a voter's journal: its id, its number of starts, and its newest term, vote and entry.

A journal that was restored from a copy, or created again on an empty disk, looks valid: its entries do not
show that promises are missing. Each journal therefore has a random id and counts its starts. Both are in
bytes of the header that earlier releases leave at zero and skip. Peers remember both: see ``memory.py``.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

IDENTITY_BYTES: Final = 12
NO_IDENTITY: Final = bytes(IDENTITY_BYTES)
"""The bytes that an earlier release writes in place of an identity."""

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
    """The identity in the header of a journal.

    Args:
        journal_id: random hex digits.
        starts: how often the journal was opened for writing.
        has_caught_up: whether the voter had fetched everything from the others before it got this id.
        was_erased: whether an earlier release wrote the journal before, and so erased its former id. The
            entries were present: a journal on an empty disk does not have this flag.
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
        """The identity in these bytes of a header; None if they contain no identity or a damaged one."""
        if data == NO_IDENTITY or _checksum(data[:_CHECKED_BYTES]) != data[_CHECKED_BYTES:]:
            return None
        journal_id, flags, starts, _ = _IDENTITY.unpack(data)
        return Identity.from_flags(journal_id.hex(), starts, flags)

    @staticmethod
    def from_flags(journal_id: str, starts: int, flags: int) -> Identity:
        """The identity with these flags. Unknown flags, of a later release, are ignored."""
        return Identity(journal_id, starts, bool(flags & _CAUGHT_UP), bool(flags & _ERASED))

    @staticmethod
    def make(*, has_caught_up: bool = False, was_erased: bool = False) -> Identity:
        """A new identity, at its first start."""
        return Identity(secrets.token_hex(_ID_BYTES), 1, has_caught_up, was_erased)

    def at_next_start(self) -> Identity:
        return replace(self, starts=self.starts + 1)


def _checksum(data: bytes) -> bytes:
    return struct.pack(">H", zlib.crc32(data) & 0xFFFF)


def make_life() -> str:
    """A random name for one opening of a journal. It distinguishes two copies with the same start count."""
    return secrets.token_hex(_LIFE_BYTES)


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a voter's journal, as sent to peers. Its content is on disk before it is sent.

    Args:
        life: the name of this opening of the journal.
        term, voted_for: the newest term, and the candidate that the voter has voted for in it.
        last_term, last_index: term and index of the last entry.
    """

    identity: Identity
    life: str
    term: int
    voted_for: str | None
    last_term: int
    last_index: int

    def pack(self) -> Packed:
        """Plain values for a message or a file."""
        own = self.identity
        return [
            *(own.journal_id, own.starts, own.flags, self.life),
            *(self.term, self.voted_for, self.last_term, self.last_index),
        ]

    @staticmethod
    def unpack(value: Any) -> Standing:
        """Read the result of ``pack``, or any untrusted value.

        Raises: ValueError: the value is not a standing
        """
        if not isinstance(value, list | tuple) or len(value) != 8:
            raise ValueError("standing must be a list of 8 values")
        journal_id, starts, flags, life, term, voted_for, last_term, last_index = value
        for text in (journal_id, life, "" if voted_for is None else voted_for):
            if not isinstance(text, str) or len(text) > _MAX_TEXT_CHARACTERS:
                raise ValueError(f"standing has {text!r:.80} where a text is expected")
        for number in (starts, flags, term, last_term, last_index):
            if (
                type(number) is not int or not 0 <= number < _MAX_INT
            ):  # refuses True, which isinstance accepts
                raise ValueError(f"standing has {number!r:.80} where a number is expected")
        identity = Identity.from_flags(journal_id, starts, flags)
        return Standing(identity, life, term, voted_for, last_term, last_index)
