"""What a child of the supervisor is given, and what it owes in return: answers, and not to outlive it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NoReturn, TypeAlias

from pydantic import TypeAdapter

from fleet.config.secrets import find_secrets
from fleet.config.settings import CONTROL_SOCKET, MemberSettings, Settings
from fleet.core.model import BrokerId, ProxyId

Kind: TypeAlias = Literal["control", "worker"]

MODULES: Final[Mapping[Kind, str]] = {"control": "fleet.control", "worker": "fleet.proxy"}

PEER_FD: Final = "peer"
ADMIN_FD: Final = "admin"
CONTROL_FD: Final = "control"

_PR_SET_PDEATHSIG: Final = 1
_ORPHANED: Final = 70
_QUESTIONS_BYTES: Final = 64

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 32 << 20
_KEPT_AT_ONCE_BYTES: Final = 8 << 20
"""What is larger is the kernel's to give and to get back, each by itself."""
_ASKED_FOR_BYTES: Final = 1 << 20
"""At once, of the kernel."""

_IMPORT_PATH: Final = "PYTHONPATH"
_NOTIFY_SOCKET: Final = "NOTIFY_SOCKET"
"""Where systemd hears the supervisor. Source: sd_notify(3)"""
_WORKER_VARIABLES: Final = frozenset(
    {
        *("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "TMPDIR", "TZ", "TZDIR", "USER", "VIRTUAL_ENV"),
        *("GLIBC_TUNABLES", "LD_LIBRARY_PATH", "LD_PRELOAD"),
        *("HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS"),
        *("SSLKEYLOGFILE", "SSL_CERT_DIR", "SSL_CERT_FILE"),
    }
)
_WORKER_PREFIXES: Final = ("LC_", "MALLOC_", "OPENSSL_", "PYTHON", "UV_", "COVERAGE_", "FAKETIME")
"""Python, the C library, OpenSSL, libuv and what tests preload read these. The rest stays with control."""

_NEW_OBJECTS: Final = 50_000
"""Before the garbage collector looks at them; Python's own value is 700."""


@dataclass(frozen=True, slots=True)
class ListenerFd:
    """An inherited listening socket of the data plane.

    Args:
        broker_id: the identity that its port stands for; None for the bootstrap port.
    """

    listener: str
    broker_id: BrokerId | None
    fd: int


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """All that a child is told. It crosses ``exec`` as JSON in an inherited file, named by its descriptor.

    Args:
        settings: the whole fleet's, as the supervisor read them: a child that is started again does not see
            what has been done to the file meanwhile.
        proxy_id: which member this is.
        kind, index: which child of it; index counts the workers from 0, control has 0.
        incarnation: wall-clock milliseconds at which the supervisor started.
        parent_pid: the supervisor.
        heartbeat_fd: write a byte once the event loop turns, and for each byte that comes by the lifeline.
        lifeline_fd: a byte here asks for a heartbeat; end of file means that the supervisor is gone.
        fds: control's listening sockets: ``PEER_FD``, ``ADMIN_FD``, ``CONTROL_FD``.
        listeners: a worker's listening sockets.
        private_dir: where the member's files are. None where the supervisor is of release 0.2.0, and has
            started this child after the installed files were replaced: it has not moved the files yet.
    """

    settings: Settings
    proxy_id: ProxyId
    kind: Kind
    index: int
    incarnation: int
    parent_pid: int
    heartbeat_fd: int
    lifeline_fd: int
    fds: Mapping[str, int] = field(default_factory=dict)
    listeners: tuple[ListenerFd, ...] = ()
    private_dir: Path | None = None

    @property
    def name(self) -> str:
        return "control" if self.kind == "control" else f"worker-{self.index}"

    @property
    def member(self) -> MemberSettings:
        return self.settings.member(self.proxy_id)

    @property
    def folder(self) -> Path:
        """Where the member's files are."""
        return self.member.data_dir if self.private_dir is None else self.private_dir

    @property
    def control_socket(self) -> Path:
        """The Unix socket on which workers reach the control process."""
        return self.folder / CONTROL_SOCKET

    def encode(self) -> bytes:
        return _SPEC.dump_json(self)

    @staticmethod
    def decode(data: bytes) -> ChildSpec:
        """Undo ``encode``."""
        return _SPEC.validate_json(data)


_SPEC: Final[TypeAdapter[ChildSpec]] = TypeAdapter(ChildSpec)


def spec_from_argv(argv: Sequence[str]) -> ChildSpec:
    """What the supervisor says to this child; the last argument is the descriptor of the file with it."""
    fd = int(argv[-1])
    try:
        return ChildSpec.decode(os.pread(fd, os.fstat(fd).st_size, 0))
    finally:
        os.close(fd)


def python_command(module: str) -> tuple[str, ...]:
    """This interpreter, which runs a module and imports nothing from the working directory."""
    return (sys.executable, "-P", "-m", module)


def with_absolute_import_path(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without those entries of ``PYTHONPATH`` that depend on the working directory."""
    result = dict(environ)
    entries = result.pop(_IMPORT_PATH, "").split(os.pathsep)
    absolute = [entry for entry in entries if Path(entry).is_absolute()]
    if absolute:
        result[_IMPORT_PATH] = os.pathsep.join(absolute)
    return result


def child_environment(kind: Kind, settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child.

    Control reads the secrets that the configuration names. A worker handles the bytes of strangers and needs
    no secret, so it gets only variables that are known to hold none.

    Args:
        environ: the supervisor's environment.
    """
    inherited = with_absolute_import_path(environ)
    inherited.pop(_NOTIFY_SOCKET, None)
    if kind == "control":
        return inherited
    secret_names = {secret.env for secret in find_secrets(settings)}
    return {
        name: value
        for name, value in inherited.items()
        if (name in _WORKER_VARIABLES or name.startswith(_WORKER_PREFIXES)) and name not in secret_names
    }


def freeze_garbage() -> None:
    """Have the garbage collector pass over all that is loaded by now, and stays: that takes it 60 ms."""
    gc.collect()
    gc.freeze()


def collect_rarely() -> None:
    """Have the garbage collector look for more not before there is much that is new.

    For processes whose objects end with their last reference, as connections do: to look through all of
    them again and again while they come is a tenth of what connecting takes.
    """
    gc.set_threshold(_NEW_OBJECTS)


def prepare_for_connections() -> None:
    """What a process of the data plane does about its memory once all is loaded."""
    keep_freed_memory()
    freeze_garbage()
    collect_rarely()


def keep_freed_memory() -> None:
    """Have the C library keep what is freed, up to a limit, and not give it back to the kernel at once.

    What arrives is copied into memory that is new for each read, up to 256 KiB. Given back, it comes page by
    page, and cleared: two fifths of the CPU time of a gigabyte that a bare forwarder passes on.

    Source: mallopt(3); of other C libraries than glibc there is nothing to set.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_AT_ONCE_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_TOP_PAD, _ASKED_FOR_BYTES)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the supervisor dies; exit at once where it is dead already.

    Source: prctl(2), PR_SET_PDEATHSIG; on other systems than Linux the lifeline alone does it.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        _exit_orphaned()


class Heart:
    """Tells the supervisor, whenever it asks, that this event loop turns; in the end, that it ends.

    It is told once unasked, in the next turn of the loop. Where the supervisor is gone, this process exits.

    Args:
        heartbeat_fd: the pipe to the supervisor; it is closed in the end.
        lifeline_fd: the pipe from it.
    """

    def __init__(self, heartbeat_fd: int, lifeline_fd: int) -> None:
        for fd in (heartbeat_fd, lifeline_fd):
            os.set_blocking(fd, False)
        self._fd = heartbeat_fd
        self._lifeline_fd = lifeline_fd
        loop = asyncio.get_running_loop()
        self._first = loop.call_soon(self._beat)
        loop.add_reader(lifeline_fd, self._on_lifeline)

    def stop(self) -> None:
        """No more answers; a supervisor that is gone is noticed still."""
        self._first.cancel()
        os.close(self._fd)
        self._fd = -1

    def _on_lifeline(self) -> None:
        if not os.read(self._lifeline_fd, _QUESTIONS_BYTES):
            _exit_orphaned()
        if self._fd >= 0:
            self._beat()

    def _beat(self) -> None:
        try:
            os.write(self._fd, b".")
        except BlockingIOError:
            pass  # The supervisor is paused and the pipe is full: it will find more than enough there.
        except BrokenPipeError:
            _exit_orphaned()


def _exit_orphaned() -> NoReturn:
    os._exit(_ORPHANED)
