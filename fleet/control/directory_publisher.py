"""The current directory of this member: built from the committed state, sent to workers, saved to disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

from fleet.control.worker_channels import WorkerChannels
from fleet.core import directory
from fleet.core.model import Broker, BrokerId, Directory, FleetState, Member, ProxyId
from fleet.runtime import ipc

log = logging.getLogger(__name__)


class DirectoryPublisher:
    """Publishes a new directory whenever its content changes.

    Args:
        me: this member as configured; None if it has no data plane.
        workers: the channels to the workers, which receive each directory immediately.
        folder: holds the file with the newest directory. A worker that starts while no control process runs
            reads this file.
    """

    def __init__(self, me: Member | None, workers: WorkerChannels, folder: Path) -> None:
        self._me = me
        self._workers = workers
        self._path = folder / ipc.DIRECTORY_FILE
        self._changed = asyncio.Event()
        self.current = Directory()

    def publish(
        self, state: FleetState, bypassed: AbstractSet[ProxyId], brokers: Mapping[BrokerId, Broker]
    ) -> None:
        """Build the directory, and publish it if it differs from the current one.

        Args:
            state: the committed state.
            bypassed: the members to bypass.
            brokers: all brokers that this member knows, committed or not.
        """
        newest = directory.build(state, bypassed, self._me, self.current.revision, brokers)
        if newest != self.current:
            self.current = replace(newest, revision=newest.revision + 1)
            self._workers.publish(self.current)
            self._changed.set()

    async def save(self) -> None:
        """Save each new directory to disk until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await asyncio.to_thread(ipc.write_directory, self._path, self.current)
            except OSError as error:
                log.error("cannot save the directory: path=%s: %s", self._path, error)
