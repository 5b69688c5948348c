"""Bootstrap addresses of a fleet, and the owner of each advertised address."""

from __future__ import annotations

import pytest

from fleet.config import Settings, bootstrap_endpoints, identity_owners
from fleet.core.errors import ConfigError
from fleet.core.model import Endpoint
from tests.unit.config.test_file import parse, tree


def two_ways() -> Settings:
    """Three members with two listeners; the first one advertises an address that it does not bind."""
    data = tree()
    for number, member in enumerate(data["members"].values(), 1):
        member["listeners"]["inside"] = {
            "bind": f"127.0.0.1:{20000 + 100 * number}",
            "first_port": 20001 + 100 * number,
        }
    data["members"]["p1"]["listeners"]["external"]["advertise"] = "proxy1.test:19100"
    return parse(data)


def test_bootstrap_endpoints_are_advertised_addresses() -> None:
    known = two_ways()
    assert bootstrap_endpoints(known) == bootstrap_endpoints(known, "external")
    assert list(bootstrap_endpoints(known)) == ["p1", "p2", "p3"]
    assert bootstrap_endpoints(known)["p1"] == Endpoint("proxy1.test", 19100)
    assert bootstrap_endpoints(known, "inside")["p2"] == Endpoint("127.0.0.1", 20200)
    with pytest.raises(ConfigError, match="no member has a listener 'outside'; use one of external, inside"):
        bootstrap_endpoints(known, "outside")


def test_witness_has_no_bootstrap_endpoint() -> None:
    data = tree()
    data["members"]["p1"] = {**data["members"]["p1"], "witness": True, "listeners": {}}
    assert list(bootstrap_endpoints(parse(data))) == ["p2", "p3"]


def test_an_identity_address_is_one_members_on_every_listener() -> None:
    known = two_ways()
    owners = identity_owners(known)
    assert owners[Endpoint("proxy1.test", 19101)] == owners[Endpoint("127.0.0.1", 20101)] == "p1"
    assert Endpoint("proxy1.test", 19100) not in owners
    assert len(owners) == 2 * len(known.members) * len(known.identities.broker_ids())
