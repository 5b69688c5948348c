"""Whether votes count, from the memory of each voter's journal: one test for each way to forget."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from pathlib import Path

import pytest

import fleet.raft.memory as memory_module
from fleet.core.errors import JournalError
from fleet.raft.identity import Identity, Standing
from fleet.raft.memory import FILE, VoterMemory

FIRST = Standing(Identity("aaaaaaaaaa", 3), "life-3", 5, "p1", 4, 20)
"""The last standing of p2, which has voted for p1 in term 5."""


def restarted(before: Standing = FIRST, **changes: object) -> Standing:
    """The same journal at its next start."""
    named = before.identity.at_next_start()
    return replace(before, identity=named, life=f"life-{named.starts}", **changes)  # type: ignore[arg-type]


def new_journal(journal_id: str = "bbbbbbbbbb", *, has_caught_up: bool = False) -> Standing:
    return Standing(Identity(journal_id, 1, has_caught_up), "life-new", 0, None, 0, 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE


@pytest.fixture
def memory(path: Path) -> VoterMemory:
    """The memory of p1, which has a standing of p2."""
    made = VoterMemory(path, ["p2", "p3"])
    assert made.judge("p2", FIRST) == ""
    return made


def test_first_meeting_is_trusted(memory: VoterMemory) -> None:
    """After an upgrade, or in a new fleet: there is nothing to compare."""
    assert memory.judge("p3", new_journal()) == ""
    assert memory.newest("p3") == new_journal()


def test_ordinary_restart_is_trusted(memory: VoterMemory) -> None:
    assert memory.judge("p2", restarted()) == ""
    assert memory.judge("p2", restarted(restarted(), term=6, voted_for=None, last_index=25)) == ""


@pytest.mark.parametrize(
    ("standing", "why"),
    [
        (new_journal(), "its journal is new"),
        (
            replace(FIRST, identity=Identity("aaaaaaaaaa", 2), life="x"),
            "at start 2, but start 3 was seen before",
        ),
        (replace(FIRST, life="x"), "two journals exist at start 3"),
        (restarted(term=4, voted_for="p3"), "term 4, but was in term 5"),
        (restarted(voted_for=None), "its vote for 'p1' in term 5 is missing"),
        (restarted(voted_for="p3"), "its vote for 'p1' in term 5 is missing"),
        (restarted(last_index=19), "it ends at entry 19 of term 4"),
        (restarted(last_term=3, last_index=30), "it ends at entry 30 of term 3"),
    ],
)
def test_voter_that_has_forgotten_is_not_trusted(memory: VoterMemory, standing: Standing, why: str) -> None:
    assert why in memory.judge("p2", standing)
    assert why in memory.judge("p2", standing), "a second statement gets the same answer"
    assert memory.newest("p2") == FIRST, "the refused standing is not remembered"


def test_caught_up_journal_is_trusted_but_not_former_ones(memory: VoterMemory) -> None:
    caught_up = new_journal(has_caught_up=True)
    assert memory.judge("p2", caught_up) == ""
    assert "an earlier journal of this voter" in memory.judge("p2", restarted())
    again = new_journal("cccccccccc", has_caught_up=True)
    assert memory.judge("p2", again) == ""
    assert "an earlier journal of this voter" in memory.judge("p2", restarted(caught_up))
    assert memory.judge("p2", restarted(again)) == ""


def test_shrinking_log_within_one_life_is_trusted(memory: VoterMemory) -> None:
    """A leader replaces entries that were never committed. Earlier promises are still remembered."""
    assert memory.judge("p2", replace(FIRST, last_index=18)) == ""
    assert memory.newest("p2") == FIRST


def test_promises_within_one_life_add_up(memory: VoterMemory) -> None:
    assert memory.judge("p2", replace(FIRST, term=6, voted_for=None)) == ""
    assert memory.judge("p2", replace(FIRST, term=6, voted_for="p3", last_term=6, last_index=21)) == ""
    assert memory.newest("p2") == replace(FIRST, term=6, voted_for="p3", last_term=6, last_index=21)


def test_earlier_release_is_trusted_and_gets_a_new_id_later(memory: VoterMemory) -> None:
    """The earlier release zeroes the unknown id, but an older copy is still a copy."""
    assert memory.judge("p2", None) == ""
    assert memory.newest("p2") is None
    assert "an earlier journal of this voter" in memory.judge("p2", restarted())
    assert memory.judge("p2", new_journal()) == ""
    assert "its journal is new" in memory.judge("p2", new_journal("cccccccccc"))


def erased(starts: int = 1, **changes: object) -> Standing:
    """The same journal with a new id, because an earlier release has erased its former id."""
    named = Identity("eeeeeeeeee", starts, was_erased=True)
    return replace(FIRST, identity=named, life="life-new", **changes)  # type: ignore[arg-type]


def test_journal_erased_while_its_peer_was_away_is_trusted(memory: VoterMemory, path: Path) -> None:
    """If the one absent voter refused it, all others would rejoin at once, and none could complete."""
    memory.flush(0.0)
    for standing in (erased(), erased(2, term=7, voted_for=None, last_term=7, last_index=3)):
        again = VoterMemory(path, ["p2"])
        assert again.judge("p2", standing) == ""
        assert again.newest("p2") == standing
        assert "an earlier journal of this voter" in again.judge("p2", restarted())
        assert "its journal is new" in again.judge("p2", new_journal())


@pytest.mark.parametrize(
    ("standing", "why"),
    [
        (erased(term=4, voted_for="p3"), "term 4, but was in term 5"),
        (erased(voted_for=None), "its vote for 'p1' in term 5 is missing"),
        (erased(last_index=19), "it ends at entry 19 of term 4"),
    ],
)
def test_erased_journal_that_lacks_a_promise_is_not_trusted(
    memory: VoterMemory, standing: Standing, why: str
) -> None:
    """A copy that was created under the earlier release."""
    assert why in memory.judge("p2", standing)
    assert memory.newest("p2") == FIRST


def test_memory_outlives_a_restart(memory: VoterMemory, path: Path) -> None:
    memory.judge("p2", new_journal(has_caught_up=True))
    memory.judge("p3", None)
    memory.flush(0.0)
    again = VoterMemory(path, ["p2", "p3"])
    assert again.newest("p2") == new_journal(has_caught_up=True)
    assert "an earlier journal of this voter" in again.judge("p2", FIRST)


def test_new_life_is_saved_at_once_and_progress_soon(memory: VoterMemory, path: Path) -> None:
    def saved() -> Standing | None:
        return VoterMemory(path, ["p2"]).newest("p2")

    memory.flush(0.0)
    assert saved() == FIRST
    further = replace(FIRST, last_index=21)
    memory.judge("p2", further)
    memory.flush(0.5)
    assert saved() == FIRST
    memory.flush(1.5)
    assert saved() == further
    memory.judge("p2", restarted(further))
    memory.flush(1.6)
    assert saved() == restarted(further)
    written = path.stat().st_ino
    memory.judge("p2", restarted(further))
    memory.flush(9.9)
    assert path.stat().st_ino == written, "unchanged memory is not written"


def test_memory_of_a_stranger_is_dropped(memory: VoterMemory, path: Path) -> None:
    memory.flush(0.0)
    assert VoterMemory(path, ["p3"]).newest("p2") is None


def test_memory_before_an_earlier_release_is_not_used(memory: VoterMemory, path: Path) -> None:
    memory.flush(0.0)
    assert VoterMemory(path, ["p2"], is_outdated=True).newest("p2") is None


@pytest.mark.parametrize("damage", [b"", b"FLEETRM1", b"x" * 200, None])
def test_damaged_memory_is_forgotten_with_a_warning(
    memory: VoterMemory, path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    memory.flush(0.0)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\xff" if damage is None else damage)
    with caplog.at_level(logging.WARNING):
        again = VoterMemory(path, ["p2"])
    assert again.newest("p2") is None
    assert str(path) in caplog.text
    assert again.judge("p2", new_journal()) == ""


def test_full_disk_is_an_error_of_the_journal(memory: VoterMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory_module, "replace", refuse)
    with pytest.raises(JournalError, match="No space left"):
        memory.flush(0.0)
