"""The whole of Raft as used by control: real nodes, real links on loopback, real files."""

import asyncio
import contextlib
import errno
import itertools
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from socket import create_server, socket

import pytest
import pytest_asyncio

import fleet.raft.journal as journal_module
import fleet.raft_state as raft_state
from fleet.control.links import Kind, PeerLinks
from fleet.core import model
from fleet.core.errors import CommandTimeout, JournalError, NoQuorum, RaftError
from fleet.core.model import Broker, Endpoint, FleetState, Ownership, ProxyId
from fleet.core.replication import Applied, RaftStatus
from fleet.core.state import BrokersSeen, Command, MemberUp, Outcome, OwnershipSet, stamp
from fleet.raft import files, guards
from fleet.raft_state import RaftNode, RaftSettings, wait_s
from fleet.runtime.outbound import LocalFailure

LIMIT_S = 20.0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - conditions are of all kinds
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("due_in_s", "waits_s"),
    [(0.004, 0.004), (0.02, 0.02), (0.3, 0.025), (float("inf"), 0.025), (0.0, 0.01), (-3.0, 0.01)],
)
def test_wait_ends_when_an_action_is_due_or_after_a_rest(due_in_s: float, waits_s: float) -> None:
    assert wait_s(due_in_s, tick_s=0.01, rest_s=0.025) == waits_s


class Member:
    """The Raft and the links of one member, combined as in control."""

    def __init__(self, fleet: "Fleet", me: ProxyId) -> None:
        loop = asyncio.get_running_loop()
        self.me = me
        self.changes: list[tuple[FleetState, RaftStatus, tuple[Applied, ...]]] = []
        self.threads: set[str] = set()

        def send(peer: ProxyId, payload: bytes) -> None:
            loop.call_soon_threadsafe(self.links.send, peer, Kind.RAFT, payload)

        settings = RaftSettings(
            me, fleet.voters, fleet.observers, fleet.folder / me, compact_entries=fleet.compact_entries
        )
        self.node = RaftNode(settings, send, self._changed)
        self.links = PeerLinks(me, fleet.next_incarnation(), "demo", fleet.endpoints, fleet.listen(me), self)

    def _changed(self, state: FleetState, status: RaftStatus, applied: tuple[Applied, ...]) -> None:
        self.threads.add(threading.current_thread().name)
        self.changes.append((state, status, applied))

    def on_up(self, peer: ProxyId) -> None:
        self.node.link_up(peer)

    def on_down(self, peer: ProxyId, _reason: str) -> None:
        self.node.link_down(peer)

    def on_broken(self, error: BaseException) -> None:
        raise error

    def on_failed_here(self, peer: ProxyId, error: LocalFailure) -> None:
        raise error

    def on_frame(self, peer: ProxyId, _kind: Kind, payload: bytes) -> None:
        self.node.receive(peer, payload)

    @property
    def applied(self) -> list[Applied]:
        return [one for _, _, applied in self.changes for one in applied]

    async def commit(self, command: Command, timeout_s: float = LIMIT_S) -> Outcome:
        return await asyncio.wrap_future(self.node.propose(command, timeout_s))

    async def stop(self) -> None:
        await self.links.stop()
        await asyncio.to_thread(self.node.stop)


class Fleet:
    """Members in one process; each keeps its folder and its port when it stops."""

    def __init__(self, folder: Path, voters: int = 3, observers: int = 0, compact_entries: int = 500) -> None:
        ids = tuple(f"p{number + 1}" for number in range(voters + observers))
        self.folder = folder
        self.voters, self.observers = ids[:voters], ids[voters:]
        self.compact_entries = compact_entries
        self.members: dict[ProxyId, Member] = {}
        self._sockets = {me: create_server(("127.0.0.1", 0)) for me in ids}
        self.endpoints = {me: Endpoint("127.0.0.1", s.getsockname()[1]) for me, s in self._sockets.items()}
        self._incarnations = itertools.count(1)
        self._commands = itertools.count(1)

    def listen(self, me: ProxyId) -> socket:
        return self._sockets[me].dup()

    def next_incarnation(self) -> int:
        return next(self._incarnations)

    async def start(self, *ids: ProxyId) -> None:
        for me in ids or self.endpoints:
            member = self.members[me] = Member(self, me)
            member.node.start()
            await member.links.start()

    async def stop(self, *ids: ProxyId) -> None:
        for me in ids or tuple(self.members):
            await self.members.pop(me).stop()

    async def close(self) -> None:
        await self.stop()
        for listen in self._sockets.values():
            listen.close()

    @property
    def leader(self) -> Member | None:
        leaders = [
            m for m in self.members.values() if m.node.status.role == "leader" and m.node.status.has_quorum
        ]
        return leaders[0] if len(leaders) == 1 else None

    async def settled(self) -> Member:
        """Wait until all agree on a leader and have the owner that the tests use. Returns the leader."""

        def agreed() -> bool:
            statuses = [member.node.status for member in self.members.values()]
            leaders = {status.leader for status in statuses}
            return len(leaders) == 1 and all(s.has_quorum for s in statuses) and self.leader is not None

        await until(agreed)
        leader = self.leader
        assert leader is not None
        if "p1" not in leader.node.state.members:
            await leader.commit(stamp(MemberUp(model.Member("p1")), f"command-{next(self._commands)}", 1))
            await self.equal()
            await until(lambda: all(member.applied for member in self.members.values()))
            for member in self.members.values():
                member.changes.clear()
        return leader

    async def other(self) -> Member:
        leader = await self.settled()
        return next(member for member in self.members.values() if member is not leader)

    def seen(self, broker_id: int) -> Command:
        """A command that always takes effect."""
        return stamp(BrokersSeen((Broker(broker_id, "kafka", 9092),)), f"command-{next(self._commands)}", 1)

    def own(self, generation: int, broker_id: int) -> Command:
        """A command that takes effect only at ``generation``, and creates the next generation."""
        changes = {broker_id: Ownership((self.voters[0],))}
        return stamp(OwnershipSet(generation, changes), f"command-{next(self._commands)}", 1)

    async def equal(self) -> FleetState:
        """Wait until all members have the same state. Returns that state."""

        def states() -> list[FleetState]:
            return [member.node.state for member in self.members.values()]

        await until(lambda: all(state == states()[0] for state in states()))
        return states()[0]


@pytest_asyncio.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    await made.close()


class TestForgetting:
    """A voter whose folder was emptied or restored from a copy, without a mark."""

    @pytest.mark.parametrize("how", ["emptied", "restored"])
    async def test_voter_that_has_forgotten_votes_once_it_has_caught_up(
        self, fleet: Fleet, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        await fleet.start()
        leader = await fleet.settled()
        victim, other = (me for me in fleet.voters if me != leader.me)
        await fleet.stop(victim)
        shutil.copytree(fleet.folder / victim, fleet.folder / "copy")
        await fleet.start(victim)
        leader = await fleet.settled()
        for number in range(3):
            await leader.commit(fleet.seen(number))
        await fleet.equal()
        survivor, other = (me for me in fleet.voters if me != victim)
        await until(partial(remembers_all, fleet.members[survivor], fleet.members[victim]))

        await fleet.stop(victim, other)
        shutil.rmtree(fleet.folder / victim)
        if how == "restored":
            (fleet.folder / "copy").rename(fleet.folder / victim)
        await fleet.start(victim)
        await until(lambda: fleet.members[victim].node.status.rejoining)
        await until(lambda: fleet.members[survivor].node.status.distrusted == (victim,))
        with pytest.raises((NoQuorum, CommandTimeout)):
            await fleet.members[survivor].commit(fleet.seen(7), timeout_s=1.0)
        assert not any(member.node.status.has_quorum for member in fleet.members.values())
        assert f"ignoring votes until the voter has caught up: voter={victim}" in caplog.text
        assert f"{survivor} remembers more of this member's journal" in caplog.text

        await fleet.start(other)
        await until(lambda: not fleet.members[victim].node.status.rejoining)
        await fleet.settled()
        await until(lambda: not any(member.node.status.distrusted for member in fleet.members.values()))
        await fleet.stop(other)
        await fleet.settled()
        assert (await fleet.members[victim].commit(fleet.seen(8))).applied

    async def test_voter_that_restarts_is_trusted(self, fleet: Fleet) -> None:
        await fleet.start()
        for me in (*fleet.voters, *fleet.voters):
            await (await fleet.settled()).commit(fleet.seen(1))
            await fleet.stop(me)
            await fleet.start(me)
        await fleet.settled()
        assert not any(member.node.status.rejoining for member in fleet.members.values())
        assert not any(member.node.status.distrusted for member in fleet.members.values())

    async def test_restored_fleet_continues(self, fleet: Fleet, tmp_path: Path) -> None:
        """The memory of the other voters is restored together with the journal."""
        await fleet.start()
        await (await fleet.settled()).commit(fleet.seen(1))
        await fleet.equal()
        await fleet.stop()
        for me in fleet.voters:
            shutil.copytree(fleet.folder / me, tmp_path / "backup" / me)
        await fleet.start()
        await (await fleet.settled()).commit(fleet.seen(2))
        await fleet.equal()
        await fleet.stop()
        for me in fleet.voters:
            shutil.rmtree(fleet.folder / me)
            (tmp_path / "backup" / me).rename(fleet.folder / me)
        await fleet.start()
        assert (await (await fleet.settled()).commit(fleet.seen(3))).applied
        assert not any(member.node.status.rejoining for member in fleet.members.values())


def remembers_all(judge: Member, voter: Member) -> bool:
    """Whether one voter knows the newest promises of another."""
    knowing, known = judge.node.replica, voter.node.replica
    if knowing is None or known is None or known.journal is None or known.journal.pending:
        return False
    memory = knowing.transport.memory
    return memory is not None and memory.newest(voter.me) == known.journal.standing


class TestCommitting:
    async def test_command_committed_by_the_leader_reaches_all(self, fleet: Fleet) -> None:
        await fleet.start()
        leader = await fleet.settled()
        command = fleet.own(0, 7)
        outcome = await leader.commit(command)
        await until(lambda: all(m.node.state.generation == 1 for m in fleet.members.values()))

        assert outcome == Outcome(True, "", 1)
        for member in fleet.members.values():
            await until(partial(lambda member: member.applied, member))
            assert member.applied == [Applied(command, outcome)]
            assert member.node.state.ownership == {7: Ownership(("p1",))}

    async def test_any_member_may_propose(self, fleet: Fleet) -> None:
        await fleet.start()
        follower = await fleet.other()
        assert (await follower.commit(fleet.own(0, 7))).applied
        assert follower.node.state.generation == 1, "applied by the proposer before the outcome is reported"

    async def test_repeated_command_is_applied_once(self, fleet: Fleet) -> None:
        await fleet.start()
        leader, follower = await fleet.settled(), await fleet.other()
        command = fleet.own(0, 7)
        outcomes = await asyncio.gather(leader.commit(command), follower.commit(command))
        second_result = await leader.commit(command)

        assert Outcome(True, "", 1) in outcomes
        assert (second_result.applied, second_result.reason) == (False, "repeated")
        assert (await fleet.equal()).generation == 1

    async def test_refused_command_names_the_reason(self, fleet: Fleet) -> None:
        await fleet.start()
        outcome = await (await fleet.settled()).commit(fleet.own(5, 7))
        assert (outcome.applied, outcome.reason) == (False, "stale_generation")

    async def test_concurrent_commands_from_all_members_are_applied(self, fleet: Fleet) -> None:
        await fleet.start()
        await fleet.settled()
        members = itertools.cycle(fleet.members.values())
        commands = [fleet.seen(number) for number in range(300)]
        outcomes = await asyncio.gather(*(next(members).commit(command) for command in commands))

        assert all(outcome.applied for outcome in outcomes)
        assert len((await fleet.equal()).brokers) == 300

    async def test_status_names_the_leader(self, fleet: Fleet) -> None:
        await fleet.start()
        leader = await fleet.settled()
        for member in fleet.members.values():
            status = member.node.status
            assert status.role == ("leader" if member is leader else "follower")
            assert status.leader == leader.me
            assert status.term == leader.node.status.term >= 1
            assert status.quorum_lost_mono_s is None
            assert status.journal_error is None

    async def test_callbacks_come_on_the_raft_thread_and_survive_a_fault(
        self, fleet: Fleet, caplog: pytest.LogCaptureFixture
    ) -> None:
        await fleet.start("p1", "p2")
        await fleet.settled()
        assert fleet.members["p1"].threads == {"raft"}

        def fail(*_arguments: object) -> None:
            raise RuntimeError("a fault of control")

        fleet.members["p1"].node.on_change = fail
        assert (await fleet.members["p1"].commit(fleet.seen(1))).applied
        await until(lambda: "a fault of control" in caplog.text)

    async def test_callback_is_not_called_without_news(self, fleet: Fleet) -> None:
        await fleet.start()
        leader = await fleet.settled()
        await leader.commit(fleet.seen(1))
        await fleet.equal()
        await until(lambda: all(m.node.status.commit_index == 4 for m in fleet.members.values()))
        await asyncio.to_thread(time.sleep, 0.05)
        before = len(leader.changes)
        await asyncio.to_thread(time.sleep, 0.3)
        assert len(leader.changes) == before


class TestProposals:
    async def test_a_command_without_an_id_is_refused(self, fleet: Fleet) -> None:
        await fleet.start("p1")
        with pytest.raises(ValueError, match="has no id"):
            await fleet.members["p1"].commit(BrokersSeen((Broker(1, "kafka", 9092),)))

    async def test_a_command_that_is_too_large_is_refused(self, fleet: Fleet) -> None:
        await fleet.start("p1")
        changes = {number: Ownership(("p1",) * 20) for number in range(2000)}
        with pytest.raises(ValueError, match="limit"):
            await fleet.members["p1"].commit(stamp(OwnershipSet(0, changes), "large", 1))

    async def test_without_a_leader_there_is_no_quorum(self, fleet: Fleet) -> None:
        await fleet.start("p1")
        with pytest.raises(NoQuorum, match="no leader"):
            await fleet.members["p1"].commit(fleet.seen(1), 0.2)

    async def test_command_waits_for_a_leader(self, fleet: Fleet) -> None:
        await fleet.start("p1")
        waiting = fleet.members["p1"].node.propose(fleet.seen(1), LIMIT_S)
        await fleet.start("p2")
        assert (await asyncio.wrap_future(waiting)).applied

    async def test_command_of_a_dead_leader_goes_to_the_next_leader(self, fleet: Fleet) -> None:
        await fleet.start()
        leader, follower = await fleet.settled(), await fleet.other()
        await leader.links.stop()  # all members still take it for the leader
        assert (await follower.commit(fleet.seen(1))).applied

    async def test_unanswered_command_may_still_be_committed(self, fleet: Fleet) -> None:
        await fleet.start()
        leader = await fleet.settled()
        others = [me for me in fleet.members if me != leader.me]
        await asyncio.gather(*(fleet.members[me].links.stop() for me in others))
        with pytest.raises(CommandTimeout, match="may still be committed"):
            await leader.commit(fleet.seen(1), 0.2)

    async def test_a_lost_command_is_sent_again(self, fleet: Fleet) -> None:
        await fleet.start()
        follower = await fleet.other()
        send, lost = follower.links.send, list[bytes]()

        def lossy(peer: ProxyId, kind: Kind, payload: bytes) -> bool:
            if b"apply_command" in payload and not lost:
                lost.append(payload)
                return True
            return send(peer, kind, payload)

        follower.links.send = lossy  # type: ignore[method-assign]
        assert (await follower.commit(fleet.seen(1))).applied
        assert lost

    async def test_a_cancelled_wait_is_forgotten(self, fleet: Fleet) -> None:
        await fleet.start("p1")
        node = fleet.members["p1"].node
        future = node.propose(fleet.seen(1), 0.05)
        future.cancel()
        await until(lambda: not len(node.proposals))
        assert node.status.journal_error is None

    async def test_a_stop_ends_the_wait(self, fleet: Fleet) -> None:
        await fleet.start("p1")
        node = fleet.members["p1"].node
        waiting = node.propose(fleet.seen(1), 600)
        await fleet.stop("p1")
        late = node.propose(fleet.seen(2), 600)
        for future in (waiting, late):
            with pytest.raises(NoQuorum, match="has stopped"):
                future.result(LIMIT_S)


class TestFailover:
    async def test_the_others_elect_a_leader_and_keep_the_state(self, fleet: Fleet) -> None:
        await fleet.start()
        leader = await fleet.settled()
        await leader.commit(fleet.own(0, 7))
        term = leader.node.status.term
        await fleet.stop(leader.me)
        successor = await fleet.settled()
        outcome = await successor.commit(fleet.own(1, 8))

        assert successor.me != leader.me
        assert successor.node.status.term > term
        assert outcome == Outcome(True, "", 2)
        assert set((await fleet.equal()).ownership) == {7, 8}

    async def test_an_isolated_leader_steps_down_and_cannot_commit(self, fleet: Fleet) -> None:
        await fleet.start()
        leader = await fleet.settled()
        await leader.links.stop()
        lost_s = time.monotonic()
        await until(lambda: leader.node.status.role != "leader")

        status = leader.node.status
        assert not status.has_quorum
        assert status.quorum_lost_mono_s is not None
        assert abs(status.quorum_lost_mono_s - lost_s) < 1.0

    async def test_minority_reports_the_lost_quorum_and_its_duration(self, fleet: Fleet) -> None:
        await fleet.start()
        await fleet.settled()
        survivor = await fleet.other()
        await fleet.stop(*[me for me in fleet.members if me != survivor.me])
        stopped_s = time.monotonic()
        await until(lambda: not survivor.node.status.has_quorum)
        assert time.monotonic() - stopped_s < 2.0, "the goal is 1 s, but this machine may be busy"
        await until(lambda: survivor.node.status.leader is None)

        lost_s = survivor.node.status.quorum_lost_mono_s
        assert lost_s is not None
        assert lost_s <= time.monotonic()
        term = survivor.node.status.term
        await asyncio.to_thread(time.sleep, 1.0)
        assert survivor.node.status.quorum_lost_mono_s == lost_s, (
            "the moment does not change while the loss lasts"
        )
        assert survivor.node.status.term == term, (
            "alone, it does not count up terms that disturb the others later"
        )

    async def test_silent_links_are_no_quorum_either(self, fleet: Fleet) -> None:
        """The peers are frozen: the links are up, but no message arrives."""
        await fleet.start()
        leader = await fleet.settled()
        for member in fleet.members.values():
            member.links.send = lambda *_arguments: True  # type: ignore[method-assign]
        await until(lambda: not any(m.node.status.has_quorum for m in fleet.members.values()))
        assert len(leader.links.connected) == 2

    async def test_returning_quorum_ends_the_outage(self, fleet: Fleet) -> None:
        await fleet.start("p1")
        assert fleet.members["p1"].node.status.quorum_lost_mono_s is not None
        await fleet.start("p2")
        await fleet.settled()
        assert fleet.members["p1"].node.status.quorum_lost_mono_s is None


class TestRestart:
    async def test_restarted_fleet_keeps_its_state(self, fleet: Fleet) -> None:
        await fleet.start()
        leader = await fleet.settled()
        for generation in range(5):
            await leader.commit(fleet.own(generation, generation))
        before = await fleet.equal()
        terms = leader.node.status.term
        await fleet.stop()
        await fleet.start()
        leader = await fleet.settled()

        assert await fleet.equal() == before
        assert leader.node.status.term > terms
        assert all(member.applied == [] for member in fleet.members.values()), (
            "old commands are not reported as new"
        )
        assert await leader.commit(fleet.own(5, 9)) == Outcome(True, "", 6)

    @pytest.mark.parametrize("compact_entries", [500, 3])
    async def test_a_lone_member_shows_what_was_committed(self, tmp_path: Path, compact_entries: int) -> None:
        fleet = Fleet(tmp_path, compact_entries=compact_entries)
        await fleet.start()
        leader = await fleet.settled()
        for generation in range(5):
            await leader.commit(fleet.own(generation, generation))
        before = await fleet.equal()
        await fleet.stop()

        for me in fleet.voters:
            member = fleet.members[me] = Member(fleet, me)
            member.node.start()
            assert member.node.state == before, "immediately after the start"
            assert not member.node.status.has_quorum
            await until(partial(lambda member: member.changes, member))
            assert member.changes[0][0] == before
            assert member.changes[0][2] == ()
            await fleet.stop(me)
        await fleet.close()

    async def test_member_with_an_empty_disk_gets_all_entries(self, tmp_path: Path) -> None:
        fleet = Fleet(tmp_path, compact_entries=10)
        await fleet.start()
        leader = await fleet.settled()
        away = (await fleet.other()).me
        await fleet.stop(away)
        for number in range(40):
            await leader.commit(fleet.own(number, number))
        for file in (tmp_path / away / "raft").iterdir():
            file.unlink()
        await fleet.start(away)

        assert (await fleet.equal()).generation == 40
        await fleet.close()

    async def test_a_member_that_was_away_over_a_compaction_catches_up(self, tmp_path: Path) -> None:
        fleet = Fleet(tmp_path, compact_entries=10)
        await fleet.start()
        leader = await fleet.settled()
        await leader.commit(fleet.own(0, 0))
        away = (await fleet.other()).me
        await fleet.stop(away)
        for number in range(1, 40):
            await leader.commit(fleet.own(number, number))
        assert (tmp_path / leader.me / "raft" / "snapshot").exists()
        await fleet.start(away)
        await until(lambda: fleet.members[away].node.state.generation == 40)
        state = await fleet.equal()
        assert (await fleet.members[away].commit(fleet.own(40, 99))).applied

        assert set(state.ownership) == set(range(40))
        await fleet.close()
        # Its disk has everything that it received.
        member = Member(fleet_of(fleet, tmp_path), away)
        member.node.start()
        assert member.node.state.generation >= 40
        member.node.stop()

    async def test_member_does_not_start_with_a_corrupt_journal(self, fleet: Fleet) -> None:
        await fleet.start()
        leader = await fleet.settled()
        for number in range(3):
            await leader.commit(fleet.seen(number))
        await fleet.stop()
        path = fleet.folder / "p1" / "raft" / "journal"
        data = bytearray(path.read_bytes())
        data[journal_module.FIRST_FRAME + 14] ^= 1
        path.write_bytes(data)
        member = Member(fleet, "p1")
        with pytest.raises(JournalError, match="corrupt at offset"):
            member.node.start()
        with pytest.raises(JournalError, match="corrupt at offset"):
            Member(fleet, "p1").node.start()


def fleet_of(former: Fleet, folder: Path) -> Fleet:
    """The same members with new ports."""
    return Fleet(folder, len(former.voters), len(former.observers))


class TestShapes:
    async def test_single_voter_commits_alone(self, tmp_path: Path) -> None:
        fleet = Fleet(tmp_path, voters=1)
        await fleet.start()
        leader = await fleet.settled()
        assert await leader.commit(fleet.own(0, 7)) == Outcome(True, "", 1)
        await fleet.stop()
        await fleet.start()
        assert fleet.members["p1"].node.state.generation == 1
        assert await (await fleet.settled()).commit(fleet.own(1, 8)) == Outcome(True, "", 2)
        await fleet.close()

    async def test_single_voter_commits_without_waiting_for_a_tick(self, tmp_path: Path) -> None:
        fleet = Fleet(tmp_path, voters=1)
        member = Member(fleet, "p1")
        object.__setattr__(member.node.settings, "tick_s", 0.3)
        fleet.members["p1"] = member
        member.node.start()
        await until(lambda: member.node.status.role == "leader")
        start_s = time.monotonic()
        for number in range(10):
            await member.commit(fleet.seen(number))
        assert time.monotonic() - start_s < 1.5
        await fleet.close()

    async def test_idle_member_waits_longer_than_a_tick(self, tmp_path: Path) -> None:
        fleet = Fleet(tmp_path, voters=1)
        await fleet.start()
        node = (await fleet.settled()).node
        await until(lambda: node.next_wait_s() > node.settings.tick_s)
        await fleet.close()
        assert node.next_wait_s() == node.settings.tick_s, "the replica is closed"

    async def test_two_voters_need_both(self, tmp_path: Path) -> None:
        fleet = Fleet(tmp_path, voters=2)
        await fleet.start()
        leader = await fleet.settled()
        assert (await leader.commit(fleet.seen(1))).applied
        await fleet.stop((await fleet.other()).me)
        await until(lambda: not leader.node.status.has_quorum)
        await fleet.close()

    async def test_five_voters_survive_two(self, tmp_path: Path) -> None:
        fleet = Fleet(tmp_path, voters=5)
        await fleet.start()
        leader = await fleet.settled()
        await fleet.stop(leader.me)
        await fleet.stop((await fleet.settled()).me)
        assert (await (await fleet.settled()).commit(fleet.seen(1))).applied
        await fleet.close()

    async def test_an_observer_follows_and_proposes(self, tmp_path: Path) -> None:
        fleet = Fleet(tmp_path, voters=3, observers=1, compact_entries=10)
        await fleet.start()
        await fleet.settled()
        observer = fleet.members["p4"]
        for number in range(30):
            assert (await observer.commit(fleet.own(number, number))).applied
        status = observer.node.status
        before = await fleet.equal()
        await fleet.stop("p4")
        leader = await fleet.settled()
        for number in range(30, 60):
            await leader.commit(fleet.own(number, number))
        fleet.members["p4"] = observer = Member(fleet, "p4")
        observer.node.start()

        assert (status.role, status.has_quorum) == ("observer", True)
        assert observer.node.state == before, "observers have a journal, too"
        await observer.links.start()
        await until(lambda: observer.node.state.generation == 60)
        await fleet.close()

    async def test_observers_do_not_make_a_quorum(self, tmp_path: Path) -> None:
        fleet = Fleet(tmp_path, voters=3, observers=2)
        await fleet.start()
        await fleet.settled()
        await fleet.stop("p1", "p2")
        await until(lambda: not any(m.node.status.has_quorum for m in fleet.members.values()))
        await until(lambda: not any(m.node.status.leader for m in fleet.members.values()))
        with pytest.raises(NoQuorum):
            await fleet.members["p4"].commit(fleet.seen(1), 0.2)
        await fleet.close()

    def test_member_is_a_voter_or_an_observer(self, tmp_path: Path) -> None:
        settings = RaftSettings("p9", ("p1",), ("p2",), tmp_path)
        with pytest.raises(RaftError, match="p9 is neither"):
            RaftNode(settings, lambda _peer, _payload: None, lambda *_arguments: None)


class TestABrokenDisk:
    @pytest.fixture(params=[errno.ENOSPC, errno.EROFS, errno.EIO], ids=errno.errorcode.get)
    def disk(self, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> "Disk":
        """A full disk, a failing disk, and a disk that the kernel has made read-only after a failure."""
        return Disk(monkeypatch, request.param)

    async def test_write_error_is_reported_until_it_is_resolved(self, fleet: Fleet, disk: "Disk") -> None:
        await fleet.start()
        leader = await fleet.settled()
        await leader.commit(fleet.own(0, 7))
        await fleet.equal()
        disk.full_for(fleet.folder / leader.me)
        with contextlib.suppress(NoQuorum, CommandTimeout):
            await leader.commit(fleet.seen(1), 0.1)
        await until(lambda: leader.node.status.journal_error)
        status = leader.node.status
        others = [member for member in fleet.members.values() if member is not leader]
        outcome = await others[0].commit(fleet.own(1, 8))

        assert disk.error in (status.journal_error or "")
        assert (status.role, status.leader, status.has_quorum) == ("follower", None, False)
        assert leader.node.state.generation == 1, "the last known state is still shown"
        assert outcome.applied, "the other members continue"

        disk.free()
        await until(lambda: leader.node.status.journal_error is None)
        await until(lambda: leader.node.state.generation == 2)
        await fleet.settled()
        assert (await leader.commit(fleet.own(2, 9))).applied
        assert [one.outcome.generation for one in leader.applied if one.outcome.applied][-2:] == [2, 3]

    async def test_all_full_commits_nothing_and_loses_nothing(self, fleet: Fleet, disk: "Disk") -> None:
        await fleet.start()
        leader = await fleet.settled()
        await leader.commit(fleet.own(0, 7))
        disk.full_for(fleet.folder)
        waiting = leader.node.propose(fleet.own(1, 8), LIMIT_S)
        await until(
            lambda: all(m.node.status.journal_error for m in fleet.members.values()) or waiting.done()
        )
        assert not waiting.done()
        disk.free()

        assert (await asyncio.wrap_future(waiting)).generation == 2, "retried until the timeout"
        assert (await fleet.equal()).generation == 2

    async def test_internal_error_restarts_only_raft(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(raft_state, "_REOPEN_S", 0.05)
        await fleet.start()
        leader = await fleet.settled()
        await leader.commit(fleet.own(0, 7))
        replica = leader.node.replica
        assert replica is not None
        monkeypatch.setattr(replica.log, "doTick", lambda _wait_s: 1 / 0)
        await until(lambda: leader.node.replica not in (None, replica))
        await fleet.settled()

        assert "ZeroDivisionError" in caplog.text
        assert (await leader.commit(fleet.own(1, 8))).generation == 2

    async def test_reopening_does_not_revert_the_state(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(raft_state, "_REOPEN_S", 0.05)
        await fleet.start()
        follower = await fleet.other()
        await follower.commit(fleet.own(0, 7))
        await fleet.stop(*[me for me in fleet.members if me != follower.me])
        await until(lambda: not follower.node.status.has_quorum)
        path = fleet.folder / follower.me / "raft" / "journal"
        with path.open("r+b") as file:  # the commit index on disk cannot be read
            file.seek(16)
            file.write(bytes(4))
        replica = follower.node.replica
        assert replica is not None
        monkeypatch.setattr(replica.log, "doTick", lambda _wait_s: 1 / 0)
        await until(lambda: follower.node.replica not in (None, replica))
        await until(lambda: follower.node.status.journal_error is None)
        reopened = follower.node.replica
        assert reopened is not None
        assert reopened.log.raftLastApplied == 1, "the commit index must be learned again"
        assert follower.node.state.generation == 1

        await fleet.start(*[me for me in fleet.voters if me != follower.me])
        assert (await follower.commit(fleet.own(1, 8))).generation == 2
        assert [state.generation for state, _, _ in follower.changes] == sorted(
            state.generation for state, _, _ in follower.changes
        )


class Disk:
    """A disk that rejects all writes below one folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
        self._full: Path | None = None
        self.error = os.strerror(error)
        self._errno = error
        for module in (journal_module, files):
            monkeypatch.setattr(module, "write_all", self._write_all)
        self._really = WRITE_ALL

    def full_for(self, folder: Path) -> None:
        self._full = folder

    def free(self) -> None:
        self._full = None

    def _write_all(self, descriptor: int, data: bytes) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if self._full is not None and path.is_relative_to(self._full):
            raise OSError(self._errno, self.error)
        self._really(descriptor, data)


WRITE_ALL = files.write_all


async def test_garbage_from_a_member_is_counted_and_harmless(fleet: Fleet) -> None:
    await fleet.start()
    leader = await fleet.settled()
    follower = await fleet.other()
    for payload in (b"", b"\xc1garbage", b"\x81\xa4type\xa4what"):
        follower.links.send(leader.me, Kind.RAFT, payload)
    await until(lambda: leader.node.status.dropped_messages == 3)
    assert (await follower.commit(fleet.seen(1))).applied


async def test_start_is_refused_with_another_library(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RaftError("pysyncobj is 9")

    monkeypatch.setattr(guards, "check_library", refuse)
    with pytest.raises(RaftError, match="pysyncobj is 9"):
        Member(fleet, "p1").node.start()


def test_proposal_returns_a_standard_future(tmp_path: Path) -> None:
    node = RaftNode(RaftSettings("p1", ("p1",), (), tmp_path), lambda _p, _b: None, lambda *_arguments: None)
    node.start()
    future = node.propose(stamp(BrokersSeen((Broker(1, "kafka", 9092),)), "one", 1), LIMIT_S)
    assert isinstance(future, Future)
    assert future.result(LIMIT_S).applied, "without any event loop"
    node.stop()


async def test_end_of_the_thread_is_reported_and_fails_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[BaseException] = []
    settings = RaftSettings("p1", ("p1", "p2", "p3"), (), tmp_path)
    node = RaftNode(settings, lambda *_: None, lambda *_: None, ends.append)
    node.start()
    waiting = node.propose(stamp(MemberUp(model.Member("p1")), "c1", 1), 10 * LIMIT_S)

    def fail(self: RaftNode, now_s: float) -> None:
        raise ZeroDivisionError("of a library")

    monkeypatch.setattr(RaftNode, "_observe", fail)
    await until(lambda: ends)
    assert isinstance(ends[0], ZeroDivisionError)
    late = node.propose(stamp(MemberUp(model.Member("p1")), "c2", 2), 10 * LIMIT_S)
    for future in (waiting, late):
        with pytest.raises(NoQuorum):
            await asyncio.wrap_future(future)
    await asyncio.to_thread(node.stop)
