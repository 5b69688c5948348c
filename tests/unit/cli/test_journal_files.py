"""``fleet journal``: what it finds in a member's files, what it changes, and when it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet import cli
from fleet.cli import journal_files, output
from fleet.config import Settings
from fleet.config.file import load
from fleet.core.errors import JournalError, StartError
from fleet.core.model import FleetState
from fleet.raft.journal import FIRST_FRAME, MARKER, Entry, Journal
from fleet.raft.rejoin import MARK
from fleet.raft.snapshot import Snapshot, encode_snapshot
from fleet.runtime import data_dir

MEMBER = """
  {proxy_id}:
    voter: {voter}
    peer: 127.0.0.1:{port}1
    admin: 127.0.0.1:{port}2
    data_dir: ./{proxy_id}
    listeners: {{all: {{bind: 127.0.0.1:{port}3, first_port: {port}4}}}}
"""


def configured(folder: Path, voters: int = 3, observers: int = 1) -> Settings:
    members = "".join(
        MEMBER.format(proxy_id=f"p{n + 1}", voter=str(n < voters).lower(), port=4100 + n)
        for n in range(voters + observers)
    )
    path = folder / "fleet.yaml"
    head = "fleet: demo\nbootstrap_servers: [kafka:9092]\nidentities: {first_id: 1, count: 1}\nmembers:"
    path.write_text(head + members)
    return load(str(path), {})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return configured(tmp_path)


def raft(settings: Settings, proxy_id: str = "p1") -> Path:
    folder = settings.member(proxy_id).private_dir / "raft"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def filled(folder: Path, entries: int = 5, committed: int = 3) -> bytes:
    subject = Journal(folder / "journal", "p1")
    subject.setCurrentTerm(4, "p2")
    for index in range(1, entries + 1):
        subject.add(b"\x00command %d" % index, index, min(index, 4))
        subject.sync()
    subject.setRaftCommitIndex(committed)
    subject._destroy()
    return (folder / "journal").read_bytes()


def test_check_of_an_empty_folder_creates_nothing(settings: Settings) -> None:
    found = journal_files.check(settings, "p1")
    assert (found.survey.verdict, found.survey.entries, found.running) == ("empty", 0, False)
    assert not settings.member("p1").data_dir.exists()


def test_check_reads_journal_and_snapshot(settings: Settings) -> None:
    folder = raft(settings)
    before = filled(folder)
    last = Entry(b"\x00", 2, 1)
    (folder / "snapshot").write_bytes(encode_snapshot(Snapshot(FleetState(), Entry(b"\x00", 1, 1), last)))
    found = journal_files.check(settings, "p1").survey

    assert (found.verdict, found.member, found.entries) == ("whole", "p1", 5)
    assert (found.first_index, found.last_index, found.term, found.voted_for) == (1, 5, 4, "p2")
    assert (found.commit_index, found.snapshot_index, found.snapshot_term) == (3, 2, 1)
    assert (folder / "journal").read_bytes() == before


def test_torn_tail_is_repaired(settings: Settings) -> None:
    folder = raft(settings)
    whole = filled(folder)
    (folder / "journal").write_bytes(whole[:-3])
    (folder / "journal.new").write_bytes(b"half")
    found = journal_files.check(settings, "p1")
    assert (found.survey.verdict, found.survey.last_index) == ("torn", 4)
    assert found.survey.damage[0].offset == whole.rindex(MARKER)

    repaired = journal_files.repair(settings, "p1")
    assert repaired.survey.verdict == "whole"
    assert repaired.changed == (folder / "journal.new", folder / "journal")
    assert (folder / "journal").read_bytes() == whole[: whole.rindex(MARKER)]
    assert journal_files.repair(settings, "p1").changed == ()


@pytest.mark.parametrize("what", ["middle", "committed", "snapshot", "stranger", "other member"])
def test_damage_to_acknowledged_entries_is_not_repaired(settings: Settings, what: str) -> None:
    folder = raft(settings)
    whole = filled(folder, committed=5)
    path = folder / "journal"
    match what:
        case "middle":
            path.write_bytes(whole[: FIRST_FRAME + 20] + b"\xff\xff" + whole[FIRST_FRAME + 22 :])
        case "committed":
            path.write_bytes(whole[: whole.rindex(MARKER)])
        case "snapshot":
            path = folder / "snapshot"
            path.write_bytes(b"FLEETRS1 and then nothing of use")
        case "stranger":
            path.write_bytes(b"something else")
        case "other member":
            Journal(folder / "journal", "p1")._destroy()
            path.write_bytes(whole.replace(b"\xa2p1", b"\xa2p9", 1))
    before = path.read_bytes()
    found = journal_files.check(settings, "p1")

    assert found.survey.verdict == "corrupt"
    assert str(path) in found.survey.refusal
    with pytest.raises(JournalError, match="run `fleet journal reset` instead"):
        journal_files.repair(settings, "p1")
    assert path.read_bytes() == before


def test_check_names_every_damaged_place(settings: Settings) -> None:
    folder = raft(settings)
    data = bytearray(filled(folder))
    frames = [offset for offset in range(len(data)) if data[offset:].startswith(MARKER)]
    for frame in (frames[1], frames[3]):
        data[frame + 14] ^= 0xFF
    (folder / "journal").write_bytes(data)
    found = journal_files.check(settings, "p1").survey
    assert [each.offset for each in found.damage] == [frames[1], frames[3]]


def test_reset_sets_files_aside_and_marks_a_voter(settings: Settings) -> None:
    folder = raft(settings)
    whole = filled(folder)
    result = journal_files.reset(settings, "p1", start_over=False)

    (aside,) = result.changed
    assert aside.name.startswith("journal.2")
    assert aside.read_bytes() == whole
    assert (folder / MARK).exists()
    assert (result.survey.verdict, result.survey.rejoining) == ("empty", True)


@pytest.mark.parametrize(("voters", "proxy_id"), [(3, "p4"), (2, "p1")])
def test_reset_without_effect_on_votes_leaves_no_mark(tmp_path: Path, voters: int, proxy_id: str) -> None:
    """An observer has no vote. With two voters, only the other voter has the log and can be elected."""
    settings = configured(tmp_path, voters)
    folder = raft(settings, proxy_id)
    journal_files.reset(settings, proxy_id, start_over=False)
    assert not (folder / MARK).exists()


def test_reset_of_the_only_voter_requires_start_over(tmp_path: Path) -> None:
    settings = configured(tmp_path, voters=1)
    filled(raft(settings))
    with pytest.raises(JournalError, match="--start-over"):
        journal_files.reset(settings, "p1", start_over=False)
    assert journal_files.reset(settings, "p1", start_over=True).survey.verdict == "empty"


def test_start_over_removes_the_mark(settings: Settings) -> None:
    folder = raft(settings)
    journal_files.reset(settings, "p1", start_over=False)
    journal_files.reset(settings, "p1", start_over=True)
    assert not (folder / MARK).exists()


def test_running_member_is_neither_repaired_nor_reset(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = raft(settings)
    whole = filled(folder)
    monkeypatch.setattr(data_dir, "LOCK_WAIT_S", 0.1)
    held = data_dir.acquire(settings.member("p1"))
    assert journal_files.check(settings, "p1").running
    for action in (journal_files.repair, lambda s, p: journal_files.reset(s, p, start_over=False)):
        with pytest.raises(StartError, match="in use by another supervisor"):
            action(settings, "p1")
    assert (folder / "journal").read_bytes() == whole
    held.close()
    assert not journal_files.check(settings, "p1").running


def test_command_exits_with_1_for_damaged_files(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = raft(settings)
    filled(folder)
    arguments = ["--config", str(tmp_path / "fleet.yaml"), "--node", "p1"]
    assert cli.run(["journal", "check", *arguments]) == output.OK
    assert "entries (1 to 5)" in capsys.readouterr().out
    (folder / "journal").write_bytes(b"something else")
    assert cli.run(["journal", "check", *arguments, "--json"]) == output.FAILURE
    assert json.loads(capsys.readouterr().out)["survey"]["damage"][0]["offset"] == 0
    assert cli.run(["journal", "repair", *arguments, "--json"]) == output.FAILURE
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "journal"
    assert cli.run(["journal", "reset", *arguments, "--json"]) == output.OK
    assert json.loads(capsys.readouterr().out)["survey"]["rejoining"] is True
