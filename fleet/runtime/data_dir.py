"""A member's data directory: the private folder in it, the locks, and the files of release 0.2.0.

    data_dir/                  may be the root of a volume that Kubernetes shares by `fsGroup`
        member/                mode 0700, of the member's user: all that the member writes
            lock, incarnation, control.sock, directory.json, events.sqlite, raft/
        lock                   taken as well, because release 0.2.0 takes no other
        raft -> member/raft    a link for each file that release 0.2.0 looks for, for the way back to it

Another user who could write here could have a voter forget its votes, or the member write over a file of its
own user. So everything must belong to the member's user, nobody else may write to it, and no symbolic link is
followed. ``docs/adr/0036-private-folder.md`` has the reasons.
"""

from __future__ import annotations

import errno
import fcntl
import filecmp
import logging
import os
import pwd
import shlex
import stat
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleet.config.settings import PRIVATE_FOLDER, MemberSettings
from fleet.core.errors import StartError

log = logging.getLogger(__name__)

LOCK_WAIT_S: Final = 3.0
"""How long the children of a supervisor that was killed may take to die."""

LOCK: Final = "lock"
RAFT: Final = "raft"
_SOCKET: Final = "control.sock"
_JOURNAL_OF_EVENTS: Final = "events.sqlite-journal"
_EVENTS: Final = "events.sqlite"
_MOVED: Final = (RAFT, "incarnation", "directory.json", _JOURNAL_OF_EVENTS, _EVENTS)
"""What release 0.2.0 has in the data directory itself. SQLite's journal goes before its database."""

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: the open of a named pipe would wait for its other end."""
_OTHERS: Final = 0o077


class _Refused(Exception):
    """The data directory is not safe to use; says the path, the value, the rule and the fix."""


@dataclass(frozen=True, slots=True)
class User:
    """The user that a member runs as."""

    uid: int
    gids: frozenset[int]

    @staticmethod
    def current() -> User:
        return User(os.geteuid(), frozenset((os.getegid(), *os.getgroups())))


@dataclass(frozen=True, slots=True)
class DataDirLock:
    """A data directory that is this member's alone, for as long as the descriptors are open anywhere."""

    fds: tuple[int, ...]

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class _Folder:
    """An open folder: what is looked up through its descriptor cannot be swapped for another folder."""

    path: Path
    fd: int

    def find(self, name: str) -> os.stat_result | None:
        """What has this name, a symbolic link itself included; None where nothing has."""
        with suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        return None

    def points_inside(self, name: str) -> bool:
        """Whether a symbolic link is one of those that this module makes."""
        return os.readlink(name, dir_fd=self.fd) == f"{PRIVATE_FOLDER}/{name}"


def acquire(member: MemberSettings, for_reset: bool = False) -> DataDirLock:
    """Make the data directory this member's alone, and its files safe to use; bring them to this layout.

    The children inherit the locks: while one of them outlives a supervisor that was killed, its ports are
    taken.

    Args:
        for_reset: Raft's folder may be lost, and is not made: the caller makes it, marked.

    Raises:
        StartError: it cannot be written, belongs to another user, others may write there, another
            supervisor works in it, or Raft's folder is lost.
    """
    field = f"members.{member.proxy_id}.data_dir"
    try:
        return _acquire(member.data_dir, User.current(), for_reset)
    except _Refused as refusal:
        raise StartError(f"{field}: {refusal}") from None
    except OSError as error:
        raise StartError(
            f"{field}: {member.data_dir} cannot be written ({error.strerror}); "
            "make it a directory of the user that runs this member, or configure another one"
        ) from error


def check(member: MemberSettings) -> None:
    """Look, and change nothing: would others be able to write there? Whoever owns it is taken for its user.

    Raises: StartError
    """
    path = member.data_dir
    with suppress(OSError):  # it is not there yet, or not for this user to look into
        info = path.stat()
        if not stat.S_ISDIR(info.st_mode):
            return
        try:
            check_root(path, info, User(info.st_uid, frozenset({info.st_gid})))
        except _Refused as refusal:
            raise StartError(f"members.{member.proxy_id}.data_dir: {refusal}") from None


def is_locked(member: MemberSettings) -> bool:
    """Whether a supervisor of this release or of 0.2.0, or a child of one, works in the data directory."""
    return any(_is_locked(folder / LOCK) for folder in (member.data_dir, member.private_dir))


def raft_folder(member: MemberSettings) -> Path:
    """Where Raft's files are now: before the first start of this release in the data directory itself.

    For reading only: whatever changes them takes the lock first, and with it they are in the private folder.
    """
    folder, former = member.private_dir / RAFT, member.data_dir / RAFT
    # os.path: a folder that this user may not look into is for the reader to report.
    return former if os.path.isdir(former) and not os.path.isdir(folder) else folder


def lacks_journal(member: MemberSettings) -> bool:
    """Whether there is the link to Raft's folder and no folder, so that the member does not start."""
    try:
        if os.readlink(member.data_dir / RAFT) != f"{PRIVATE_FOLDER}/{RAFT}":
            return False
    except OSError:  # no link, or nothing at all
        return False
    try:
        os.lstat(member.private_dir / RAFT)
    except FileNotFoundError:
        return True
    except OSError:  # not to be looked into: the reader of the files reports it
        pass
    return False


def _acquire(path: Path, user: User, for_reset: bool = False) -> DataDirLock:
    with ExitStack() as folders, ExitStack() as locks:

        def opened(at: Path, fd: int) -> _Folder:
            folders.callback(os.close, fd)
            return _Folder(at, fd)

        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Where the data directory itself is a symbolic link, the operator has configured it so.
        root = opened(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        group = check_root(path, os.fstat(root.fd), user)
        # First the lock that 0.2.0 takes, so that nothing is moved while 0.2.0 runs.
        fds = [_lock(root, user, group, locks)]
        private = opened(path / PRIVATE_FOLDER, _open_private(root, user, group))
        fds.append(_lock(private, user, group, locks))
        _migrate(root, private, user, for_reset)
        _secure_tree(private, user, group)
        locks.pop_all()
        return DataDirLock(tuple(fds))


# ---- owners and modes


def check_root(path: Path, info: os.stat_result, user: User) -> int | None:
    """Refuse a data directory in which another user could replace the private folder.

    Returns: the group that may write there because of Kubernetes' ``fsGroup``; None where there is none.
    Raises:  _Refused
    Source:  kubernetes/pkg/volume/volume_linux.go: rwMask 0660, execMask 0110, setgid on folders. The root of
             a volume stays root's, the group is a supplementary one of the container's processes.
    """
    if info.st_uid not in (0, user.uid):
        raise _wrong_owner(path, info, user)
    shared = bool(info.st_mode & stat.S_ISGID) and info.st_gid in user.gids
    group = info.st_gid if shared else None
    # With the sticky bit, as in /tmp, others can add files and can neither rename nor remove the member's.
    if not info.st_mode & stat.S_ISVTX:
        _check_writers(path, info, group, _fix_of_root(path, info, user, group))
    return group


def _fix_of_root(path: Path, info: os.stat_result, user: User, group: int | None) -> str:
    """What keeps others out of a data directory, lets the member write there, and loses no journal."""
    quoted = shlex.quote(str(path))
    if info.st_uid == user.uid:
        fix = f"run: chmod go-w {quoted}"
    elif group is not None:
        fix = f"run as root: chmod o-w {quoted}"  # the group is how the member writes there
    else:
        fix = f"run as root: chown {_user_name(user.uid)} {quoted} && chmod go-w {quoted}"
    if not any(os.path.lexists(path / name) for name in (PRIVATE_FOLDER, RAFT)):
        return f"{fix}, or use a folder below it, which the member makes"
    names = ", ".join((PRIVATE_FOLDER, *_MOVED))
    return (
        f"{fix}. Or stop the member, make a folder below it with mode 0700, move there what there is of "
        f"{names}, and configure that folder: in an empty one this member would begin without its journal"
    )


def check_entry(path: Path, info: os.stat_result, user: User, group: int | None) -> None:
    """Refuse what another user owns or may write to, and symbolic links.

    Args:   group: may write here because of ``fsGroup``; its permission is taken away afterwards.
    Raises: _Refused
    """
    if stat.S_ISLNK(info.st_mode):
        raise _Refused(
            f"{path} is a symbolic link, and none is followed here; remove it, or put there what it leads to"
        )
    if info.st_uid != user.uid:
        raise _wrong_owner(path, info, user)
    _check_writers(path, info, group, f"run: chmod go-w {shlex.quote(str(path))}")


def _check_writers(path: Path, info: os.stat_result, group: int | None, fix: str) -> None:
    mode = stat.S_IMODE(info.st_mode)
    others = bool(mode & stat.S_IWOTH)
    if not others and (not mode & stat.S_IWGRP or info.st_gid == group):
        return
    who = "every user" if others else f"group {info.st_gid}"
    raise _Refused(
        f"{path} has mode {mode:04o}, so {who} may write there, and only the member's user may; {fix}"
    )


def _wrong_owner(path: Path, info: os.stat_result, user: User) -> _Refused:
    mine, owner = _user_name(user.uid), _user_name(info.st_uid)
    return _Refused(
        f"{path} belongs to user {owner}, and this process runs as {mine}, to whom it must belong; "
        f"run this as {owner}, or run: chown -R {mine} {shlex.quote(str(path))}"
    )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _restrict(fd: int, path: Path) -> bool:
    """Take the permissions of all others away; whether there were any."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if not mode & _OTHERS:
        return False
    os.fchmod(fd, mode & stat.S_IRWXU)  # without setgid, which systemd's RestrictSUIDSGID= lets nobody set
    left = stat.S_IMODE(os.fstat(fd).st_mode)
    if left & _OTHERS:
        raise _Refused(
            f"{path} keeps mode {left:04o}: its file system ignores chmod, and only the member's user may "
            "have access; put data_dir on another file system, or mount this one with mode 0700"
        )
    return True


def _secure_tree(private: _Folder, user: User, group: int | None) -> None:
    """Check everything in the private folder, and take from others what permission they have."""
    restricted = 0
    for below, folders, files, fd in os.fwalk(".", onerror=_raise, dir_fd=private.fd):
        for name in (*folders, *files):
            path = private.path / below / name
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            check_entry(path, info, user, group)
            # Others are kept out of the rest (sockets) by the mode of the folder.
            if info.st_mode & _OTHERS and (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
                entry = os.open(name, os.O_RDONLY | _FILE_FLAGS, dir_fd=fd)
                try:
                    restricted += _restrict(entry, path)
                finally:
                    os.close(entry)
    if restricted:
        log.warning("%s: other users had access to %d files; now they have none", private.path, restricted)


def _raise(error: OSError) -> None:
    raise error


def _open_private(root: _Folder, user: User, group: int | None) -> int:
    """Make the private folder where it is missing, and open it."""
    path, info = root.path / PRIVATE_FOLDER, root.find(PRIVATE_FOLDER)
    if info is None:
        os.mkdir(PRIVATE_FOLDER, 0o700, dir_fd=root.fd)
        os.fsync(root.fd)
    else:
        check_entry(path, info, user, group)
    fd = os.open(PRIVATE_FOLDER, _FOLDER_FLAGS, dir_fd=root.fd)
    try:
        check_entry(path, os.fstat(fd), user, group)
        if _restrict(fd, path):
            log.warning("%s: other users had access to it; now they have none", path)
    except BaseException:
        os.close(fd)
        raise
    return fd


# ---- locks


def _lock(folder: _Folder, user: User, group: int | None, locks: ExitStack) -> int:
    """Take the lock in a folder, and note in it who has it."""
    path, info = folder.path / LOCK, folder.find(LOCK)
    if info is not None:
        check_entry(path, info, user, group)
    fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | _FILE_FLAGS, 0o600, dir_fd=folder.fd)
    locks.callback(os.close, fd)
    info = os.fstat(fd)
    check_entry(path, info, user, group)
    if not stat.S_ISREG(info.st_mode):
        raise _Refused(f"{path} is not a regular file; remove it")
    _restrict(fd, path)
    deadline = time.monotonic() + LOCK_WAIT_S
    while not _try_lock(fd):
        if time.monotonic() > deadline:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            raise _Refused(
                f"{folder.path} is in use by another supervisor "
                f"(process {holder if holder.isdecimal() else 'unknown'}); stop that one first, or give this "
                "member its own"
            )
        time.sleep(0.02)
    if info.st_nlink == 1:  # else it may be a hard link to a file with contents
        with suppress(OSError):  # the note is for people, and the disk may be full
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | _FILE_FLAGS)
    except OSError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)


# ---- files of release 0.2.0


def _migrate(root: _Folder, private: _Folder, user: User, for_reset: bool) -> None:
    """Move what release 0.2.0 has written into the private folder, and leave links for the way back.

    An interrupted migration goes on at the next start: each step is one rename or one link. Whatever 0.2.0
    has written after a way back is newer than what it found, and is taken.
    """
    changed = False
    for name in _MOVED:
        info = root.find(name)
        if info is not None and stat.S_ISLNK(info.st_mode):
            if not root.points_inside(name):
                raise _Refused(
                    f"{root.path / name} is a symbolic link, and none is followed here; "
                    f"put what it leads to at {private.path / name}, or mount it there, and remove the link"
                )
            # The folder is there before the link is made, so whoever finds the link alone has lost a journal.
            if name == RAFT and private.find(RAFT) is None and not for_reset:
                raise _Refused(
                    f"{root.path / RAFT} leads to {private.path / RAFT}, and that is missing; put it back as "
                    "it was when the member stopped. Where it is lost, run `fleet journal reset`: without, "
                    "a voter would forget its votes"
                )
            continue
        elif info is not None:
            if info.st_uid != user.uid:
                raise _wrong_owner(root.path / name, info, user)
            if name in (_JOURNAL_OF_EVENTS, _EVENTS) and private.find(_EVENTS) is not None:
                # 0.2.0 writes through the link, so this is an older copy, or what 0.2.0 began when it found
                # the database damaged.
                _set_aside(root, private, name)
            else:
                _move(root, private, name)
            changed = True
        if name == RAFT and private.find(RAFT) is None:
            os.mkdir(RAFT, 0o700, dir_fd=private.fd)  # 0.2.0 does not start with a link to nothing
            os.fsync(private.fd)  # a power cut must not leave the link alone
        if name != _JOURNAL_OF_EVENTS and private.find(name) is not None:
            os.symlink(f"{PRIVATE_FOLDER}/{name}", name, dir_fd=root.fd)
            changed = True
    info = root.find(_SOCKET)
    if info is not None and stat.S_ISSOCK(info.st_mode) and info.st_uid == user.uid:
        os.unlink(_SOCKET, dir_fd=root.fd)
    if changed:
        os.fsync(private.fd)
        os.fsync(root.fd)


def _move(root: _Folder, private: _Folder, name: str) -> None:
    try:
        os.rename(name, name, src_dir_fd=root.fd, dst_dir_fd=private.fd)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EBUSY):
            raise _Refused(
                f"{root.path / name} is on a file system of its own; mount that at {private.path / name}"
            ) from None
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        _expect_copy(root.path / name, private.path / name)
        _set_aside(root, private, name)
    else:
        log.info("moved %s to %s", root.path / name, private.path / name)


def _expect_copy(former: Path, own: Path) -> None:
    """Refuse a second folder of Raft's that differs from the private folder's.

    Raises: _Refused: a voter that goes on with the older one forgets what it has promised
    """
    if not _is_same(former, own):
        raise _Refused(
            f"{former} and {own} both hold Raft's files, and they differ; "
            "move the older one away. If you do not know which one is older, move both away, and run "
            "`fleet journal reset`"
        )


def _set_aside(root: _Folder, private: _Folder, name: str) -> None:
    """Rename what is in the private folder already: copied by a program that follows links."""
    aside = f"{name}.copy-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    os.rename(name, aside, src_dir_fd=root.fd, dst_dir_fd=root.fd)
    log.warning("%s: a copy of %s; set aside as %s", root.path / name, private.path / name, aside)


def _is_same(one: Path, two: Path) -> bool:
    names = os.listdir(one)
    if sorted(names) != sorted(os.listdir(two)):
        return False
    same, _, _ = filecmp.cmpfiles(one, two, names, shallow=False)
    return len(same) == len(names)
