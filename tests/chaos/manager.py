"""A stand-in for a service manager: commands of other processes restart members through it.

    with Manager(fleet, tmp_path) as manager:
        subprocess.Popen([..., "--command", manager.command])
        manager.serve_while(lambda: process.poll() is None)

Members must be started from the main thread (see `fleet.drills.cluster.spawn`): the manager serves there.
"""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet

_REQUEST_PROGRAM = """\
import socket, sys
with socket.socket(socket.AF_UNIX) as manager:
    manager.connect(sys.argv[1])
    manager.send(sys.argv[2].encode())
    sys.exit(manager.recv(9) != b"done")
"""


Action = Callable[[ProxyId], None]


class Manager:
    """Starts and restarts members of a fleet when a command requests it.

    Args:
        folder: folder of the socket.
        actions: further actions, by the verb that requests them.
    """

    def __init__(
        self, fleet: LocalFleet, folder: Path, actions: Mapping[str, Action] = MappingProxyType({})
    ) -> None:
        self._fleet = fleet
        self._actions = {"restart": self._restart, "start": self._start, **actions}
        self._path = folder / "manager.sock"
        self._socket = socket.socket(socket.AF_UNIX)
        self.restarted: list[str] = []

    @property
    def command(self) -> str:
        """A value of ``--restart-command``."""
        return self.command_to("restart")

    def command_to(self, verb: str) -> str:
        """A command template that requests an action on a member, such as `start`."""
        return shlex.join([sys.executable, "-c", _REQUEST_PROGRAM, str(self._path), f"{verb} {{proxy_id}}"])

    def serve_while(self, condition: Callable[[], bool]) -> None:
        """Serve the commands while a condition holds."""
        while condition():
            try:
                requester, _ = self._socket.accept()
            except TimeoutError:
                continue
            with requester:
                verb, proxy_id = requester.recv(100).decode().split()
                self._actions[verb](proxy_id)
                requester.send(b"done")

    def _restart(self, proxy_id: ProxyId) -> None:
        assert self._fleet.stop(proxy_id) == 0
        self._start(proxy_id)

    def _start(self, proxy_id: ProxyId) -> None:
        if proxy_id not in self._fleet.running:
            self._fleet.start(proxy_id)
        self.restarted.append(proxy_id)

    def __enter__(self) -> Manager:
        self._socket.bind(str(self._path))
        self._socket.listen()
        self._socket.settimeout(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._path.unlink()
