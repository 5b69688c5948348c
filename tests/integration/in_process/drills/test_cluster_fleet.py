"""LocalFleet without processes: configuration, addresses, and members' answers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.admin.documents import IdentityDocument, OwnershipDocument, QuorumDocument
from fleet.config.file import load
from fleet.core.errors import AdminError, DemoError
from fleet.core.model import Endpoint, IdentitySpace
from fleet.drills.cluster.fleet import LocalFleet
from fleet.tls import checking

BROKERS = (Endpoint("127.77.1.1", 9092), Endpoint("127.77.2.2", 9094))


def test_local_fleet_configuration_has_the_given_settings(tmp_path: Path) -> None:
    fleet = LocalFleet(
        tmp_path, BROKERS, 4, identities=IdentitySpace(1, 5), workers=2, timing={"suspect_after_s": 1.25}
    )
    settings = load(fleet.config, {})
    assert settings.bootstrap_servers == BROKERS
    assert settings.identities.broker_ids() == (1, 2, 3, 4, 5)
    assert settings.timing.suspect_after_s == 1.25
    assert [member.rack for member in settings.members.values()] == ["a", "b", "c", "a"]
    assert {member.workers for member in settings.members.values()} == {2}
    assert fleet.members == ("p1", "p2", "p3", "p4")
    assert fleet.running == ()
    assert fleet.leader() is None


def test_local_fleet_makes_certificates_for_secured_links(tmp_path: Path) -> None:
    assert LocalFleet(tmp_path / "plain", BROKERS).settings.peer_tls is None
    secured = LocalFleet(tmp_path / "secured", BROKERS, peer_tls=True)
    for proxy_id in secured.members:
        checking.check_member(secured.settings, proxy_id)


def test_no_two_members_share_a_port(tmp_path: Path) -> None:
    fleet = LocalFleet(tmp_path, BROKERS, 5, identities=IdentitySpace(1, 6))
    ports = [
        port
        for member in fleet.settings.members.values()
        for listener in member.listeners
        for port in (
            member.peer.port,
            member.admin.port,
            listener.bootstrap_port,
            *(listener.first_port + offset for offset in range(6)),
        )
    ]
    assert len(set(ports)) == len(ports) == 5 * 9


def test_sparse_identities_have_ports_of_their_own(tmp_path: Path) -> None:
    fleet = LocalFleet(
        tmp_path, BROKERS, 2, identities=IdentitySpace(explicit=((1001, 0), (2001, 1))), racks=False
    )
    assert fleet.settings.identities.broker_ids() == (1001, 2001)
    assert {member.rack for member in fleet.settings.members.values()} == {None}


def test_an_address_leads_to_the_member_that_advertises_it(tmp_path: Path) -> None:
    fleet = LocalFleet(tmp_path, BROKERS, 3, identities=IdentitySpace(1, 2))
    for proxy_id in fleet.members:
        (listener,) = fleet.settings.member(proxy_id).listeners
        for offset in range(2):
            assert fleet.owner_of(Endpoint("127.0.0.1", listener.advertised_first_port + offset)) == proxy_id
        assert fleet.owner_of(Endpoint("127.77.1.1", listener.advertised_first_port)) is None
        assert fleet.owner_of(fleet.bootstrap_endpoint(proxy_id)) is None
    assert fleet.bootstrap() == ",".join(str(fleet.bootstrap_endpoint(each)) for each in fleet.members)
    assert fleet.bootstrap(["p2"]) == str(fleet.bootstrap_endpoint("p2"))


def test_folder_too_deep_for_sockets_is_replaced(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90)
    first, second = LocalFleet(deep, BROKERS), LocalFleet(deep, BROKERS)
    longest = max(len(os.fsencode(member.control_socket)) for member in first.settings.members.values())
    assert longest <= 107
    assert first.data == second.data
    first.remove_data()
    assert not first.data.exists()


def test_stopped_member_has_no_ownership(tmp_path: Path) -> None:
    fleet = LocalFleet(tmp_path, BROKERS)
    assert fleet.try_ownership("p1") is None
    assert not fleet.is_ready("p1")
    with pytest.raises(AdminError, match="p1 did not answer /ownership"):
        fleet.ownership("p1")


def test_wait_names_a_member_that_ends_and_its_log(tmp_path: Path) -> None:
    fleet = LocalFleet(tmp_path, BROKERS)
    fleet.config.write_text("nonsense: true\n")
    fleet.start("p2")
    try:
        with pytest.raises(DemoError, match="already running"):
            fleet.start("p2")
        with pytest.raises(DemoError, match=r"(?s)p2 ended with code 2; see .*p2\.log.*nonsense"):
            fleet.await_ready("p2")
    finally:
        fleet.close()


def test_timed_out_wait_names_its_condition(tmp_path: Path) -> None:
    fleet = LocalFleet(tmp_path, BROKERS)
    with pytest.raises(DemoError, match=r"identities \[1, 2\] owned evenly by p1: not within 0 s"):
        fleet.await_settled({1, 2}, ["p1"], limit_s=0.0)


# ------------------------------------------------------------------------------------------ is_settled


def document(owners: Mapping[int, tuple[str, ...]], generation: int = 3) -> OwnershipDocument:
    return OwnershipDocument(
        fleet="demo",
        proxy_id="p1",
        version="1",
        now_ms=0,
        now_mono_s=0.0,
        incarnation=0,
        generation=generation,
        revision=0,
        role="follower",
        leader="p1",
        term=1,
        commit_index=1,
        quorum=QuorumDocument(True, (), 0.0),
        staleness_s=0.0,
        suspects=(),
        members=(),
        brokers=(),
        identities=tuple(
            IdentityDocument(broker_id, held, held, (), None, ()) for broker_id, held in owners.items()
        ),
        takeovers=(),
        raft_error=None,
        balanced_by="identities",
    )


EVEN = document({1: ("p1",), 2: ("p2",), 3: ("p1",)})


def settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: Mapping[str, OwnershipDocument | None]
) -> bool:
    fleet = LocalFleet(tmp_path, BROKERS)
    monkeypatch.setattr(fleet, "try_ownership", documents.get)
    return fleet.is_settled({1, 2, 3}, tuple(documents))


def test_settled_is_even_committed_advertised_and_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settled(tmp_path, monkeypatch, {"p1": EVEN, "p2": EVEN})


@pytest.mark.parametrize(
    "other",
    [
        None,
        replace(EVEN, generation=4),
        replace(EVEN, quorum=QuorumDocument(False, (), 1.0)),
        document({1: ("p1",), 2: ("p2",)}),
        document({1: ("p1",), 2: ("p3",), 3: ("p1",)}),
        document({1: ("p1",), 2: ("p1",), 3: ("p1",)}),
        replace(EVEN, identities=tuple(replace(each, advertised=("p2",)) for each in EVEN.identities)),
    ],
    ids=["silent", "other generation", "no quorum", "one missing", "a stranger owns", "uneven", "overlay"],
)
def test_unsettled_fleets_are_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: OwnershipDocument | None
) -> None:
    assert not settled(tmp_path, monkeypatch, {"p1": EVEN, "p2": other})
