"""Makes intervals of ownership from ownership events, in any order and number. Pure.

Every member reports every change. So each change comes several times, late, and in any order across members.
Reports of the same change are merged by minimum and maximum, which gives the same result in any order. The
generation, assigned by Raft, is the order of the changes.

A late event may correct earlier rows. So the output is a sequence of differences. A row that replaces an
earlier row with the same `key` has a greater revision (`fleet.pipeline.timeline_job` adds it). A row that no
longer holds is withdrawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

RowKind: TypeAlias = Literal["interval", "gap", "overlap", "late"]
Owners: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an identity's owners, as reported by one or more members. Times are Unix time.

    Args:
        generation: generation of the change.
        owners: owners after the change.
        before: owners before the change; None if no reporting member knew them.
        reason: reason of the change, such as "takeover".
        proposed_at_ms: when the leader proposed the change.
        committed_at_ms: when the first member learned of the change.
        detected_at_ms: when the first member detected the failure; None if the change is no takeover.
        advertised_at_ms: when the last reporting member bypassed the old owner.
        alive_at_ms: last time at which a member knew that the old owner was alive.
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
    """One row of the timeline of an identity.

    Args:
        what: "interval": `owners` owned the identity. "gap": no member reported one or more changes before
            this generation; `owners` are the owners at the end of the gap. "overlap": a second set of owners
            in the same generation. "late": a change reported after later changes were settled; either a
            repetition or part of a gap.
        from_ms, to_ms: times on the clocks of the leaders that proposed the changes; `to_ms` is None for the
            current interval.
        withdrawn: whether an earlier row with this key no longer holds.
    """

    what: RowKind
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
    def key(self) -> tuple[RowKind, int, Owners]:
        """The key of the row: of two rows with the same key, the later row holds."""
        return (self.what, self.generation, self.owners if self.what == "overlap" else ())


@dataclass(frozen=True, slots=True)
class OwnershipHistory:
    """The changes of one identity that may still be corrected, and the change before them, by generation.

    Args:
        changes: the changes, ordered by generation and owners.
        since_ms: start of the first change's interval; None if the job has forgotten no earlier change.
    """

    changes: tuple[Change, ...] = ()
    since_ms: int | None = None

    def learn(self, reported: Iterable[Change], settled_ms: int) -> tuple[OwnershipHistory, list[Row]]:
        """Add reported changes.

        Args:
            reported: changes in any order.
            settled_ms: changes proposed before this time are forgotten, except for the last of them.
        Returns: the new history, and the rows that are new or different.
        """
        late: list[Row] = []
        merged = {(each.generation, each.owners): each for each in self.changes}
        for each in reported:
            place = (each.generation, each.owners)
            if self.since_ms is not None and each.generation < self.changes[0].generation:
                late.append(Row("late", each.generation, each.owners, each.reason, each.proposed_at_ms, None))
            else:
                merged[place] = merge(merged[place], each) if place in merged else each
        changes = tuple(merged[place] for place in sorted(merged))
        rows = rows_of(changes, self.since_ms)
        remaining, since_ms = _open_changes(changes, settled_ms), self.since_ms
        if len(remaining) < len(changes):
            key = ("interval", remaining[0].generation, ())
            since_ms = next(row.from_ms for row in rows if row.key == key)
        return OwnershipHistory(remaining, since_ms), [
            *late,
            *difference(rows_of(self.changes, self.since_ms), rows),
        ]


def merge(one: Change, other: Change) -> Change:
    """Merge two reports of the same change."""
    return replace(
        one,
        before=one.before if other.before is None else other.before,
        proposed_at_ms=min(one.proposed_at_ms, other.proposed_at_ms),
        committed_at_ms=min(one.committed_at_ms, other.committed_at_ms),
        detected_at_ms=_min_known(one.detected_at_ms, other.detected_at_ms),
        advertised_at_ms=_max_known(one.advertised_at_ms, other.advertised_at_ms),
        alive_at_ms=_max_known(one.alive_at_ms, other.alive_at_ms),
    )


def rows_of(changes: Sequence[Change], since_ms: int | None = None) -> list[Row]:
    """Return the rows of changes.

    Args:
        changes: changes ordered by generation and owners.
        since_ms: start of the first change's interval; None if there is no earlier change.
    """
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
            max(from_ms, each.proposed_at_ms),  # another leader's clock may be behind
        )
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
    """Return the new and changed rows of `after`, and withdraw the rows of `before` that are not in it."""
    old = {row.key: row for row in before}
    new = {row.key: row for row in after}
    changed = [row for key, row in new.items() if old.get(key) != row]
    return changed + [replace(row, withdrawn=True) for key, row in old.items() if key not in new]


def _open_changes(changes: tuple[Change, ...], settled_ms: int) -> tuple[Change, ...]:
    """Return the changes that may still be corrected, and the last change before them."""
    settled = [number for number, each in enumerate(changes) if each.proposed_at_ms < settled_ms]
    if not settled:
        return changes
    # Keep all changes of a generation, to recognize a repetition of its second set of owners.
    last = changes[settled[-1]].generation
    return tuple(each for each in changes if each.generation >= last)


def _pairs(changes: Sequence[Change]) -> Iterator[tuple[Change | None, Change]]:
    before: Change | None = None
    for each in changes:
        yield before, each
        before = each


def _min_known(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _max_known(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
