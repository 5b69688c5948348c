"""Reads the traffic of the other members from their admin addresses, as any reader could."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from fleet.admin.client import admin_urls, ask_traffic
from fleet.admin.documents import TrafficDocument
from fleet.admin.traffic import Counts
from fleet.config.settings import Settings
from fleet.core.errors import AdminError, ConfigError, FleetError
from fleet.core.model import ProxyId
from fleet.tls.access import TOKEN_FILE_ENV, Access, access_to

TRAFFIC_TIMEOUT_S: Final = 0.8
"""Shorter than the interval between two requests (``live.COUNT_INTERVAL_S``)."""

Stamp: TypeAlias = tuple[tuple[int, int, int] | None, ...]


class Peers:
    """The other members, as seen by one member.

    Args:
        me: the member that asks.
        environ: the environment, which may name a token; the configuration may name another one.
    """

    def __init__(self, settings: Settings, me: ProxyId, environ: Mapping[str, str] = os.environ) -> None:
        self._settings = settings
        self._environ = environ
        self._urls = {each: url for each, url in admin_urls(settings).items() if each != me}
        self._cached: tuple[Stamp, Access] | None = None

    async def traffic(self) -> Counts:
        """The traffic of each other member, or its error."""
        try:
            # Reads files and certificates: not on the loop that answers heartbeats.
            access = await asyncio.to_thread(self._current)
        except ConfigError as error:
            return dict.fromkeys(self._urls, error)
        answers = await ask_traffic(self._urls, TRAFFIC_TIMEOUT_S, access)
        return {each: self._check_sender(each, answer) for each, answer in answers.items()}

    def _check_sender(
        self, expected: ProxyId, answer: TrafficDocument | FleetError
    ) -> TrafficDocument | FleetError:
        """The answer, or an error if another member sent it.

        A wildcard address is asked on loopback, where another member may answer.
        """
        if isinstance(answer, FleetError) or answer.proxy_id == expected:
            return answer
        return AdminError(f"{self._urls[expected]} is {answer.proxy_id}, not {expected}")

    def _current(self) -> Access:
        """The access to the other members, built again if a file has changed.

        ``Reloading`` does not fit: one of the two tokens may be missing.
        """
        stamp, cached = tuple(map(_stamp, self._files())), self._cached
        if cached is None or cached[0] != stamp:
            cached = self._cached = stamp, access_to(self._settings, self._environ)
        return cached[1]

    def _files(self) -> list[Path]:
        admin = self._settings.admin
        places = () if admin.tokens is None else (admin.tokens.read, admin.tokens.write)
        files = [each.file for each in places] + [None if admin.tls is None else admin.tls.ca]
        if self._environ.get(TOKEN_FILE_ENV):
            files.append(Path(self._environ[TOKEN_FILE_ENV]))
        return [each for each in files if each is not None]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """A value that changes whenever the file does; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
