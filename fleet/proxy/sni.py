"""Which identity a client means by the server name that it gives in TLS (`addressing: sni`)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fleet.core.model import BROKER_ID, AdvertisedListener, BrokerId, IdentitySpace


class ServerNames:
    """The names of one listener, at whichever member: any of them can stand for any broker.

    Args:
        listeners: that listener, as each member advertises it.
        identities: the broker ids that there are.
    """

    def __init__(self, listeners: Iterable[AdvertisedListener], identities: IdentitySpace) -> None:
        hosts = list(listeners)
        self._bootstrap = {each.host.lower().rstrip(".") for each in hosts}
        patterns = {_pattern(each.broker_host) for each in hosts if each.broker_host is not None}
        self._patterns = [re.compile(each) for each in sorted(patterns)]
        self._identities = identities

    def broker_id(self, name: str | None) -> BrokerId | None:
        """The identity that a name is for; None for a bootstrap name.

        Raises: KeyError: it is none of these names
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
