"""What a member asks the other members' admin addresses, as any reader would."""

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

ASK_TIMEOUT_S: Final = 0.8
"""Below what they are asked every."""

Stamp: TypeAlias = tuple[tuple[int, int, int] | None, ...]


class Peers:
    """The others of one member.

    Args:
        environ: where a token may be; the file says where else.
    """

    def __init__(self, settings: Settings, me: ProxyId, environ: Mapping[str, str] = os.environ) -> None:
        self._settings = settings
        self._environ = environ
        self._urls = {each: url for each, url in admin_urls(settings).items() if each != me}
        self._made: tuple[Stamp, Access] | None = None

    async def traffic(self) -> Counts:
        """What passes each of them, or why that is not known."""
        try:
            # Files, and certificates: not on the loop that answers heartbeats.
            access = await asyncio.to_thread(self._current)
        except ConfigError as error:
            return dict.fromkeys(self._urls, error)
        answers = await ask_traffic(self._urls, ASK_TIMEOUT_S, access)
        return {each: self._own(each, answer) for each, answer in answers.items()}

    def _own(self, asked: ProxyId, answer: TrafficDocument | FleetError) -> TrafficDocument | FleetError:
        """What a member said of itself: at 127.0.0.1, which 0.0.0.0 is asked at, another one may answer."""
        if isinstance(answer, FleetError) or answer.proxy_id == asked:
            return answer
        return AdminError(f"{self._urls[asked]} is {answer.proxy_id}, not {asked}")

    def _current(self) -> Access:
        """How they are asked; made anew where a file has changed.

        Unlike ``Reloading``: of the tokens one may be missing.
        """
        stamp, made = tuple(map(_look, self._files())), self._made
        if made is None or made[0] != stamp:
            made = self._made = stamp, access_to(self._settings, self._environ)
        return made[1]

    def _files(self) -> list[Path]:
        admin = self._settings.admin
        places = () if admin.tokens is None else (admin.tokens.read, admin.tokens.write)
        files = [each.file for each in places] + [None if admin.tls is None else admin.tls.ca]
        if self._environ.get(TOKEN_FILE_ENV):
            files.append(Path(self._environ[TOKEN_FILE_ENV]))
        return [each for each in files if each is not None]


def _look(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
