import errno
import logging
import os
from pathlib import Path
from typing import cast

import pytest

from fleet.core.errors import JournalError
from fleet.raft import files, journal
from fleet.raft.journal import FIRST_FRAME, MARKER, Entry, Journal
from tests import previous_release


def opened(path: Path, base: tuple[Entry, Entry] | None = None) -> Journal:
    return Journal(path, "p1", base)


def entries(subject: Journal) -> list[Entry]:
    return list(cast(list[Entry], subject[0:]))


def filled(path: Path, count: int = 3) -> Journal:
    """A journal with one frame for each entry."""
    subject = opened(path)
    for index in range(1, count + 1):
        subject.add(b"\x00command %d" % index, index, 1)
        subject.sync()
    return subject


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_synced_operations_survive_a_crash(path: Path) -> None:
    subject = filled(path)
    subject.setCurrentTerm(7, "p2")
    subject.sync()
    subject.setRaftCommitIndex(2)

    again = opened(path)  # without closing the first one

    assert entries(again) == [Entry(b"\x00command %d" % index, index, 1) for index in (1, 2, 3)]
    assert (again.getCurrentTerm(), again.getVotedForNodeId(), again.getRaftCommitIndex()) == (7, "p2", 2)


def test_unsynced_operations_are_lost(path: Path) -> None:
    subject = filled(path)
    subject.add(b"\x00more", 4, 1)
    subject.setCurrentTerm(9, "p1")

    again = opened(path)

    assert again.last_index == 3
    assert again.getCurrentTerm() == 0


def test_a_commit_index_waits_for_the_entries_it_covers(path: Path) -> None:
    subject = opened(path)
    subject.add(b"\x00one", 1, 1)
    subject.setRaftCommitIndex(1)
    subject.add(b"\x00two", 2, 1)
    subject.setRaftCommitIndex(2)

    assert opened(path).getRaftCommitIndex() == 2
    assert opened(path).last_index == 2


def test_a_vote_can_be_withdrawn_by_a_later_term(path: Path) -> None:
    subject = opened(path)
    subject.setCurrentTerm(3, "p2")
    subject.setCurrentTerm(4, None)
    subject.sync()

    assert (opened(path).getCurrentTerm(), opened(path).getVotedForNodeId()) == (4, None)


def test_a_tail_cut_at_any_byte_is_trimmed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(path, 2)
    before_bytes = path.stat().st_size
    filled_again = opened(path)
    before_bytes = path.stat().st_size
    filled_again.add(b"\x00the last one", 3, 1)
    filled_again.sync()
    whole = path.read_bytes()

    for length in range(before_bytes, len(whole)):
        path.write_bytes(whole[:length])
        caplog.clear()
        assert opened(path).last_index == 2, length
        # No log line if the file happens to end between two frames.
        assert ("trimmed" in caplog.text) == (length > before_bytes)

    path.write_bytes(whole)
    assert opened(path).last_index == 3


def test_a_tail_of_zeros_is_trimmed(path: Path) -> None:
    filled(path)
    with path.open("ab") as file:
        file.write(bytes(4096))

    assert opened(path).last_index == 3
    assert opened(path).last_index == 3, "the file is clean after it was opened once"


def test_trimmed_journal_continues_at_its_end(path: Path) -> None:
    filled(path)
    path.write_bytes(path.read_bytes()[:-3])
    subject = opened(path)
    subject.add(b"\x00another", 3, 2)
    subject.sync()

    assert entries(opened(path))[-1] == Entry(b"\x00another", 3, 2)


def test_corruption_in_the_middle_is_refused_wherever_it_is(path: Path) -> None:
    filled(path)
    whole = path.read_bytes()
    last_frame = whole.rindex(MARKER)

    for offset in range(FIRST_FRAME, last_frame):
        path.write_bytes(whole[:offset] + bytes((whole[offset] ^ 0x55,)) + whole[offset + 1 :])
        with pytest.raises(JournalError, match=r"corrupt at offset \d+.*fleet journal reset") as caught:
            opened(path)
        assert str(path) in str(caught.value)


def test_a_file_that_is_no_journal_is_refused(path: Path) -> None:
    path.write_bytes(b"something else entirely, of some length")
    with pytest.raises(JournalError, match="not a Raft journal"):
        opened(path)
    assert path.read_bytes().startswith(b"something else"), "and is not changed"


def test_a_damaged_commit_index_costs_the_commit_index_only(path: Path) -> None:
    subject = filled(path)
    subject.setRaftCommitIndex(3)
    data = bytearray(path.read_bytes())
    data[12] ^= 0xFF
    path.write_bytes(data)

    again = opened(path)

    assert again.getRaftCommitIndex() == 1
    assert again.last_index == 3


@pytest.mark.parametrize("left_bytes", [0, 1, 20])
def test_a_journal_that_ends_before_its_commit_index_is_refused(path: Path, left_bytes: int) -> None:
    """Found: a journal cut off between two frames, or in a committed one, was taken for a torn write, and the
    member voted without entries that it had acknowledged.
    """
    subject = filled(path)
    subject.setRaftCommitIndex(3)
    whole = path.read_bytes()
    cut = whole[: whole.rindex(MARKER) + left_bytes]
    path.write_bytes(cut)

    with pytest.raises(
        JournalError, match=r"truncated: entries up to 3 .* ends at entry 2.*fleet journal reset"
    ):
        opened(path)
    assert path.read_bytes() == cut, "and is not changed"


def test_the_journal_of_another_member_is_refused(path: Path) -> None:
    filled(path)
    with pytest.raises(JournalError, match="belongs to member p1, but this is member p2"):
        Journal(path, "p2")


def test_equal_entry_and_its_successors_are_kept(path: Path) -> None:
    subject = filled(path)
    subject.add(b"\x00command 2", 2, 1)

    assert subject.last_index == 3


def test_conflicting_entry_and_its_successors_are_removed(path: Path) -> None:
    subject = filled(path, 4)
    subject.add(b"\x00other", 2, 2)
    subject.sync()

    expected = [Entry(b"\x00command 1", 1, 1), Entry(b"\x00other", 2, 2)]
    assert entries(subject) == expected
    assert entries(opened(path)) == expected


def test_a_committed_entry_is_not_replaced(path: Path) -> None:
    subject = filled(path)
    subject.setRaftCommitIndex(2)
    with pytest.raises(JournalError, match="entry 2 of the leader differs from the committed"):
        subject.add(b"\x00other", 2, 2)
    assert subject.last_index == 3


def test_a_gap_is_refused(path: Path) -> None:
    subject = filled(path)
    with pytest.raises(JournalError, match="entry 5 does not follow entry 3"):
        subject.add(b"\x00other", 5, 2)


def test_compaction_keeps_term_vote_index_and_unsynced(path: Path) -> None:
    subject = filled(path, 5)
    subject.setCurrentTerm(4, "p3")
    subject.setRaftCommitIndex(5)
    subject.add(b"\x00unsynced", 6, 4)
    size = path.stat().st_size
    subject.deleteEntriesTo(3)

    again = opened(path, (Entry(b"\x00command 4", 4, 1), Entry(b"\x00command 5", 5, 1)))

    assert path.stat().st_size < size
    assert [entry.index for entry in again] == [4, 5, 6]
    assert (again.getCurrentTerm(), again.getVotedForNodeId(), again.getRaftCommitIndex()) == (4, "p3", 5)


def test_compaction_interrupted_before_rename_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = filled(path, 5)
    before = path.read_bytes()

    def die(*_arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "rename", die)
    with pytest.raises(JournalError, match="cannot be written: Input/output error"):
        subject.deleteEntriesTo(3)
    monkeypatch.undo()

    assert path.read_bytes() == before
    assert opened(path).last_index == 5


def test_a_leftover_of_an_interrupted_compaction_is_ignored(path: Path) -> None:
    filled(path)
    path.with_name("journal.new").write_bytes(b"half")
    assert opened(path).last_index == 3


def test_full_disk_raises_and_leaves_a_readable_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = filled(path)

    def half(descriptor: int, data: bytes) -> None:
        files.write_all(descriptor, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(journal, "write_all", half)
    subject.add(b"\x00more", 4, 1)
    with pytest.raises(JournalError, match="cannot be written: No space left on device"):
        subject.sync()
    monkeypatch.undo()

    assert opened(path).last_index == 3


def test_a_flush_that_fails_is_a_journal_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = filled(path)
    subject.setCurrentTerm(5, "p1")

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(JournalError, match="Input/output error"):
        subject.sync()


class TestWithASnapshot:
    BASE = (Entry(b"\x00command 3", 3, 1), Entry(b"\x00command 4", 4, 1))

    def test_crash_between_snapshot_and_compaction_keeps_entries(self, path: Path) -> None:
        filled(path, 6)

        again = opened(path, self.BASE)

        assert [entry.index for entry in again] == [3, 4, 5, 6]
        assert (again[0], again[1]) == self.BASE
        assert again.getRaftCommitIndex() == 4, "what the snapshot covers is committed"

    def test_crash_after_received_snapshot_replaces_short_log(self, path: Path) -> None:
        filled(path, 2).setCurrentTerm(5, "p2")

        assert entries(opened(path, self.BASE)) == list(self.BASE)

    def test_log_that_conflicts_with_the_snapshot_is_dropped(self, path: Path) -> None:
        filled(path, 3).add(b"\x00other", 4, 3)
        subject = opened(path)
        for index in (4, 5):
            subject.add(b"\x00other", index, 3)
        subject.sync()

        assert entries(opened(path, self.BASE)) == list(self.BASE)

    def test_log_without_its_base_snapshot_is_refused(self, path: Path) -> None:
        filled(path, 6)
        opened(path, self.BASE)
        with pytest.raises(JournalError, match="begins at entry 3, and no snapshot"):
            opened(path)

    def test_a_snapshot_older_than_the_log_is_refused(self, path: Path) -> None:
        filled(path, 6)
        opened(path, self.BASE)
        older = (Entry(b"\x00command 1", 1, 1), Entry(b"\x00command 2", 2, 1))
        with pytest.raises(JournalError, match="begins at entry 3, but the snapshot ends at 2"):
            opened(path, older)


def test_nothing_is_logged_for_a_clean_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(path)
    with caplog.at_level(logging.WARNING):
        opened(path)
    assert caplog.text == ""


class TestIdentity:
    def test_journal_has_an_id_and_counts_its_starts(self, path: Path) -> None:
        first = filled(path).standing
        second = opened(path).standing
        assert first is not None
        assert second is not None
        assert second.identity == first.identity.at_next_start()
        assert (first.identity.starts, first.identity.has_caught_up) == (1, False)
        assert not first.identity.was_erased
        assert first.life != second.life
        assert (second.last_term, second.last_index, second.term) == (1, 3, 0)

    def test_identity_is_on_disk_as_soon_as_the_journal_is_open(self, path: Path) -> None:
        subject = opened(path)
        assert subject.identity == Journal(path, "p1", writable=False).identity

    def test_commit_index_and_rewriting_leave_the_identity_alone(self, path: Path) -> None:
        subject = filled(path)
        subject.setRaftCommitIndex(2)
        subject.deleteEntriesTo(0)
        read = Journal(path, "p1", writable=False)
        assert (read.identity, read.getRaftCommitIndex()) == (subject.identity, 2)

    def test_reading_alone_counts_no_start(self, path: Path) -> None:
        filled(path)
        data = path.read_bytes()
        for _ in range(2):
            Journal(path, "p1", writable=False)
        assert path.read_bytes() == data

    def test_renewed_identity_says_that_everything_was_fetched(self, path: Path) -> None:
        subject = filled(path)
        before = subject.identity
        subject.add(b"\x00more", 4, 1)
        subject.renew_identity()
        again = opened(path)
        assert before is not None
        assert again.identity is not None
        assert again.identity.journal_id != before.journal_id
        assert (again.identity.starts, again.identity.has_caught_up) == (2, True)
        assert again.last_index == 4

    @pytest.mark.parametrize("spare", [bytes(12), b"\x01" * 12], ids=["earlier release", "damaged"])
    def test_journal_without_an_id_gets_one(self, path: Path, spare: bytes) -> None:
        before = filled(path).identity
        data = bytearray(path.read_bytes())
        data[20:32] = spare
        path.write_bytes(data)
        again = opened(path)
        assert again.is_of_earlier_release == (spare == bytes(12))
        assert again.identity is not None
        assert again.identity.was_erased == again.is_of_earlier_release
        assert before is not None
        assert again.identity.journal_id != before.journal_id
        assert len(entries(again)) == 3

    def test_journal_of_the_previous_release_is_read_and_the_reverse(self, path: Path) -> None:
        old = f"""
from pathlib import Path
from fleet.raft.journal import Journal
journal = Journal(Path({str(path)!r}), "p1")
print(len(journal), journal.getCurrentTerm(), journal.getVotedForNodeId(), journal.getRaftCommitIndex())
if len(journal) == 0:
    journal.setCurrentTerm(7, "p2")
    journal.add(b"\\x00command", 1, 1)
    journal.sync()
"""
        assert previous_release.run(old) == b"0 0 None 1\n"
        subject = opened(path)
        assert subject.is_of_earlier_release
        assert (len(entries(subject)), subject.getCurrentTerm(), subject.getVotedForNodeId()) == (1, 7, "p2")
        subject.add(b"\x00command", 2, 1)
        subject.sync()
        subject.setRaftCommitIndex(2)
        assert previous_release.run(old) == b"2 7 p2 2\n"
        subject = opened(path)
        assert subject.is_of_earlier_release, "it has zeroed the unknown bytes"
        again = opened(path)
        assert again.identity is not None
        assert again.identity.was_erased, "the other voters may learn of it only at a later start"
