"""Configures a local fleet whose members advertise other addresses than they bind, as behind a NAT."""

from __future__ import annotations

import yaml

from fleet.config.file import load
from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LISTENER, LocalFleet
from fleet.drills.cluster.ports import free_ports


def advertise_elsewhere(fleet: LocalFleet, host: str) -> dict[Endpoint, Endpoint]:
    """Make members advertise another host and other ports than they bind. Call it before they start.

    Returns:
        by advertised address, the bound address that a forwarder must connect to. Each member's bootstrap
        address comes first.
    """
    document = yaml.safe_load(fleet.config.read_text())
    offsets = [fleet.settings.identities.offset(each) or 0 for each in fleet.settings.identities.broker_ids()]
    span = 1 + max(offsets)
    ports = iter(free_ports(len(fleet.members) * (1 + span), (host,)))
    bound_addresses: dict[Endpoint, Endpoint] = {}
    for proxy_id, member in fleet.settings.members.items():
        (bound,) = member.listeners
        bootstrap, *identity_ports = (next(ports) for _ in range(1 + span))
        listener = document["members"][proxy_id]["listeners"][LISTENER]
        listener["advertise"] = f"{host}:{bootstrap}"
        listener["advertise_first_port"] = identity_ports[0]
        bound_addresses[Endpoint(host, bootstrap)] = bound.bootstrap
        for offset in offsets:
            bound_at = Endpoint(bound.bind_host, bound.first_port + offset)
            bound_addresses[Endpoint(host, identity_ports[offset])] = bound_at
    fleet.config.write_text(yaml.safe_dump(document, sort_keys=False))
    fleet.settings = load(fleet.config, {})
    return bound_addresses
