"""The data directory of a member: its private folder, its locks, and the migration of files of release 0.2.0.

    data_dir/                  may be the root of a volume that Kubernetes shares by `fsGroup`
        member/                mode 0700, owned by the member's user: all files that the member writes
            lock, incarnation, control.sock, directory.json, events.sqlite, raft/
        lock                   also taken, because release 0.2.0 takes only this lock
        raft -> member/raft    a link for each file of release 0.2.0, so that a downgrade finds its files

Another user with write access could make a voter forget its votes, or make the member overwrite a file of its
own user. Therefore everything must belong to the member's user, other users must not have write access, and
no symbolic link is followed. ``docs/adr/0036-private-folder.md`` has the reasons.
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
"""How long the children of a killed supervisor may take to die."""

LOCK: Final = "lock"
RAFT: Final = "raft"
_SOCKET: Final = "control.sock"
_JOURNAL_OF_EVENTS: Final = "events.sqlite-journal"
_EVENTS: Final = "events.sqlite"
_MOVED_NAMES: Final = (RAFT, "incarnation", "directory.json", _JOURNAL_OF_EVENTS, _EVENTS)
"""Files that release 0.2.0 has in the data directory itself. SQLite's journal moves before its database."""

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: otherwise opening a named pipe waits for its other end."""
_OTHERS_MASK: Final = 0o077


class Refusal(Exception):
    """The data directory is not safe to use. The text has the path, the value, the rule and the fix."""


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
    """An exclusive lock of a data directory, held as long as any process has the descriptors open."""

    fds: tuple[int, ...]

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class _Folder:
    """An open folder. Look-ups through its descriptor are safe if another user replaces the path."""

    path: Path
    fd: int

    def find(self, name: str) -> os.stat_result | None:
        """The status of an entry, without following a symbolic link; None if there is no such entry."""
        with suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        return None

    def points_inside(self, name: str) -> bool:
        """Whether a symbolic link is one that this module creates."""
        return os.readlink(name, dir_fd=self.fd) == f"{PRIVATE_FOLDER}/{name}"


def acquire(member: MemberSettings, for_reset: bool = False) -> DataDirLock:
    """Lock the data directory, secure its files, and migrate them to this layout.

    The children inherit the locks. While a child survives a killed supervisor, its ports are in use.

    Args:
        for_reset: Raft's folder may be missing and is not created: the caller creates it, with a mark.

    Raises:
        StartError: the data directory cannot be written, belongs to another user, is writable by others, is
            in use by another supervisor, or Raft's folder is missing.
    """
    field = f"members.{member.proxy_id}.data_dir"
    try:
        return _acquire(member.data_dir, User.current(), for_reset)
    except Refusal as refusal:
        raise StartError(f"{field}: {refusal}") from None
    except OSError as error:
        raise StartError(
            f"{field}: {member.data_dir} cannot be written ({str(error.strerror).lower()}); "
            "use a directory that the user of this member can write"
        ) from error


def check(member: MemberSettings) -> None:
    """Check the data directory without changing it, as its owner would on start.

    Raises: StartError: other users could write to the data directory
    """
    path = member.data_dir
    with suppress(OSError):  # the directory does not exist yet, or this user may not read it
        info = path.stat()
        if not stat.S_ISDIR(info.st_mode):
            return
        try:
            check_root(path, info, User(info.st_uid, frozenset({info.st_gid})))
        except Refusal as refusal:
            raise StartError(f"members.{member.proxy_id}.data_dir: {refusal}") from None


def is_locked(member: MemberSettings) -> bool:
    """Whether a supervisor of this release or of 0.2.0, or one of its children, uses the data directory."""
    return any(_is_locked(folder / LOCK) for folder in (member.data_dir, member.private_dir))


def raft_folder(member: MemberSettings) -> Path:
    """The current folder of Raft's files: in the data directory itself until this release first starts.

    For reading only. A writer takes the lock first, which moves the files to the private folder.
    """
    folder, former = member.private_dir / RAFT, member.data_dir / RAFT
    # os.path: the reader of the files reports a folder that this user may not read.
    return former if os.path.isdir(former) and not os.path.isdir(folder) else folder


def lacks_journal(member: MemberSettings) -> bool:
    """Whether the link to Raft's folder exists without the folder, so that the member does not start."""
    try:
        if os.readlink(member.data_dir / RAFT) != f"{PRIVATE_FOLDER}/{RAFT}":
            return False
    except OSError:  # not a link, or no such entry
        return False
    try:
        os.lstat(member.private_dir / RAFT)
    except FileNotFoundError:
        return True
    except OSError:  # unreadable: the reader of the files reports it
        pass
    return False


def _acquire(path: Path, user: User, for_reset: bool = False) -> DataDirLock:
    with ExitStack() as folders, ExitStack() as locks:

        def opened(at: Path, fd: int) -> _Folder:
            folders.callback(os.close, fd)
            return _Folder(at, fd)

        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The data directory itself may be a symbolic link, because the operator has configured its path.
        root = opened(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        group = check_root(path, os.fstat(root.fd), user)
        # First take the lock of release 0.2.0, so that no file is moved while 0.2.0 runs.
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

    Returns: the group that has write access because of Kubernetes' ``fsGroup``; None if there is none.
    Raises:  Refusal: another user could replace the private folder
    Source:  kubernetes/pkg/volume/volume_linux.go: rwMask 0660, execMask 0110, setgid on folders. The root
             user keeps the root of a volume; the group is a supplementary group of the container's processes.
    """
    if info.st_uid not in (0, user.uid):
        raise _wrong_owner(path, info, user)
    shared = bool(info.st_mode & stat.S_ISGID) and info.st_gid in user.gids
    group = info.st_gid if shared else None
    # With the sticky bit, as in /tmp, others can add files but cannot rename or remove those of the member.
    if not info.st_mode & stat.S_ISVTX:
        _check_writers(path, info, group, _fix_of_root(path, info, user, group))
    return group


def _fix_of_root(path: Path, info: os.stat_result, user: User, group: int | None) -> str:
    """The commands that secure a data directory, keep it writable for the member, and lose no journal."""
    quoted = shlex.quote(str(path))
    if info.st_uid == user.uid:
        fix = f"run: chmod go-w {quoted}"
    elif group is not None:
        fix = f"run as root: chmod o-w {quoted}"  # the member needs the write access of the group
    else:
        fix = f"run as root: chown {user_name(user.uid)} {quoted} && chmod go-w {quoted}"
    if not any(os.path.lexists(path / name) for name in (PRIVATE_FOLDER, RAFT)):
        return f"{fix}, or configure a folder below it, which the member creates"
    names = ", ".join((PRIVATE_FOLDER, *_MOVED_NAMES))
    return (
        f"{fix}. Or stop the member, create a folder below it with mode 0700, move to it those of {names} "
        "that exist, and configure it (in an empty folder this member would start without its journal)"
    )


def check_entry(path: Path, info: os.stat_result, user: User, group: int | None) -> None:
    """Refuse an entry that another user owns or may write to, and symbolic links.

    Args:   group: has write access because of ``fsGroup``; its permission is removed later.
    Raises: Refusal: the entry is not safe to use
    """
    if stat.S_ISLNK(info.st_mode):
        raise Refusal(
            f"{path} is a symbolic link, which is not followed; remove it, or replace it by its target"
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
    raise Refusal(
        f"{path} has mode {mode:04o}, so {who} may write there, but only the member's user may; {fix}"
    )


def _wrong_owner(path: Path, info: os.stat_result, user: User) -> Refusal:
    current, owner = user_name(user.uid), user_name(info.st_uid)
    return Refusal(
        f"{path} belongs to user {owner}, but must belong to {current}, the user of this process; "
        f"run this as {owner}, or run: chown -R {current} {shlex.quote(str(path))}"
    )


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _restrict(fd: int, path: Path) -> bool:
    """Remove the permissions of all other users. Returns whether there were any."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if not mode & _OTHERS_MASK:
        return False
    os.fchmod(fd, mode & stat.S_IRWXU)  # without setgid, which systemd's RestrictSUIDSGID= does not allow
    left = stat.S_IMODE(os.fstat(fd).st_mode)
    if left & _OTHERS_MASK:
        raise Refusal(
            f"{path} keeps mode {left:04o}, because its file system ignores chmod, but only the member's "
            "user may have access; put data_dir on another file system, or mount this one with mode 0700"
        )
    return True


def _secure_tree(private: _Folder, user: User, group: int | None) -> None:
    """Check everything in the private folder, and remove the permissions of other users."""
    restricted = 0
    for below, folders, files, fd in os.fwalk(".", onerror=_raise, dir_fd=private.fd):
        for name in (*folders, *files):
            path = private.path / below / name
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            check_entry(path, info, user, group)
            # The mode of the folder protects all other entries (sockets).
            if info.st_mode & _OTHERS_MASK and (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
                entry = os.open(name, os.O_RDONLY | _FILE_FLAGS, dir_fd=fd)
                try:
                    restricted += _restrict(entry, path)
                finally:
                    os.close(entry)
    if restricted:
        log.warning("removed access of other users: path=%s files=%d", private.path, restricted)


def _raise(error: OSError) -> None:
    raise error


def _open_private(root: _Folder, user: User, group: int | None) -> int:
    """Open the private folder; create it first if it does not exist."""
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
            log.warning("removed access of other users: path=%s", path)
    except BaseException:
        os.close(fd)
        raise
    return fd


# ---- locks


def _lock(folder: _Folder, user: User, group: int | None, locks: ExitStack) -> int:
    """Take the lock in a folder, and write the process id into it."""
    path, info = folder.path / LOCK, folder.find(LOCK)
    if info is not None:
        check_entry(path, info, user, group)
    fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | _FILE_FLAGS, 0o600, dir_fd=folder.fd)
    locks.callback(os.close, fd)
    info = os.fstat(fd)
    check_entry(path, info, user, group)
    if not stat.S_ISREG(info.st_mode):
        raise Refusal(f"{path} is not a regular file; remove it")
    _restrict(fd, path)
    deadline = time.monotonic() + LOCK_WAIT_S
    while not _try_lock(fd):
        if time.monotonic() > deadline:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            raise Refusal(
                f"{folder.path} is in use by another supervisor "
                f"(process {holder if holder.isdecimal() else 'unknown'}); stop that supervisor first, or "
                "configure a separate data_dir for this member"
            )
        time.sleep(0.02)
    if info.st_nlink == 1:  # else it may be a hard link to a file with contents
        with suppress(OSError):  # the process id is only for operators, and the disk may be full
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
    """Move the files of release 0.2.0 into the private folder, and create links for a downgrade.

    An interrupted migration continues at the next start: each step is one rename or one link. Files that
    0.2.0 writes after a downgrade are newer than the files that it found, and are moved.
    """
    changed = False
    for name in _MOVED_NAMES:
        info = root.find(name)
        if info is not None and stat.S_ISLNK(info.st_mode):
            if not root.points_inside(name):
                raise Refusal(
                    f"{root.path / name} is a symbolic link, which is not followed; "
                    f"move its target to {private.path / name}, or mount it there, and remove the link"
                )
            # The folder is created before the link. A link without the folder means that a journal is lost.
            if name == RAFT and private.find(RAFT) is None and not for_reset:
                raise Refusal(
                    f"{root.path / RAFT} links to {private.path / RAFT}, which is missing; restore this "
                    "folder as it was when the member stopped. If it is lost, run `fleet journal reset`, "
                    "because otherwise a voter would forget its votes"
                )
            continue
        elif info is not None:
            if info.st_uid != user.uid:
                raise _wrong_owner(root.path / name, info, user)
            if name in (_JOURNAL_OF_EVENTS, _EVENTS) and private.find(_EVENTS) is not None:
                # 0.2.0 writes through the link. This file is an older copy, or a new database that 0.2.0
                # created because the old one was damaged.
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
            raise Refusal(
                f"{root.path / name} is on a separate file system; mount it at {private.path / name}"
            ) from None
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        _expect_copy(root.path / name, private.path / name)
        _set_aside(root, private, name)
    else:
        log.info("moved a file of release 0.2.0: from=%s to=%s", root.path / name, private.path / name)


def _expect_copy(former: Path, own: Path) -> None:
    """Refuse a second Raft folder that differs from the one in the private folder.

    Raises: Refusal: the folders differ, and a voter that uses the older one forgets its promises
    """
    if not _have_same_files(former, own):
        raise Refusal(
            f"{former} and {own} both contain Raft's files, but they differ; "
            "move the older folder away. If you do not know which one is older, move both away and run "
            "`fleet journal reset`"
        )


def _set_aside(root: _Folder, private: _Folder, name: str) -> None:
    """Rename an entry that the private folder already has: a program that follows links has copied it."""
    aside = f"{name}.copy-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    os.rename(name, aside, src_dir_fd=root.fd, dst_dir_fd=root.fd)
    log.warning(
        "set a copy aside: path=%s copy_of=%s new_name=%s", root.path / name, private.path / name, aside
    )


def _have_same_files(former: Path, own: Path) -> bool:
    """Whether two folders have the same files with the same content."""
    names = os.listdir(former)
    if sorted(names) != sorted(os.listdir(own)):
        return False
    same, _, _ = filecmp.cmpfiles(former, own, names, shallow=False)
    return len(same) == len(names)
