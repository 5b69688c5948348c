"""Simulated schedules of the real library; see ``raft_simulation``. ``tests.raft_long`` plays more."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import fleet.raft.journal as journal_module
import fleet.raft.memory as memory_module
import fleet.raft.storage as storage
import fleet.raft.transport as transport
from fleet.raft.rejoin import remove_mark
from tests.examples import examples
from tests.property.raft_simulation import Disk, Simulation, simulate, simulated
from tests.raft_long import run_schedules, too_few

SCHEDULES = examples(500)


@pytest.mark.timeout(3600)
def test_no_fault_makes_members_differ_or_lose_commits() -> None:
    counts: Counter[str] = Counter()
    broken: dict[int, tuple[str, ...]] = {}
    for outcome in run_schedules(0, SCHEDULES, os.cpu_count() or 1):
        counts += outcome.counts
        if outcome.violations:
            broken[outcome.seed] = outcome.violations

    assert broken == {}, "to replay one: python -m tests.raft_long --schedules 1 --first SEED"
    assert too_few(counts, SCHEDULES) == {}


def test_a_seed_is_the_same_schedule_each_time(tmp_path: Path) -> None:
    """Found: the library keeps nodes in sets, so a schedule depended on the hash seed of the process."""
    one, other = (simulate(11, tmp_path / name, steps=1500) for name in ("one", "other"))
    assert one == other


def test_voters_back_from_an_earlier_release_keep_the_quorum(tmp_path: Path) -> None:
    """Found: the absent voter refused both new ids, both rejoined, and no majority was left."""
    simulation = Simulation(1, tmp_path)
    assert simulation.voters == ("p1", "p2", "p3")
    with simulated(simulation):
        simulation.run_quietly(200)
        simulation.crash("p3", for_s=5.0)
        for each in ("p1", "p2"):
            simulation.erase(each, for_s=0.02)
        simulation.run_quietly(1600)
        simulation.heal_and_compare()
    assert simulation.violations == []
    assert simulation.counts["erased"] == 2
    assert simulation.counts["distrusted"] == 0


# Removes each guard whose absence the simulation detects. The other guards have unit tests.


def without_a_limit_on_the_commit_index(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transport, "_verified_index", lambda message, _raft: message["commit_index"])


def without_a_flush(patch: pytest.MonkeyPatch) -> None:
    letting_losses_go_unnoticed(patch)
    patch.setattr(os, "fdatasync", lambda _descriptor: None)


def rewriting_the_journal_in_place(patch: pytest.MonkeyPatch) -> None:
    def replace(disk: Disk, path: Path, data: bytes) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        disk.write_all(descriptor, data[: len(data) // 2])
        disk.flush(descriptor)
        disk.write_all(descriptor, data[len(data) // 2 :])
        disk.flush(descriptor)
        return descriptor

    bound: list[Disk] = [journal_module.replace.__self__]  # type: ignore[attr-defined]
    patch.setattr(journal_module, "replace", lambda path, data: replace(bound[0], path, data))


def letting_a_reset_voter_vote_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(storage, "read_mark", remove_mark)
    letting_losses_go_unnoticed(patch)


def letting_losses_go_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """Take away the memory of the others too, and what it alone is for.

    With it no promise is broken where a guard is gone: once more voters have lost something than may be lost,
    there is no quorum, and there will be none.
    """
    trusting_every_journal(patch)
    patch.setattr(Simulation, "_forget", lambda _simulation, _loss: None)


def trusting_every_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory_module, "_objection", lambda _known, _said: "")


def without_a_journal(patch: pytest.MonkeyPatch) -> None:
    letting_losses_go_unnoticed(patch)
    patch.setattr(journal_module.Journal, "_read", lambda _journal, _base: None)


@pytest.mark.parametrize(
    ("without", "cuts"),
    [
        (without_a_limit_on_the_commit_index, 0.002),
        (without_a_flush, 0.002),
        (rewriting_the_journal_in_place, 0.02),
        (letting_a_reset_voter_vote_at_once, 0.002),
        (trusting_every_journal, 0.002),
        (without_a_journal, 0.002),
    ],
)
def test_a_guard_is_needed(
    without: Callable[[pytest.MonkeyPatch], None], cuts: float, tmp_path: Path
) -> None:
    for seed in range(300):
        outcome = simulate(seed, tmp_path / str(seed), cuts=cuts, without=without)
        assert not any("not healed" in each for each in outcome.violations[:1]), outcome
        if outcome.violations:
            return
    pytest.fail("300 schedules did not notice that it is gone")
