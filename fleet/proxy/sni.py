"""Maps the server name in a client's TLS handshake to an identity (`addressing: sni`)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fleet.core.model import BROKER_ID, AdvertisedListener, BrokerId, IdentitySpace


class ServerNames:
    """The server names of one listener at all members: any member can serve any broker.

    Args:
        listeners: the listener, as each member advertises it.
        identities: the valid broker ids.
    """

    def __init__(self, listeners: Iterable[AdvertisedListener], identities: IdentitySpace) -> None:
        hosts = list(listeners)
        self._bootstrap = {each.host.lower().rstrip(".") for each in hosts}
        patterns = {_pattern(each.broker_host) for each in hosts if each.broker_host is not None}
        self._patterns = [re.compile(each) for each in sorted(patterns)]
        self._identities = identities

    def broker_id(self, name: str | None) -> BrokerId | None:
        """Return the identity of a server name; None for a bootstrap name.

        Raises: KeyError: the name is unknown
        """
        known = (name or "").lower().rstrip(".")
        if known in self._bootstrap:
            return None
        for pattern in self._patterns:
            found = pattern.fullmatch(known)
            if found and self._identities.offset(int(found[1])) is not None:
                return int(found[1])
        raise KeyError(name)


def _pattern(host: str) -> str:
    before, _, after = host.lower().rstrip(".").partition(BROKER_ID)
    return re.escape(before) + "(0|[1-9][0-9]{0,9})" + re.escape(after)
