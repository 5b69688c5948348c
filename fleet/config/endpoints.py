"""The addresses that the members of a fleet advertise to clients, from its configuration."""

from __future__ import annotations

from fleet.config.settings import Settings
from fleet.core.errors import ConfigError
from fleet.core.model import Endpoint, ProxyId


def bootstrap_endpoints(settings: Settings, listener: str | None = None) -> dict[ProxyId, Endpoint]:
    """The bootstrap address of each member that has a data plane.

    Args:
        listener: the name of the listener; None for the first listener of each member.

    Raises:
        ConfigError: no member has a listener of that name.
    """
    found = {
        proxy_id: Endpoint(selected.advertised_host, selected.advertised_bootstrap_port)
        for proxy_id, member in settings.members.items()
        for selected in [each for each in member.listeners if listener in (None, each.name)][:1]
    }
    if not found:
        names = {each.name for member in settings.members.values() for each in member.listeners}
        raise ConfigError(
            f"{settings.source}: no member has a listener {listener!r}; use one of {', '.join(sorted(names))}"
        )
    return found


def identity_owners(settings: Settings) -> dict[Endpoint, ProxyId]:
    """The member that serves each advertised identity address, on all listeners."""
    advertised = {proxy_id: member.to_member(settings) for proxy_id, member in settings.members.items()}
    return {
        endpoint: proxy_id
        for proxy_id, member in advertised.items()
        for listener in member.listeners
        for broker_id in settings.identities.broker_ids()
        if (endpoint := member.endpoint(listener.name, broker_id)) is not None
    }
