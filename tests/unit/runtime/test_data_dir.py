"""The data directory of a member: owners and modes, locks, and upgrades from 0.2.0 and back."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import pytest

from fleet.cli import journal_files
from fleet.config import Settings
from fleet.config.settings import MemberSettings
from fleet.core.errors import JournalError, StartError
from fleet.core.model import Directory
from fleet.raft import survey
from fleet.raft.journal import Journal
from fleet.raft.rejoin import MARK, write_mark
from fleet.runtime import data_dir, ipc
from fleet.runtime.data_dir import User
from fleet.runtime.incarnation import next_incarnation
from tests.unit.cli.test_journal_files import configured
from tools.bootstrap import ROOT

FORMER: Final[Mapping[str, bytes]] = {
    "incarnation": b"1790000000000",
    "directory.json": b"{}",
    "events.sqlite": b"events",
    "raft/journal": b"entries",
    "raft/snapshot": b"state",
}
"""Files of a member of release 0.2.0, with their content."""
LINKS: Final = ("raft", "incarnation", "directory.json", "events.sqlite")
STRANGER: Final = 4242
NOBODY: Final = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return configured(tmp_path)


@pytest.fixture
def member(settings: Settings) -> MemberSettings:
    return settings.member("p1")


def start(member: MemberSettings) -> None:
    """Start and stop, as far as they concern the data directory."""
    data_dir.acquire(member).close()


def refusal(member: MemberSettings) -> str:
    with pytest.raises(StartError) as caught:
        start(member)
    assert str(caught.value).startswith("members.p1.data_dir: ")
    return str(caught.value)


def fill(folder: Path, files: Mapping[str, bytes] = FORMER) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# ---- owners and modes


def test_symlinked_lock_is_refused_and_its_target_is_left_alone(
    member: MemberSettings, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for folder in (member.data_dir, member.private_dir):
        folder.mkdir(mode=0o700)
        (folder / "lock").symlink_to(victim)
        assert f"{folder / 'lock'} is a symbolic link" in refusal(member)
        (folder / "lock").unlink()
    assert victim.read_text() == "precious"


def test_file_with_another_name_is_no_place_for_a_note(member: MemberSettings, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    victim.chmod(0o600)
    member.data_dir.mkdir(mode=0o700)
    (member.data_dir / "lock").hardlink_to(victim)
    start(member)
    assert victim.read_text() == "precious"


def test_pipe_as_lock_is_refused_at_once(member: MemberSettings) -> None:
    member.data_dir.mkdir()
    os.mkfifo(member.data_dir / "lock", 0o600)
    assert "lock is not a regular file; remove it" in refusal(member)


def test_files_of_fresh_member_are_its_users_alone(member: MemberSettings) -> None:
    before = os.umask(0)
    try:
        start(member)
    finally:
        os.umask(before)
    assert mode_of(member.data_dir) == mode_of(member.private_dir) == 0o700
    assert mode_of(member.private_dir / "raft") == 0o700
    assert mode_of(member.private_dir / "lock") == mode_of(member.data_dir / "lock") == 0o600


@pytest.mark.parametrize(
    ("mode", "rule"),
    [
        (0o755, None),
        (0o1777, None),
        (0o2775, None),
        (0o777, "has mode 0777, so every user may write there"),
        (0o2777, "has mode 2777, so every user may write there"),
        (0o775, f"has mode 0775, so group {os.getegid()} may write there"),
    ],
)
def test_data_dir_others_may_write_to_is_refused(member: MemberSettings, mode: int, rule: str | None) -> None:
    """2775 is what kubelet makes of a volume for ``fsGroup``; a sticky bit keeps what is there in place."""
    member.data_dir.mkdir()
    member.data_dir.chmod(mode)
    if rule is None:
        start(member)
        assert mode_of(member.private_dir) & 0o777 == 0o700
        assert mode_of(member.data_dir) == mode, "the operator owns its mode"
        return
    error_text = refusal(member)
    assert rule in error_text
    assert f"run: chmod go-w {member.data_dir}, or configure a folder below it" in error_text
    assert list(member.data_dir.iterdir()) == [], "nothing is created there"


@pytest.mark.parametrize("files", [{"raft/journal": b"entries"}, {"member/raft/journal": b"entries"}])
def test_no_new_folder_is_advised_where_there_is_a_journal(
    member: MemberSettings, files: Mapping[str, bytes]
) -> None:
    """Otherwise a voter would start with an empty journal next to its own."""
    fill(member.data_dir, files)
    member.data_dir.chmod(0o777)
    error_text = refusal(member)
    assert "or configure a folder below it" not in error_text
    assert "move to it those of member, raft, incarnation, directory.json, events.sqlite" in error_text


def test_advice_to_move_a_journal_keeps_it(settings: Settings, member: MemberSettings) -> None:
    some_entries(member.data_dir / "raft", last=5)
    start(member)
    member.data_dir.chmod(0o777)
    refusal(member)
    below = member.data_dir / "own"
    below.mkdir(mode=0o700)
    for name in ("member", "raft"):
        (member.data_dir / name).rename(below / name)
    moved = replace(member, data_dir=below)
    start(moved)
    assert journal_files.check(replace(settings, members={"p1": moved}), "p1").survey.last_index == 5


@pytest.mark.parametrize(
    ("mode", "group", "fix"),
    [
        (0o777, 0, f"chown {STRANGER} /volume && chmod go-w /volume"),
        (0o2777, STRANGER, "chmod o-w /volume"),
    ],
)
def test_fix_for_a_folder_of_root_keeps_it_writable(mode: int, group: int, fix: str) -> None:
    """As volumes of k3s and kind, and an ``emptyDir`` with ``fsGroup``: pods cannot change their modes."""
    info = os.stat_result((stat.S_IFDIR | mode, 1, 1, 2, 0, group, 0, 0, 0, 0))
    with pytest.raises(data_dir.Refusal) as caught:
        data_dir.check_root(Path("/volume"), info, User(STRANGER, frozenset({STRANGER})))
    assert f"run as root: {fix}, or configure a folder below it" in str(caught.value)


def test_group_of_a_volume_is_accepted_for_its_members_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    info, uid = tmp_path.stat(), os.geteuid()
    assert data_dir.check_root(tmp_path, info, User(uid, frozenset({info.st_gid}))) == info.st_gid
    with pytest.raises(data_dir.Refusal, match=f"group {info.st_gid} may write there"):
        data_dir.check_root(tmp_path, info, User(uid, frozenset({info.st_gid + 1})))


def test_path_of_another_user_is_refused_and_both_are_named(tmp_path: Path) -> None:
    info, stranger = tmp_path.stat(), User(STRANGER, frozenset())
    with pytest.raises(data_dir.Refusal) as caught:
        data_dir.check_entry(tmp_path, info, stranger, None)
    owner = data_dir.user_name(os.geteuid())
    assert f"belongs to user {owner}, but must belong to {STRANGER}, the user of this process" in str(
        caught.value
    )
    assert f"run this as {owner}, or run: chown -R {STRANGER} {tmp_path}" in str(caught.value)


@as_root
@pytest.mark.parametrize("name", [".", "lock", "member", "member/lock", "member/raft", "member/raft/journal"])
def test_anything_of_another_user_is_refused(member: MemberSettings, name: str) -> None:
    start(member)
    fill(member.private_dir)
    os.chown(member.data_dir / name, STRANGER, STRANGER)
    error_text = refusal(member)
    assert f"{member.data_dir / name} belongs to user {STRANGER}" in error_text
    assert f"chown -R root {member.data_dir / name}" in error_text


@as_root
@pytest.mark.parametrize("name", ["raft", "incarnation", "events.sqlite"])
def test_former_file_of_another_user_is_not_moved(member: MemberSettings, name: str) -> None:
    fill(member.data_dir)
    os.chown(member.data_dir / name, STRANGER, STRANGER)
    assert f"{member.data_dir / name} belongs to user {STRANGER}" in refusal(member)
    assert not (member.private_dir / name).exists()


def run_as(uid: int, gid: int, groups: list[int], action: Callable[[], None]) -> int:
    """Run an action as another user, in a child. Returns its exit code: 0 unless the action raises."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@as_root
def test_root_of_a_volume_is_used_by_the_user_of_a_pod() -> None:
    """As left by kubelet: owned by root, with the group of the pod; the content is owned by the member."""
    with tempfile.TemporaryDirectory() as folder:  # only root may enter pytest's folder
        os.chmod(folder, 0o755)
        member = configured(Path(folder)).member("p1")
        member.data_dir.mkdir()
        os.chown(member.data_dir, 0, STRANGER)
        member.data_dir.chmod(0o2775)
        assert run_as(STRANGER, NOBODY, [], lambda: start(member)) == 1, "not in the group"
        assert run_as(STRANGER, NOBODY, [STRANGER], lambda: start(member)) == 0
        info = member.private_dir.stat()
        assert (info.st_uid, info.st_mode & 0o777) == (STRANGER, 0o700)


def test_group_permissions_of_kubelet_are_removed(
    member: MemberSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """With ``fsGroupChangePolicy: Always`` each mount gives the group all permissions of the owner."""
    start(member)
    fill(member.private_dir)
    for path in (member.data_dir, *member.data_dir.rglob("*")):
        if not path.is_symlink():
            path.chmod(mode_of(path) | (0o2770 if path.is_dir() else 0o660))
    start(member)
    for path in (member.private_dir, *member.private_dir.rglob("*"), member.data_dir / "lock"):
        assert mode_of(path) & 0o077 == 0, path
    assert "removed access of other users" in caplog.text


def test_read_permission_of_others_is_removed(member: MemberSettings) -> None:
    start(member)
    fill(member.private_dir)
    member.private_dir.chmod(0o755)
    (member.private_dir / "raft" / "journal").chmod(0o644)
    start(member)
    assert mode_of(member.private_dir) & 0o777 == 0o700
    assert mode_of(member.private_dir / "raft" / "journal") == 0o600


@pytest.mark.parametrize("name", [".", "lock", "raft", "raft/journal"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_anything_that_others_may_write_is_refused(member: MemberSettings, name: str, mode: int) -> None:
    start(member)
    fill(member.private_dir)
    path = member.private_dir / name
    path.chmod(mode_of(path) | mode)
    assert f"{path} has mode " in refusal(member)
    assert mode_of(path) & mode, "an operator must inspect the content"


@pytest.mark.parametrize("name", ["member", "member/raft", "member/raft/journal", "member/directory.json"])
def test_symlink_in_place_of_a_private_path_is_refused(
    member: MemberSettings, tmp_path: Path, name: str
) -> None:
    start(member)
    fill(member.private_dir)
    path, elsewhere = member.data_dir / name, tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert f"{path} is a symbolic link" in refusal(member)


def test_data_dir_that_is_a_symlink_is_the_operators_choice(member: MemberSettings, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    member.data_dir.symlink_to(tmp_path / "disk")
    start(member)
    assert mode_of(tmp_path / "disk" / "member") == 0o700


def write_incarnation(folder: Path) -> None:
    next_incarnation(folder, 1)


def write_directory(folder: Path) -> None:
    with suppress(OSError):
        ipc.write_directory(folder / ipc.DIRECTORY_FILE, Directory())


def write_mark_of_reset(folder: Path) -> None:
    with suppress(OSError):
        write_mark(folder, "reset")


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("incarnation.new", write_incarnation),
        (f"{ipc.DIRECTORY_FILE}.{os.getpid()}.tmp", write_directory),
        (f"{MARK}.new", write_mark_of_reset),
    ],
    # Not by name, because the workers of a parallel run must collect the same ids.
    ids=["incarnation", "directory", "mark"],
)
def test_no_write_follows_a_symlink(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / name).symlink_to(victim)
    write(tmp_path)
    assert victim.read_text() == "precious"


# ---- locks


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_dir, "LOCK_WAIT_S", 0.1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("where", ["data_dir", "private_dir"])
def test_either_lock_keeps_a_second_supervisor_out(member: MemberSettings, where: str) -> None:
    start(member)
    with (getattr(member, where) / "lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert data_dir.is_locked(member)
        assert "in use by another supervisor" in refusal(member)
    assert not data_dir.is_locked(member)
    start(member)


def test_lock_outlives_a_process_whose_child_has_it(member: MemberSettings) -> None:
    held = data_dir.acquire(member)
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=held.fds
    ) as child:
        held.close()
        assert data_dir.is_locked(member)
        child.communicate(b"\n")
    assert not data_dir.is_locked(member)


# ---- from release 0.2.0, and back


def assert_migrated(member: MemberSettings, files: Mapping[str, bytes] = FORMER) -> None:
    """Every file is in the private folder, and can also be found through the data directory."""
    for name, content in files.items():
        assert (member.private_dir / name).read_bytes() == content
        assert (member.data_dir / name).read_bytes() == content
    for name in LINKS:
        assert os.readlink(member.data_dir / name) == f"member/{name}"
    assert mode_of(member.private_dir) & 0o777 == 0o700


class _Interrupted(BaseException):
    """Ends the process as a kill does: no ``except`` of the subject handles it."""


CALLS: Final = ("mkdir", "rename", "symlink", "unlink", "fsync", "fchmod", "ftruncate")


@contextmanager
def interrupted(after: int) -> Iterator[Callable[[], bool]]:
    """End the subject instead of its next modifying call, after a number of such calls."""
    made, ended = 0, False

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal made, ended
            if made == after:
                ended = True
                raise _Interrupted
            made += 1
            return real(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, wrap(getattr(os, name)))
        yield lambda: ended


def test_migration_goes_on_wherever_it_was_interrupted(tmp_path: Path) -> None:
    after, ended = 0, True
    while ended:
        folder = tmp_path / str(after)
        folder.mkdir()
        member = configured(folder).member("p1")
        fill(member.data_dir)
        with interrupted(after) as was_interrupted:
            try:
                start(member)
            except _Interrupted:
                (found,) = {path.resolve() for path in member.data_dir.rglob("journal")}
                assert found.read_bytes() == FORMER["raft/journal"]
            ended = was_interrupted()
        start(member)
        assert_migrated(member)
        after += 1
    assert after > len(FORMER)


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Runs ``fleet journal`` of release 0.2.0, and parses its output."""
    folder = tmp_path_factory.mktemp("release")
    (wheel,) = (ROOT / "tests" / "releases").glob("*-0.2.0-*.whl")
    with ZipFile(wheel) as packed:
        packed.extractall(folder)

    def run(action: str, config: Path) -> dict[str, Any]:
        command = [sys.executable, "-m", "fleet", "journal", action, "--config", str(config), "--node", "p1"]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        done = subprocess.run(
            [*command, "--json"], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        error_text: dict[str, Any] = json.loads(done.stdout)
        return error_text

    return run


def some_entries(folder: Path, last: int) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    subject = Journal(folder / "journal", "p1")
    subject.setCurrentTerm(4, "p2")
    for index in range(1, last + 1):
        subject.add(b"\x00command", index, 4)
    subject.sync()
    subject._destroy()


def test_previous_release_finds_and_changes_the_same_journal(
    settings: Settings, tmp_path: Path, previous: Callable[..., dict[str, Any]]
) -> None:
    member = settings.member("p1")
    some_entries(member.data_dir / "raft", last=5)
    start(member)
    assert previous("check", tmp_path / "fleet.yaml")["survey"]["last_index"] == 5

    held = data_dir.acquire(member)
    assert previous("check", tmp_path / "fleet.yaml")["running"] is True
    assert "in use by another supervisor" in previous("reset", tmp_path / "fleet.yaml")["error"]["message"]
    held.close()

    assert previous("reset", tmp_path / "fleet.yaml")["survey"]["rejoining"] is True
    start(member)
    assert journal_files.check(settings, "p1").survey.rejoining, "this release finds the mark"


def test_previous_release_starts_a_fresh_folder_of_this_one(
    settings: Settings, tmp_path: Path, previous: Callable[..., dict[str, Any]]
) -> None:
    start(settings.member("p1"))
    assert previous("repair", tmp_path / "fleet.yaml")["survey"]["verdict"] == "empty"
    assert not settings.member("p1").data_dir.joinpath("raft", "journal").exists()


def test_files_that_the_previous_release_has_replaced_are_taken(member: MemberSettings) -> None:
    fill(member.data_dir)
    start(member)
    newer = {"incarnation": b"1790000000009", "directory.json": b'{"revision": 2}'}
    for name, content in newer.items():
        fill(member.data_dir, {f"{name}.new": content})
        (member.data_dir / f"{name}.new").replace(member.data_dir / name)
    start(member)
    assert_migrated(member, {**FORMER, **newer})


def test_copy_made_through_the_links_is_set_aside(member: MemberSettings, tmp_path: Path) -> None:
    fill(member.data_dir)
    start(member)
    shutil.copytree(member.data_dir, tmp_path / "backup")
    shutil.rmtree(member.data_dir)
    shutil.copytree(tmp_path / "backup", member.data_dir)
    start(member)
    assert_migrated(member)
    (aside,) = member.data_dir.glob("raft.copy-*")
    assert (aside / "journal").read_bytes() == FORMER["raft/journal"]


@pytest.mark.parametrize("name", ["events.sqlite", "events.sqlite-journal"])
def test_copy_of_the_events_replaces_no_newer_ones(member: MemberSettings, name: str) -> None:
    """SQLite does not roll back newer events with an older journal."""
    fill(member.data_dir)
    start(member)
    if name == "events.sqlite":
        (member.data_dir / name).unlink()
    fill(member.data_dir, {name: b"older"})
    fill(member.private_dir, {"events.sqlite": b"newer events"})
    start(member)
    assert_migrated(member, {**FORMER, "events.sqlite": b"newer events"})
    assert not (member.private_dir / "events.sqlite-journal").exists()
    (aside,) = member.data_dir.glob(f"{name}.copy-*")
    assert aside.read_bytes() == b"older"


@pytest.mark.parametrize("lost", ["member", "member/raft"])
def test_voter_with_lost_journal_requires_a_mark(
    settings: Settings, member: MemberSettings, lost: str
) -> None:
    some_entries(member.data_dir / "raft", last=3)
    start(member)
    shutil.copytree(member.data_dir / lost, member.data_dir / "backup", symlinks=True)
    shutil.rmtree(member.data_dir / lost)
    error_text = refusal(member)
    assert (
        f"{member.data_dir / 'raft'} links to {member.private_dir / 'raft'}, which is missing" in error_text
    )
    assert "run `fleet journal reset`" in error_text
    found = journal_files.check(settings, "p1")
    assert (found.survey.verdict, found.advice) == (
        "corrupt",
        "Stop the member, and run `fleet journal reset`.",
    )
    assert "does not exist" in found.survey.refusal
    with pytest.raises(StartError, match="which is missing"):
        journal_files.repair(settings, "p1")

    shutil.rmtree(member.data_dir / lost, ignore_errors=True)
    (member.data_dir / "backup").rename(member.data_dir / lost)
    start(member)
    assert journal_files.check(settings, "p1").survey.last_index == 3


@pytest.mark.parametrize("start_over", [False, True])
def test_lost_journal_is_reset(settings: Settings, member: MemberSettings, start_over: bool) -> None:
    fill(member.data_dir)
    start(member)
    shutil.rmtree(member.private_dir / "raft")
    found = journal_files.reset(settings, "p1", start_over).survey
    assert (found.verdict, found.rejoining) == ("empty", not start_over)
    start(member)
    assert journal_files.check(settings, "p1").survey.rejoining is not start_over
    assert os.readlink(member.data_dir / "raft") == "member/raft"


def test_failed_reset_leaves_no_empty_journal(
    settings: Settings, member: MemberSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(member.data_dir)
    start(member)
    shutil.rmtree(member.private_dir / "raft")

    def write(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(survey, "write_mark", write)
        with pytest.raises(JournalError, match="No space left"):
            journal_files.reset(settings, "p1", start_over=False)
    assert "which is missing" in refusal(member)
    assert journal_files.reset(settings, "p1", start_over=False).survey.rejoining


def test_two_journals_that_differ_are_refused(member: MemberSettings) -> None:
    fill(member.data_dir)
    start(member)
    (member.data_dir / "raft").unlink()
    fill(member.data_dir, {"raft/journal": b"other entries", "raft/snapshot": b"state"})
    error_text = refusal(member)
    assert (
        f"{member.data_dir / 'raft'} and {member.private_dir / 'raft'} both contain Raft's files"
        in error_text
    )
    assert (member.private_dir / "raft" / "journal").read_bytes() == FORMER["raft/journal"]
    assert (member.data_dir / "raft" / "journal").read_bytes() == b"other entries"


def test_raft_folder_linked_elsewhere_is_refused(member: MemberSettings, tmp_path: Path) -> None:
    """If it were taken for a link of this release, a voter would start with an empty journal."""
    fill(tmp_path / "disk", {"journal": b"entries"})
    member.data_dir.mkdir()
    (member.data_dir / "raft").symlink_to(tmp_path / "disk")
    error_text = refusal(member)
    assert f"{member.data_dir / 'raft'} is a symbolic link" in error_text
    assert f"move its target to {member.private_dir / 'raft'}, or mount it there" in error_text


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EXDEV])
def test_raft_folder_on_its_own_file_system_is_refused(
    member: MemberSettings, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fill(member.data_dir)

    def rename(*_arguments: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "rename", rename)
    error_text = refusal(member)
    assert f"{member.data_dir / 'raft'} is on a separate file system; mount it at " in error_text


def test_journal_is_checked_where_it_is(settings: Settings) -> None:
    member = settings.member("p1")
    some_entries(member.data_dir / "raft", last=3)
    before = journal_files.check(settings, "p1")
    assert (before.folder, before.survey.last_index) == (member.data_dir / "raft", 3)
    start(member)
    after = journal_files.check(settings, "p1")
    assert (after.folder, after.survey.last_index) == (member.private_dir / "raft", 3)
