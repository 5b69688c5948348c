"""The processes of a member, and proofs of their state."""

from __future__ import annotations

from functools import partial

import psutil

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from tests.chaos.harness import wait_for
from tests.chaos.seeded.effects import is_gone, is_stopped


class Tree:
    """The processes of a member at one moment: supervisor, control process and one worker."""

    def __init__(self, fleet: LocalFleet, proxy_id: ProxyId) -> None:
        self.supervisor = psutil.Process(fleet.pid(proxy_id))
        # The supervisor names each child's place in its command line, for the reader of a process list.
        places = {each.cmdline()[-2]: each for each in self.supervisor.children(recursive=True)}
        self.control = places[f"{proxy_id}/control"]
        self.worker = places[f"{proxy_id}/worker-0"]
        self.all_processes = [self.supervisor, *places.values()]

    def prove_gone(self) -> None:
        """Check that every process has ended."""
        for process in self.all_processes:
            wait_for(partial(is_gone, process), f"the end of {process}", 5.0)

    def prove_stopped(self) -> None:
        """Check that every process is in the kernel's state T."""
        for process in self.all_processes:
            wait_for(partial(is_stopped, process), f"{process} stopped", 2.0)

    def prove_running(self) -> None:
        """Check that every process runs, and is not stopped."""
        for process in self.all_processes:
            assert not is_gone(process), f"{process} is gone"
            assert not is_stopped(process), f"{process} is stopped"


def try_tree(fleet: LocalFleet, proxy_id: ProxyId) -> Tree | None:
    """The processes of a member; None while a process is missing."""
    try:
        return Tree(fleet, proxy_id)
    except (KeyError, IndexError, psutil.NoSuchProcess):
        return None
