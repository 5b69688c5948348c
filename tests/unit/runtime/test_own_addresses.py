"""Which addresses lead back to the fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.config import ListenerSettings, MemberSettings, Settings
from fleet.core.model import Endpoint, IdentitySpace, ProxyId
from fleet.runtime.own_addresses import OwnAddresses

HERE = "10.0.0.1"


def member(proxy_id: ProxyId, peer_host: str, listener: ListenerSettings) -> MemberSettings:
    admin = Endpoint(peer_host, 7001)
    return MemberSettings(
        proxy_id, None, True, False, Endpoint(peer_host, 7000), admin, Path("data"), 1, (listener,)
    )


def listener(bind_host: str, port: int, advertised_host: str) -> ListenerSettings:
    """Bootstrap connections at ``port``, and identities 1 to 8 from ``port + 100`` on."""
    return ListenerSettings("external", bind_host, port, port + 100, advertised_host, port, port + 100)


def fleet(*members: MemberSettings) -> OwnAddresses:
    by_id = {each.proxy_id: each for each in members}
    settings = Settings("demo", (Endpoint("kafka", 9092),), IdentitySpace(1, 8), by_id)
    return OwnAddresses(settings, "p1", lambda host: host == HERE)


MINE = member("p1", "p1.example", listener("0.0.0.0", 9000, "p1.example"))


@pytest.mark.parametrize(
    ("host", "port", "whose"),
    [
        ("p1.example", 9000, "p1"),
        (HERE, 9101, "p1"),
        ("127.0.0.1", 9101, "p1"),
        ("p2.example", 9201, "p2"),
        ("10.0.0.2", 9301, "p2"),
        # Loopback addresses of p2's machine are not on this machine.
        ("127.0.0.1", 9201, None),
        (HERE, 9201, None),
        ("p1.example", 9201, None),
    ],
)
def test_fleet_addresses_are_found_on_two_machines(host: str, port: int, whose: str | None) -> None:
    other = member("p2", "p2.example", listener("10.0.0.2", 9201, "p2.example"))
    for_neighbours = member("p3", "p3.example", listener("127.0.0.1", 9201, "localhost"))
    found = fleet(MINE, for_neighbours, other).find(host, port)
    assert found == (whose and f"listener external of {whose}")


def test_addresses_of_identities_lead_to_the_fleet() -> None:
    by_address = ListenerSettings(
        "external",
        "10.0.0.2",
        9092,
        9092,
        "192.0.2.2",
        9192,
        9192,
        first_address="10.0.0.11",
        advertised_first_address="192.0.2.11",
    )
    found = fleet(MINE, member("p2", "p2.example", by_address))
    for host, port in (("10.0.0.2", 9092), ("10.0.0.18", 9092), ("192.0.2.2", 9192), ("192.0.2.18", 9192)):
        assert found.find(host, port) == "listener external of p2"
    assert found.find("10.0.0.19", 9092) is None
    assert found.find("10.0.0.11", 9192) is None


def test_loopback_of_a_member_on_this_machine_leads_to_the_fleet() -> None:
    neighbour = member("p2", "p1.example", listener("127.0.0.1", 9201, "localhost"))
    assert fleet(MINE, neighbour).find("localhost.", 9302) == "listener external of p2"


def test_fleet_of_one_machine_has_all_its_loopback_addresses() -> None:
    hosts = {"p1": "127.0.0.1", "p2": "127.0.0.2"}
    members = (member(each, host, listener(host, 9000, host)) for each, host in hosts.items())
    assert fleet(*members).find("127.0.0.2", 9107) == "listener external of p2"
