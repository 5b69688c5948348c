"""fleet/core/crowd.py: which visitor gets a place, and which visitor is evicted."""

from __future__ import annotations

import pytest

from fleet.core.crowd import Crowd, source_of


def test_oldest_of_the_largest_source_has_to_go() -> None:
    crowd: Crowd[str] = Crowd(3)
    assert [crowd.add(each, each[0]) for each in ("b1", "a1", "a2")] == [None] * 3
    assert crowd.add("c1", "c") == "a1"
    assert list(crowd) == ["b1", "a2", "c1"]


def test_single_source_loses_its_oldest() -> None:
    crowd: Crowd[int] = Crowd(2)
    assert [crowd.add(each, "a") for each in range(5)] == [None, None, 0, 1, 2]
    assert list(crowd) == [3, 4]


def test_newcomer_of_a_large_source_displaces_its_own() -> None:
    crowd: Crowd[str] = Crowd(4)
    for each in ("b1", "a1", "a2", "a3"):
        crowd.add(each, each[0])
    assert [crowd.add(f"a{number}", "a") for number in range(4, 8)] == ["a1", "a2", "a3", "a4"]
    assert "b1" in crowd


def test_places_are_freed_once() -> None:
    crowd: Crowd[str] = Crowd(1)
    crowd.add("a1", "a")
    crowd.discard("a1")
    crowd.discard("a1")
    assert (len(crowd), "a1" in crowd) == (0, False)
    assert crowd.add("b1", "b") is None


def test_place_is_refused_to_a_source_with_its_share() -> None:
    crowd: Crowd[str] = Crowd(4)
    for each in ("a1", "a2", "a3"):
        crowd.add(each, "a")
    assert crowd.has_place_for("a")
    crowd.add("b1", "b")
    assert not crowd.has_place_for("a")
    assert crowd.has_place_for("b")
    assert crowd.add("b2", "b") == "a1"
    assert not crowd.has_place_for("b")
    assert crowd.has_place_for("c")


@pytest.mark.parametrize(
    ("address", "source"),
    [
        (("10.0.0.7", 4711), "10.0.0.7"),
        (("::ffff:10.0.0.7", 4711, 0, 0), "10.0.0.7"),
        (("2001:db8:1:2:3:4:5:6", 4711, 0, 0), "2001:db8:1:2::"),
        (("2001:db8:1:2:ffff::", 4711, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 4711, 0, 2), "fe80::"),
        ("", ""),
    ],
)
def test_source_is_an_address_or_a_network(address: object, source: str) -> None:
    assert source_of(address) == source
