"""The identity of a journal in its header, and the standing that a voter sends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.raft.identity import IDENTITY_BYTES, NO_IDENTITY, Identity, Standing, make_life

NAMED = Identity("0123456789", 7, has_caught_up=True)
SAID = Standing(NAMED, "abcd", 3, "p2", 2, 41)


NUMBERS = (1, 2, 4, 6, 7)
TEXTS = (0, 3, 5)


def with_field(place: int, value: object) -> list[object]:
    """A packed standing with one field replaced."""
    packed: list[object] = list(SAID.pack())
    packed[place] = value
    return packed


def test_identity_is_read_back() -> None:
    erased = Identity("ffffffffff", 2, was_erased=True)
    for each in (NAMED, erased, Identity("ffffffffff", 1), Identity("0000000000", 1)):
        assert len(each.pack()) == IDENTITY_BYTES
        assert Identity.unpack(each.pack()) == each


def test_header_of_an_earlier_release_has_no_identity() -> None:
    assert Identity.unpack(NO_IDENTITY) is None


@pytest.mark.parametrize("place", range(IDENTITY_BYTES))
def test_damaged_identity_is_none(place: int) -> None:
    data = bytearray(NAMED.pack())
    data[place] ^= 0x40
    assert Identity.unpack(bytes(data)) is None


def test_new_identities_and_lives_differ() -> None:
    made = {Identity.make().journal_id for _ in range(50)}
    assert len(made) == 50
    assert len({make_life() for _ in range(50)}) == 50
    assert Identity.make(has_caught_up=True).has_caught_up
    assert NAMED.at_next_start() == Identity("0123456789", 8, has_caught_up=True)
    erased = Identity.make(was_erased=True).at_next_start()
    assert (erased.starts, erased.has_caught_up, erased.was_erased) == (2, False, True)


@pytest.mark.parametrize("voted_for", ["p2", None])
def test_standing_is_read_back(voted_for: str | None) -> None:
    standing = Standing(NAMED, "abcd", 3, voted_for, 2, 41)
    assert Standing.unpack(standing.pack()) == standing
    assert Standing.unpack(tuple(standing.pack())) == standing
    erased = replace(standing, identity=Identity("0123456789", 7, was_erased=True))
    assert Standing.unpack(erased.pack()) == erased


def test_flag_of_a_later_release_is_left_out() -> None:
    assert Standing.unpack(with_field(2, 4 | 1)) == SAID


BAD_NUMBERS: tuple[object, ...] = (-1, 1 << 62, True, 1.5, "1", None)
BAD_TEXTS: tuple[object, ...] = (1, b"x", "x" * 65, [])


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        "text",
        [],
        SAID.pack()[:-1],
        [*SAID.pack(), 1],
        *(with_field(place, bad) for place in NUMBERS for bad in BAD_NUMBERS),
        *(with_field(place, bad) for place in TEXTS for bad in BAD_TEXTS),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_malformed_standing_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="standing"):
        Standing.unpack(value)
