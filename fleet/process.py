"""What a child of the supervisor is given, and what it owes in return: heartbeats, and not to outlive it."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias

from fleet.model import BrokerId, ProxyId

if TYPE_CHECKING:
    from fleet.config import Settings

Kind: TypeAlias = Literal["control", "worker"]

MODULES: Final[Mapping[Kind, str]] = {"control": "fleet.control", "worker": "fleet.proxy.worker"}

PEER_FD: Final = "peer"
ADMIN_FD: Final = "admin"
CONTROL_FD: Final = "control"

_PR_SET_PDEATHSIG: Final = 1
_ORPHANED: Final = 70


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
        config_path: the fleet's configuration file, as the supervisor was given it.
        proxy_id: which member this is.
        kind, index: which child of it; index counts the workers from 0, control has 0.
        incarnation: wall-clock milliseconds at which the supervisor started.
        parent_pid: the supervisor.
        heartbeat_fd: write one byte at least every ``Timing.heartbeat_s``.
        lifeline_fd: end of file here means that the supervisor is gone.
        fds: control's listening sockets: ``PEER_FD``, ``ADMIN_FD``, ``CONTROL_FD``.
        listeners: a worker's listening sockets.
    """

    config_path: str
    proxy_id: ProxyId
    kind: Kind
    index: int
    incarnation: int
    parent_pid: int
    heartbeat_fd: int
    lifeline_fd: int
    fds: Mapping[str, int] = field(default_factory=dict)
    listeners: tuple[ListenerFd, ...] = ()

    @property
    def name(self) -> str:
        return "control" if self.kind == "control" else f"worker-{self.index}"

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decode(data: bytes) -> ChildSpec:
        """Undo ``encode``; the supervisor is the only writer, so nothing is checked."""
        fields: Any = json.loads(data)
        fields["listeners"] = tuple(ListenerFd(**each) for each in fields["listeners"])
        return ChildSpec(**fields)


def spec_from_argv(argv: Sequence[str]) -> ChildSpec:
    """What the supervisor says to this child; the last argument is the descriptor of the file with it."""
    fd = int(argv[-1])
    try:
        return ChildSpec.decode(os.pread(fd, os.fstat(fd).st_size, 0))
    finally:
        os.close(fd)


def settings_of(spec: ChildSpec) -> Settings:
    """The fleet's settings, as the supervisor has them.

    Raises: ConfigError: the file is not what it was
    """
    from fleet import config

    return config.load(spec.config_path, os.environ)


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


def watch_lifeline(loop: asyncio.AbstractEventLoop, lifeline_fd: int) -> None:
    """Exit at once when the supervisor is gone. Nobody writes to the pipe, so readable means end of file."""
    os.set_blocking(lifeline_fd, False)
    loop.add_reader(lifeline_fd, _exit_orphaned)


async def beat(heartbeat_fd: int, every_s: float) -> None:
    """Tell the supervisor, for as long as the task lives, that this event loop turns."""
    os.set_blocking(heartbeat_fd, False)
    while True:
        try:
            os.write(heartbeat_fd, b".")
        except BlockingIOError:
            pass  # The supervisor is paused and the pipe is full: it will find more than enough there.
        except BrokenPipeError:
            _exit_orphaned()
        await asyncio.sleep(every_s)


def _exit_orphaned() -> NoReturn:
    os._exit(_ORPHANED)
