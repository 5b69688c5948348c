"""Who owned an identity when: from ownership events, in any order and any number, to intervals. Pure.

Every member tells of every change, so each change comes several times, late, and in any order between
tellers. Tellings of the same change are merged by minimum and maximum, which gives the same result in any
order; the generation, which Raft has given out, is the order of the changes.

What is known may be corrected by an event that comes late. So rows are told as differences: a row that
replaces an earlier one with the same `key` has a greater revision (`fleet.pipeline.timeline_job` adds it),
and one that does not hold any longer is withdrawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

What: TypeAlias = Literal["interval", "gap", "overlap", "late"]
Owners: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an identity's owners, as one or more members have told of it.

    Args:
        before: the owners until then; None where nobody who told knew them.
        committed_at_ms: when the first one learned of it.
        detected_at_ms: the first sign that somebody saw; None where it was no takeover.
        advertised_at_ms: when the last one of those who told had gone around the old owner.
        alive_at_ms: the last moment at which anybody was sure that the old owner was alive.
    """

    generation: int
    owners: Owners
    before: Owners | None
    reason: str
    proposed_at_ms: int
    committed_at_ms: int
    detected_at_ms: int | None = None
    advertised_at_ms: int | None = None
    alive_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of an identity.

    Args:
        what: "interval": these owned it. "gap": between two changes one was not told of, or more; `owners`
            are those it has ended with. "overlap": a second set of owners in the same generation. "late":
            told of when what came after it was settled already; a repetition, or part of a gap.
        from_ms, to_ms: on the clocks of the leaders that proposed the changes; `to_ms` None while it lasts.
        withdrawn: an earlier row with this key does not hold any longer.
    """

    what: What
    generation: int
    owners: Owners
    reason: str
    from_ms: int
    to_ms: int | None
    committed_at_ms: int | None = None
    detected_at_ms: int | None = None
    advertised_at_ms: int | None = None
    alive_at_ms: int | None = None
    withdrawn: bool = False

    @property
    def key(self) -> tuple[What, int, Owners]:
        """Of two rows with the same one, the later one holds."""
        return (self.what, self.generation, self.owners if self.what == "overlap" else ())


@dataclass(frozen=True, slots=True)
class Known:
    """The changes of one identity that may still be corrected, and the one before them; by generation.

    Args:
        since_ms: when the first of them took hold; None where nothing has come before it.
    """

    changes: tuple[Change, ...] = ()
    since_ms: int | None = None

    def learn(self, told: Iterable[Change], settled_ms: int) -> tuple[Known, list[Row]]:
        """Take in what was told.

        Args:
            settled_ms: what was proposed before it is forgotten, but for the last change of all these.
        Returns: what is known then, and the rows that are new or different.
        """
        late: list[Row] = []
        merged = {(each.generation, each.owners): each for each in self.changes}
        for each in told:
            place = (each.generation, each.owners)
            if self.since_ms is not None and each.generation < self.changes[0].generation:
                late.append(Row("late", each.generation, each.owners, each.reason, each.proposed_at_ms, None))
            else:
                merged[place] = merge(merged[place], each) if place in merged else each
        changes = tuple(merged[place] for place in sorted(merged))
        rows = rows_of(changes, self.since_ms)
        kept, since_ms = _unsettled(changes, settled_ms), self.since_ms
        if len(kept) < len(changes):
            since_ms = next(row.from_ms for row in rows if row.key == ("interval", kept[0].generation, ()))
        return Known(kept, since_ms), [*late, *difference(rows_of(self.changes, self.since_ms), rows)]


def merge(one: Change, other: Change) -> Change:
    """Two tellings of the same change."""
    return replace(
        one,
        before=one.before if other.before is None else other.before,
        proposed_at_ms=min(one.proposed_at_ms, other.proposed_at_ms),
        committed_at_ms=min(one.committed_at_ms, other.committed_at_ms),
        detected_at_ms=_least(one.detected_at_ms, other.detected_at_ms),
        advertised_at_ms=_greatest(one.advertised_at_ms, other.advertised_at_ms),
        alive_at_ms=_greatest(one.alive_at_ms, other.alive_at_ms),
    )


def rows_of(changes: Sequence[Change], since_ms: int | None = None) -> list[Row]:
    """The rows that changes make, which come in the order of generation and owners, and after `since_ms`."""
    firsts = [
        each for before, each in _pairs(changes) if before is None or before.generation != each.generation
    ]
    rows: list[Row] = []
    from_ms = since_ms or 0
    for number, each in enumerate(firsts):
        before = firsts[number - 1] if number else None
        after = firsts[number + 1] if number + 1 < len(firsts) else None
        before_ms, from_ms = (
            from_ms,
            max(from_ms, each.proposed_at_ms),
        )  # another leader's clock may be behind
        to_ms = None if after is None else max(from_ms, after.proposed_at_ms)
        if before is not None and each.before is not None and each.before != before.owners:
            rows.append(Row("gap", each.generation, each.before, each.reason, before_ms, from_ms))
        times = (each.committed_at_ms, each.detected_at_ms, each.advertised_at_ms, each.alive_at_ms)
        rows.append(Row("interval", each.generation, each.owners, each.reason, from_ms, to_ms, *times))
    rows += [
        Row("overlap", each.generation, each.owners, each.reason, each.proposed_at_ms, None)
        for before, each in _pairs(changes)
        if before is not None and before.generation == each.generation
    ]
    return rows


def difference(before: Iterable[Row], after: Iterable[Row]) -> list[Row]:
    """The rows to tell where others have been told of."""
    old = {row.key: row for row in before}
    new = {row.key: row for row in after}
    changed = [row for key, row in new.items() if old.get(key) != row]
    return changed + [replace(row, withdrawn=True) for key, row in old.items() if key not in new]


def _unsettled(changes: tuple[Change, ...], settled_ms: int) -> tuple[Change, ...]:
    """The changes that may still be corrected, and the last one before them."""
    settled = [number for number, each in enumerate(changes) if each.proposed_at_ms < settled_ms]
    if not settled:
        return changes
    # A generation stays whole, so that a repetition of its second set of owners is known as one.
    last = changes[settled[-1]].generation
    return tuple(each for each in changes if each.generation >= last)


def _pairs(changes: Sequence[Change]) -> Iterator[tuple[Change | None, Change]]:
    before: Change | None = None
    for each in changes:
        yield before, each
        before = each


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _greatest(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
