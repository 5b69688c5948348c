"""What a member asks the other members' admin addresses, as any reader would."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from fleet.admin.access import access_to
from fleet.admin.client import admin_urls, ask_traffic
from fleet.admin.traffic import Counts
from fleet.config.settings import Settings
from fleet.errors import ConfigError
from fleet.model import ProxyId

ASK_TIMEOUT_S: Final = 0.8
"""Below what they are asked every."""


class Peers:
    """The others of one member.

    Args:
        environ: where a token may be; the file says where else.
    """

    def __init__(self, settings: Settings, me: ProxyId, environ: Mapping[str, str] = os.environ) -> None:
        self._settings = settings
        self._environ = environ
        self._urls = {each: url for each, url in admin_urls(settings).items() if each != me}

    async def traffic(self) -> Counts:
        """What passes each of them, or why that is not known."""
        try:
            access = access_to(self._settings, self._environ)
        except ConfigError as error:
            return dict.fromkeys(self._urls, error)
        return await ask_traffic(self._urls, ASK_TIMEOUT_S, access)
