"""The identities of server names, and unknown server names."""

from __future__ import annotations

import pytest

from fleet.core.model import AdvertisedListener, IdentitySpace
from fleet.proxy.sni import ServerNames

NAMES = ServerNames(
    [
        AdvertisedListener(
            "external", f"{each}.kafka.example", 9092, 9092, f"b-{{broker_id}}.{each}.kafka.example"
        )
        for each in ("p1", "p2")
    ],
    IdentitySpace(explicit=((1, 0), (1001, 1), (0, 2))),
)


@pytest.mark.parametrize(
    ("name", "broker_id"),
    [
        ("p1.kafka.example", None),
        ("p2.kafka.example", None),
        ("b-1.p1.kafka.example", 1),
        ("b-1001.p2.kafka.example", 1001),
        ("b-0.p2.kafka.example", 0),
        ("B-1.P1.Kafka.Example", 1),
        ("b-1.p1.kafka.example.", 1),
    ],
)
def test_names_of_any_member_are_for_the_identity(name: str, broker_id: int | None) -> None:
    assert NAMES.broker_id(name) == broker_id


@pytest.mark.parametrize(
    "name",
    [
        *(
            None,
            "",
            ".",
            "kafka.example",
            "p3.kafka.example",
            "b-1.p3.kafka.example",
            "b-1.p1.kafka.example.org",
        ),
        *("b-2.p1.kafka.example", "b-01.p1.kafka.example", "b-.p1.kafka.example", "b--1.p1.kafka.example"),
        *("xb-1.p1.kafka.example", "b-1xp1.kafka.example", "b-1.p1.kafka.example\n"),
        "b-\N{ARABIC-INDIC DIGIT ONE}.p1.kafka.example",
        "b-99999999999999999999.p1.kafka.example",
    ],
)
def test_unknown_server_names_are_refused(name: str | None) -> None:
    with pytest.raises(KeyError):
        NAMES.broker_id(name)
