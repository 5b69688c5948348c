"""What the connections of shared ports know of the cluster: the only identity, and a common address."""

from __future__ import annotations

import pytest

from fleet.core.model import AdvertisedListener, BrokerId, Directory, Member, ProxyId
from fleet.proxy.shared_listeners import has_common_address, only_identity

LISTENER = "external"


def member(proxy_id: ProxyId, broker_host: str, port: int = 9092) -> Member:
    listener = AdvertisedListener(LISTENER, f"{proxy_id}.example", port, port, broker_host)
    return Member(proxy_id, listeners=(listener,))


def directory(advertised: dict[BrokerId, tuple[ProxyId, ...]], *members: Member) -> Directory:
    return Directory(advertised=advertised, members={each.proxy_id: each for each in members})


P1, P2 = (member(each, f"b{{broker_id}}.{each}.example") for each in ("p1", "p2"))


@pytest.mark.parametrize(
    ("advertised", "expected"),
    [
        ({1: ("p1",), 2: ("p2",)}, 1),
        ({1: ("p2", "p1"), 2: ("p2",)}, 1),
        ({1: ("p1",), 2: ("p1",)}, None),
        ({1: ("p2",), 2: ("p2",)}, None),
        ({}, None),
    ],
)
def test_member_with_one_identity_stands_for_it(
    advertised: dict[BrokerId, tuple[ProxyId, ...]], expected: BrokerId | None
) -> None:
    assert only_identity(directory(advertised, P1, P2), LISTENER, "p1") == expected


def test_members_behind_one_address_stand_for_no_identity() -> None:
    balanced = [member(each, "b{broker_id}.example") for each in ("p1", "p2")]
    found = directory({1: ("p1",), 2: ("p2",)}, *balanced)
    assert has_common_address(found, LISTENER, "p1")
    assert only_identity(found, LISTENER, "p1") is None


def test_other_ports_and_unknown_members_are_other_addresses() -> None:
    other = member("p2", "b{broker_id}.p1.example", port=9093)
    found = directory({1: ("p1",), 2: ("p2",)}, P1, other, Member("p3"))
    assert not has_common_address(found, LISTENER, "p1")
    assert not has_common_address(found, LISTENER, "p3")
    assert not has_common_address(found, LISTENER, "p9")
