"""Child processes of the supervisor: their specification, their environment, and their heartbeats."""

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
_ORPHAN_EXIT_CODE: Final = 70
_PING_READ_BYTES: Final = 64

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD_BYTES: Final = 32 << 20
_MMAP_THRESHOLD_BYTES: Final = 8 << 20
"""Larger allocations are mapped and returned to the kernel one by one."""
_TOP_PAD_BYTES: Final = 1 << 20
"""How much more memory the C library requests from the kernel at a time."""

_IMPORT_PATH: Final = "PYTHONPATH"
_NOTIFY_SOCKET: Final = "NOTIFY_SOCKET"
"""The socket on which systemd receives messages of the supervisor. Source: sd_notify(3)"""
_WORKER_VARIABLES: Final = frozenset(
    {
        *("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "TMPDIR", "TZ", "TZDIR", "USER", "VIRTUAL_ENV"),
        *("GLIBC_TUNABLES", "LD_LIBRARY_PATH", "LD_PRELOAD"),
        *("HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS"),
        *("SSLKEYLOGFILE", "SSL_CERT_DIR", "SSL_CERT_FILE"),
    }
)
_WORKER_PREFIXES: Final = ("LC_", "MALLOC_", "OPENSSL_", "PYTHON", "UV_", "COVERAGE_", "FAKETIME")
"""Variables of Python, the C library, OpenSSL, libuv and of tools that tests preload. Only control gets the
rest."""

_GC_THRESHOLD_OBJECTS: Final = 50_000
"""New objects before the garbage collector runs; Python's default is 700."""


@dataclass(frozen=True, slots=True)
class ListenerFd:
    """An inherited listening socket of the data plane.

    Args:
        broker_id: the identity of its port; None for the bootstrap port.
    """

    listener: str
    broker_id: BrokerId | None
    fd: int


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """The specification of a child. It is passed through ``exec`` as JSON in an inherited file descriptor.

    Args:
        settings: of the whole fleet, as the supervisor read them. A restarted child does not see later
            changes of the file.
        proxy_id: the member.
        kind, index: the child of the member; index counts the workers from 0, control has 0.
        incarnation: wall-clock milliseconds at which the supervisor started.
        parent_pid: the process id of the supervisor.
        heartbeat_fd: write a byte once the event loop runs, and for each byte that arrives on the lifeline.
        lifeline_fd: a byte requests a heartbeat; end of file means that the supervisor is dead.
        fds: the listening sockets of control: ``PEER_FD``, ``ADMIN_FD``, ``CONTROL_FD``.
        listeners: the listening sockets of a worker.
        private_dir: the folder of the member's files. None if a supervisor of release 0.2.0 has started this
            child after an upgrade of the installed files: the member's files are not moved yet.
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
        """The folder of the member's files."""
        return self.member.data_dir if self.private_dir is None else self.private_dir

    @property
    def control_socket(self) -> Path:
        """The Unix socket on which the workers reach the control process."""
        return self.folder / CONTROL_SOCKET

    def encode(self) -> bytes:
        return _SPEC.dump_json(self)

    @staticmethod
    def decode(data: bytes) -> ChildSpec:
        """Undo ``encode``."""
        return _SPEC.validate_json(data)


_SPEC: Final[TypeAdapter[ChildSpec]] = TypeAdapter(ChildSpec)


def spec_from_argv(argv: Sequence[str]) -> ChildSpec:
    """The specification of this child. The last argument is the descriptor of the file that contains it."""
    fd = int(argv[-1])
    try:
        return ChildSpec.decode(os.pread(fd, os.fstat(fd).st_size, 0))
    finally:
        os.close(fd)


def python_command(module: str) -> tuple[str, ...]:
    """The command that runs a module with this interpreter, without imports from the working directory."""
    return (sys.executable, "-P", "-m", module)


def with_absolute_import_path(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the entries of ``PYTHONPATH`` that depend on the working directory."""
    result = dict(environ)
    entries = result.pop(_IMPORT_PATH, "").split(os.pathsep)
    absolute = [entry for entry in entries if Path(entry).is_absolute()]
    if absolute:
        result[_IMPORT_PATH] = os.pathsep.join(absolute)
    return result


def child_environment(kind: Kind, settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child.

    Control reads the secrets that the configuration names. A worker processes untrusted bytes and needs no
    secret, so that it gets only variables that are known to contain none.

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
    """Exclude all loaded objects from garbage collection: to scan them takes 60 ms."""
    gc.collect()
    gc.freeze()


def collect_rarely() -> None:
    """Run the garbage collector only after many new objects.

    For processes whose objects, such as connections, are freed with their last reference. Repeated scans of
    all connections while new ones arrive take a tenth of the time of connecting.
    """
    gc.set_threshold(_GC_THRESHOLD_OBJECTS)


def prepare_for_connections() -> None:
    """Set up the memory of a process of the data plane, once everything is loaded."""
    keep_freed_memory()
    freeze_garbage()
    collect_rarely()


def keep_freed_memory() -> None:
    """Make the C library keep freed memory, up to a limit, instead of returning it to the kernel.

    Each read copies its input into newly allocated memory of up to 256 KiB. The kernel would provide returned
    memory page by page, and clear it: for a bare forwarder, two fifths of the CPU time per gigabyte.

    Source: mallopt(3). C libraries other than glibc have no such setting.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
        libc.mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)


def die_with_parent(parent_pid: int) -> None:
    """Make the kernel kill this process when the supervisor dies. Exit now if the supervisor is already dead.

    Source: prctl(2), PR_SET_PDEATHSIG. On systems other than Linux only the lifeline has this effect.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        _exit_orphaned()


class Heart:
    """Answers pings of the supervisor with heartbeats from this event loop, and exits if the supervisor dies.

    The first heartbeat is sent without a ping, in the next iteration of the loop.

    Args:
        heartbeat_fd: the pipe to the supervisor; ``stop`` closes it.
        lifeline_fd: the pipe from the supervisor.
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
        """Stop answering. The death of the supervisor is still noticed."""
        self._first.cancel()
        os.close(self._fd)
        self._fd = -1

    def _on_lifeline(self) -> None:
        if not os.read(self._lifeline_fd, _PING_READ_BYTES):
            _exit_orphaned()
        if self._fd >= 0:
            self._beat()

    def _beat(self) -> None:
        try:
            os.write(self._fd, b".")
        except BlockingIOError:
            pass  # The supervisor is paused and the pipe is full of heartbeats, which it will read later.
        except BrokenPipeError:
            _exit_orphaned()


def _exit_orphaned() -> NoReturn:
    os._exit(_ORPHAN_EXIT_CODE)
