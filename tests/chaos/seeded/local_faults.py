"""Local failures of healthy members: missing names, routes and descriptors."""

from __future__ import annotations

import json
import resource
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import psutil

from fleet.core.errors import DemoError
from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from tests.chaos.seeded.effects import find_child
from tests.chaos.seeded.schedule import Kind

_FAILURES: Final = MappingProxyType(
    {
        Kind.NO_NAMES: {"names": "gone"},
        Kind.SLOW_NAMES: {"names": "slow"},
        Kind.NO_ROUTES: {"routes": "gone"},
    }
)
_PRELOAD: Final = Path(__file__).parent / "preload"


class LocalFaults:
    """Makes control processes of a fleet fail on command.

    Args:
        fleet: the fleet, before its members start.
        folder: folder of the files that control the failures.
    """

    def __init__(self, fleet: LocalFleet, folder: Path) -> None:
        self._fleet = fleet
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for proxy_id in fleet.members:
            fleet.environment[proxy_id] = {
                "PYTHONPATH": str(_PRELOAD),
                "PYTHONFLEETFAULTS": str(self._file(proxy_id)),
            }

    @contextmanager
    def failing(self, victims: Collection[ProxyId], kind: Kind) -> Iterator[None]:
        """Make control processes of members fail while the block runs, by one of ``LOCAL_FAULTS``."""
        with ExitStack() as stack:
            for victim in victims:
                if kind is Kind.NO_DESCRIPTORS:
                    stack.enter_context(_no_descriptors(self._control(victim)))
                else:
                    self._write(victim, _FAILURES[kind])
                    stack.callback(self._file(victim).unlink)
            yield

    def failures(self, proxy_id: ProxyId) -> float:
        """A member's count of local failures. Raises: AdminError: the member does not answer."""
        _, body = self._fleet.get(proxy_id, "/metrics")
        for line in body.decode().splitlines():
            if line.startswith("fleet_local_failures_total "):
                return float(line.split()[1])
        raise DemoError(f"{proxy_id} has no metric of local failures")

    def _file(self, proxy_id: ProxyId) -> Path:
        return self._folder / f"{proxy_id}.json"

    def _write(self, proxy_id: ProxyId, failures: object) -> None:
        unnamed = self._folder / f"{proxy_id}.new"
        unnamed.write_text(json.dumps(failures))
        unnamed.rename(self._file(proxy_id))

    def _control(self, proxy_id: ProxyId) -> psutil.Process:
        process = find_child(self._fleet.pid(proxy_id), f"{proxy_id}/control")
        if process is None:
            raise DemoError(f"{proxy_id} has no control process")
        return process


@contextmanager
def _no_descriptors(process: psutil.Process) -> Iterator[None]:
    """Prevent a process from opening descriptors while the block runs."""
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    # Zero, not the number of open descriptors: each closed descriptor would allow a new one.
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        if process.is_running():
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
