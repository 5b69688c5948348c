"""A fleet whose members advertise other addresses than they bind, as behind a NAT."""

from __future__ import annotations

import yaml

from fleet.config.file import load
from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LISTENER, LocalFleet
from fleet.drills.cluster.ports import free_ports


def advertise_elsewhere(fleet: LocalFleet, host: str) -> dict[Endpoint, Endpoint]:
    """Have members that are not started yet advertise another host and other ports than they bind.

    Returns:
        each advertised address, and the one that it has to lead to; of each member the bootstrap one first.
    """
    document = yaml.safe_load(fleet.config.read_text())
    offsets = [fleet.settings.identities.offset(each) or 0 for each in fleet.settings.identities.broker_ids()]
    span = 1 + max(offsets)
    ports = iter(free_ports(len(fleet.members) * (1 + span), (host,)))
    leads_to: dict[Endpoint, Endpoint] = {}
    for proxy_id, member in fleet.settings.members.items():
        (bound,) = member.listeners
        bootstrap, *identity_ports = (next(ports) for _ in range(1 + span))
        listener = document["members"][proxy_id]["listeners"][LISTENER]
        listener["advertise"] = f"{host}:{bootstrap}"
        listener["advertise_first_port"] = identity_ports[0]
        leads_to[Endpoint(host, bootstrap)] = bound.bootstrap
        for offset in offsets:
            there = Endpoint(bound.bind_host, bound.first_port + offset)
            leads_to[Endpoint(host, identity_ports[offset])] = there
    fleet.config.write_text(yaml.safe_dump(document, sort_keys=False))
    fleet.settings = load(fleet.config, {})
    return leads_to
