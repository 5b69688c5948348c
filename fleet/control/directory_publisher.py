"""The directory in force at this member: built from what is known, given to the workers, kept on disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

from fleet.control.worker_channels import Workers
from fleet.core import directory
from fleet.core.model import Broker, BrokerId, Directory, FleetState, Member, ProxyId
from fleet.runtime import ipc

log = logging.getLogger(__name__)


class DirectoryPublisher:
    """Puts out a new directory whenever it would say something new.

    Args:
        me: this member as configured; None where it has no data plane.
        workers: they get each one at once.
        folder: the newest is in a file here, for a worker that starts while there is no control process.
    """

    def __init__(self, me: Member | None, workers: Workers, folder: Path) -> None:
        self._me = me
        self._workers = workers
        self._path = folder / ipc.DIRECTORY_FILE
        self._changed = asyncio.Event()
        self.current = Directory()

    def publish(
        self, state: FleetState, bypassed: AbstractSet[ProxyId], brokers: Mapping[BrokerId, Broker]
    ) -> None:
        """Build the directory anew; nothing happens where it says what the last one said.

        Args:
            state: what is committed.
            bypassed: the members to advertise around.
            brokers: all that this member knows of, committed or not.
        """
        newest = directory.build(state, bypassed, self._me, self.current.revision, brokers)
        if newest != self.current:
            self.current = replace(newest, revision=newest.revision + 1)
            self._workers.publish(self.current)
            self._changed.set()

    async def save(self) -> None:
        """Keep the newest directory on disk; ends by cancellation only."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await asyncio.to_thread(ipc.write_directory, self._path, self.current)
            except OSError as error:
                log.error("cannot save the directory in %s: %s", self._path, error)
