"""When a reset voter may vote again, and how it behaves until then."""

import time
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest
from pysyncobj.node import Node

from fleet.raft.rejoin import Rejoin, max_forgetful_voters, read_mark, remove_mark, write_mark
from tests.unit.raft.test_transport import APPEND, Follower, Harness, snapshot_of

THREE = ("p2", "p3")
FIVE = ("p2", "p3", "p4", "p5")


def answer(
    rejoin: Rejoin, peer: str, term: int, end: int = 0, leads: bool = False, rejoining: bool = False
) -> None:
    message = {
        "reset": rejoin.reset_id,
        "term": term,
        "last_log_index": end,
        "leads": leads,
        "rejoining": rejoining,
    }
    rejoin.record_answer(peer, message)


def test_rejoin_completes_with_the_log_of_the_newest_leader() -> None:
    rejoin = Rejoin("one", THREE)
    answer(rejoin, "p2", 7, end=30, leads=True)
    answer(rejoin, "p3", 7)
    rejoin.record_log("p2", 7, 29)
    assert not rejoin.is_complete(7), "one entry is missing"
    rejoin.record_log("p2", 7, 30)
    assert rejoin.is_complete(7)
    assert not rejoin.is_complete(8), "another leader may have replaced them since"


def test_every_other_voter_must_have_answered() -> None:
    """A silent voter may be a candidate that this member has voted for."""
    rejoin = Rejoin("one", FIVE)
    answer(rejoin, "p2", 7, end=30, leads=True)
    rejoin.record_log("p2", 7, 30)
    for peer in ("p3", "p4"):
        answer(rejoin, peer, 7)
    assert not rejoin.is_complete(7)
    answer(rejoin, "p5", 6)
    assert rejoin.is_complete(7)


def test_leader_with_an_older_term_does_not_end_a_rejoin() -> None:
    """The leader may have been deposed with the help of this member, which has forgotten its vote."""
    rejoin = Rejoin("one", FIVE)
    answer(rejoin, "p2", 7, end=30, leads=True)
    for peer in ("p3", "p4"):
        answer(rejoin, peer, 7)
    answer(rejoin, "p5", 9)
    rejoin.record_log("p2", 7, 30)
    assert not rejoin.is_complete(7)
    answer(rejoin, "p5", 9, end=25, leads=True)
    rejoin.record_log("p5", 9, 25)
    assert rejoin.is_complete(9)


def test_forgetful_voters_are_limited_to_tolerated_losses() -> None:
    assert [max_forgetful_voters(voters) for voters in (1, 2, 3, 4, 5, 7)] == [0, 0, 1, 1, 2, 3]
    rejoin = Rejoin("one", FIVE)
    answer(rejoin, "p2", 7, end=30, leads=True)
    rejoin.record_log("p2", 7, 30)
    answer(rejoin, "p3", 7)
    answer(rejoin, "p4", 0, rejoining=True)
    answer(rejoin, "p5", 0, rejoining=True)
    assert not rejoin.is_complete(7), "three of five"
    answer(rejoin, "p5", 7)
    assert rejoin.is_complete(7), "two of five"


def test_answers_to_an_earlier_reset_are_not_used() -> None:
    rejoin = Rejoin("two", THREE)
    rejoin.record_answer(
        "p2", {"reset": "one", "term": 1, "last_log_index": 0, "leads": False, "rejoining": False}
    )
    assert not rejoin.terms, "answers of an earlier reset do not count"


def test_the_mark_outlives_a_restart(tmp_path: Path) -> None:
    assert read_mark(tmp_path) is None
    write_mark(tmp_path, "abc")
    assert read_mark(tmp_path) == "abc"
    remove_mark(tmp_path)
    assert read_mark(tmp_path) is None


class TestUntilThen:
    @pytest.fixture
    def harness(self) -> Harness:
        harness = Harness()
        harness.transport.begin_rejoin("one")
        return harness

    def test_rejoining_voter_gives_no_vote(self, harness: Harness) -> None:
        vote = {"type": "request_vote", "term": 9, "last_log_index": 99, "last_log_term": 8}
        assert harness.receive("p2", **vote) == []

    def test_acknowledgement_of_a_rejoining_voter_does_not_count(self, harness: Harness) -> None:
        """A leader that was deposed with the forgotten vote of this member could commit with its help."""
        harness.transport.send(
            Node("p2"), {"type": "next_node_idx", "next_node_idx": 9, "reset": False, "success": True}
        )
        harness.transport.flush(lambda: None)
        ((_, sent),) = harness.sent
        assert (sent["success"], sent["reset"], sent["next_node_idx"]) == (False, True, 9)

    def test_a_leader_of_a_lesser_term_learns_of_the_newer_one(self, harness: Harness) -> None:
        """Found by the simulation: a former candidate was marked, and waited for its own term forever."""
        assert harness.receive("p2", **{**APPEND, "term": 2, "prevLogTerm": 2, "entries": ()}) == []
        harness.transport.flush(lambda: None)
        candidacy = {"type": "request_vote", "term": 3, "last_log_index": 0, "last_log_term": 0}
        assert harness.sent == [("p2", candidacy)]

    def test_rejoining_voter_questions_all_voters(self, harness: Harness) -> None:
        harness.receive("p2", **APPEND)
        harness.transport.flush(lambda: None)
        assert harness.sent == [(peer, {"type": "rejoin", "reset": "one"}) for peer in ("p2", "p3")]

    def test_rejoining_voter_does_not_count_for_a_quorum(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A leader with only rejoining voters would report a quorum and commit nothing."""
        harness = Harness()
        assert harness.transport.linked_voters == 2
        harness.receive("p3", type="rejoin", reset="one")
        assert harness.transport.linked_voters == 1
        now_s = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now_s + 1.5)
        assert harness.transport.linked_voters == 2, "without further questions the voter counts again"

    def test_rejoining_voter_reports_that_it_has_forgotten(self, harness: Harness) -> None:
        harness.receive("p3", type="rejoin", reset="two")
        harness.transport.flush(lambda: None)
        expected = {
            "type": "rejoin_answer",
            "reset": "two",
            "term": 3,
            "last_log_index": 8,
            "leads": False,
            "rejoining": True,
        }
        assert harness.sent == [("p3", expected)]

    def test_rejoining_voter_does_not_become_candidate(self, tmp_path: Path) -> None:
        write_mark_in(tmp_path / "raft")
        follower = Follower(tmp_path / "raft")
        follower.replica.log._SyncObj__raftElectionDeadline = 0.0
        follower.replica.tick()
        assert follower.replica.log.role == "follower"
        follower.replica.close()

    def test_leader_brings_a_rejoining_voter_up_to_date(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        write_mark_in(tmp_path / "raft")
        follower = Follower(tmp_path / "raft")
        follower.replica.transport.link_up("p3")
        follower.snapshot(snapshot_of("a", "b", term=2), term=2, commit=3)
        reply = {"type": "rejoin_answer", "reset": "one", "leads": True, "rejoining": False}
        follower.receive(**reply, term=2, last_log_index=4)
        follower.replica.transport.receive(
            "p3", _packed(**{**reply, "leads": False}, term=2, last_log_index=3)
        )
        follower.append((3, 2), ("c", 4, 2), term=2, commit=3)

        assert read_mark(tmp_path / "raft") is None
        assert "votes again" in caplog.text
        (answer,) = follower.append((4, 2), term=2, commit=4)
        assert answer["success"]
        follower.replica.close()


def write_mark_in(folder: Path) -> None:
    folder.mkdir(parents=True)
    write_mark(folder, "one")


def _packed(**message: object) -> bytes:
    packed: bytes = msgpack.packb(message)
    return packed
