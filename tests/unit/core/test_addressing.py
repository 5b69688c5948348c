"""Which listeners a member states while others run an older release."""

from __future__ import annotations

from fleet.core.addressing import as_known
from fleet.core.model import AdvertisedListener, Member

BY_PORT = AdvertisedListener("ports", "p1.example", 9092, 9093)
BY_NAME = AdvertisedListener("names", "p1.example", 9192, 9192, "b{broker_id}.p1.example")
BY_ADDRESS = AdvertisedListener("addresses", "10.0.1.1", 9292, 9292, first_address="10.0.1.11")
ME = Member("p1", listeners=(BY_PORT, BY_NAME, BY_ADDRESS))
NEW = Member("p2", known_addressing=("identity_ports", "sni", "addresses"))
RELEASE_0_2_0 = Member("p3")


def test_all_listeners_are_stated_to_members_that_know_them() -> None:
    assert as_known(ME, ()) is ME
    assert as_known(ME, (NEW,)) is ME


def test_listener_is_left_out_while_one_member_does_not_know_its_addressing() -> None:
    assert as_known(ME, (NEW, RELEASE_0_2_0)).listeners == (BY_PORT, BY_NAME)


def test_listeners_of_the_previous_release_are_always_stated() -> None:
    member = Member("p1", listeners=(BY_PORT, BY_NAME))
    assert as_known(member, (RELEASE_0_2_0,)) is member
