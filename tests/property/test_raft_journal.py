"""The journal against a naive twin: a list, and its copy at each sync."""

import copy
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.raft.journal import Entry, Journal
from tests.examples import examples

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(max_size=30)),
        st.tuples(st.just("conflict"), st.integers(0, 20)),
        st.tuples(st.just("vote"), st.sampled_from([None, "p1", "p2"])),
        st.tuples(st.just("compact"), st.integers(0, 20)),
        st.tuples(st.just("sync"), st.none()),
        st.tuples(st.just("commit"), st.integers(0, 20)),
    ),
    max_size=40,
)


@dataclass
class Twin:
    entries: list[Entry] = field(default_factory=lambda: [Entry(b"\x01", 1, 0)])
    term: int = 0
    voted_for: str | None = None
    commit_index: int = 1
    compacted: bool = False

    @property
    def base(self) -> tuple[Entry, Entry] | None:
        return (self.entries[0], self.entries[1]) if self.compacted else None


def play(journal: Journal, twin: Twin, operation: str, value: object) -> bool:
    """Run an operation on both. True if the journal on disk equals its state afterwards."""
    last = twin.entries[-1]
    match operation, value:
        case "append", bytes(command):
            journal.add(command, last.index + 1, twin.term)
            twin.entries.append(Entry(command, last.index + 1, twin.term))
        case "conflict", int(offset):
            index = last.index - offset
            if index <= twin.commit_index or index < twin.entries[0].index + 2:
                return False
            twin.term += 1
            journal.setCurrentTerm(twin.term, None)
            journal.add(b"conflict", index, twin.term)
            twin.voted_for = None
            twin.entries = [entry for entry in twin.entries if entry.index < index]
            twin.entries.append(Entry(b"conflict", index, twin.term))
        case "vote", voted_for:
            if voted_for is not None and not isinstance(voted_for, str):
                return False
            twin.term, twin.voted_for = twin.term + 1, voted_for
            journal.setCurrentTerm(twin.term, voted_for)
        case "compact", int(count):
            count = min(count, twin.commit_index - 1 - twin.entries[0].index)
            if count <= 0:
                return False
            journal.deleteEntriesTo(count)
            del twin.entries[:count]
            twin.compacted = True
            return True
        case "sync", None:
            journal.sync()
            return True
        case "commit", int(ahead):
            if ahead == 0 or twin.commit_index == last.index:
                return False
            twin.commit_index = min(twin.commit_index + ahead, last.index)
            journal.setRaftCommitIndex(twin.commit_index)
            return True
    return False


def check(journal: Journal, twin: Twin) -> None:
    assert list(journal[0:]) == twin.entries
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (twin.term, twin.voted_for)
    assert journal.getRaftCommitIndex() == twin.commit_index


@settings(deadline=None, max_examples=examples(150))
@given(operations=OPERATIONS)
def test_a_crash_at_any_point_leaves_what_was_synced_last(operations: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        journal, twin = Journal(path, "p1"), Twin()
        journal.add(*twin.entries[0])
        journal.sync()
        on_disk = copy.deepcopy(twin)
        for operation, value in operations:
            if play(journal, twin, operation, value):
                on_disk = copy.deepcopy(twin)
            check(journal, twin)
        journal._destroy()

        again = Journal(path, "p1", on_disk.base)
        check(again, on_disk)
        again._destroy()


@settings(deadline=None, max_examples=examples(40))
@given(commands=st.lists(st.binary(max_size=20), min_size=1, max_size=5), data=st.data())
def test_a_file_cut_anywhere_holds_a_prefix(commands: list[bytes], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        journal = Journal(path, "p1")
        sizes = [path.stat().st_size]
        for index, command in enumerate(commands, 1):
            journal.add(command, index, 1)
            journal.sync()
            sizes.append(path.stat().st_size)
        journal._destroy()
        length = data.draw(st.integers(sizes[0], sizes[-1]))
        os.truncate(path, length)

        again = Journal(path, "p1")
        whole = sum(size <= length for size in sizes[1:])
        assert [entry.command for entry in again] == commands[:whole]
        again._destroy()
