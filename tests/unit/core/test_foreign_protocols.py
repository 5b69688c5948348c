"""fleet/core/foreign_protocols.py: the protocol of a connection by its first bytes."""

from __future__ import annotations

import pytest

from fleet.config import Limits
from fleet.core.foreign_protocols import (
    NotTls,
    Protocol,
    at_admin_address,
    at_listener,
    at_peer_address,
    in_place_of_tls,
    name_protocol,
    of_dialled_peer,
)
from fleet.tls.peers import explain

CLIENT_HELLO = bytes.fromhex("16030100f8010000f40303ab12cd")
FIRST_BYTES: dict[bytes, Protocol | None] = {
    CLIENT_HELLO: "TLS",
    bytes.fromhex("15030100020228"): "TLS",
    b"GET / HTTP/1.1\r\n": "HTTP",
    b"POST /topics HTTP/1.1\r\n": "HTTP",
    b"HEAD / HTTP/1.0\r\n": "HTTP",
    b"PUT / HTTP/1.1\r\n": "HTTP",
    b"OPTIONS * HTTP/1.0\r\n": "HTTP",
    b"HTTP/1.1 400 Bad Request\r\n": "HTTP",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": "HTTP/2",
    b"PROXY TCP4 10.0.0.1 10.0.0.2 5 9092\r\n": "PROXY protocol v1",
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c": "PROXY protocol v2",
    b"SSH-2.0-OpenSSH_9.2p1\r\n": "SSH",
    bytes.fromhex("00000019 0012 0003 00000001 0005"): "Kafka",
    bytes.fromhex("00000043 0000 0009 00000001 0005"): "Kafka",
    b"": None,
    b"GET": None,
    b"GETTING STARTED": None,
    b"\x00\x00\x00": None,
    b"\xff" * 32: None,
    b'\x00\x00\x00\x40\x01{"fleet":"demo"': None,
}


@pytest.mark.parametrize(("first_bytes", "expected"), FIRST_BYTES.items())
def test_protocol_is_named_by_its_first_bytes(first_bytes: bytes, expected: Protocol | None) -> None:
    assert name_protocol(first_bytes) == expected


@pytest.mark.parametrize("first_bytes", [each for each, named in FIRST_BYTES.items() if len(each) >= 14])
def test_foreign_first_bytes_are_no_size_that_a_listener_takes(first_bytes: bytes) -> None:
    size = int.from_bytes(first_bytes[:4], "big", signed=True)
    is_kafka = name_protocol(first_bytes) == "Kafka" or first_bytes.startswith(b"\x00")
    assert is_kafka or not 10 <= size <= Limits().max_request_bytes, "or the frame would be waited for"


@pytest.mark.parametrize("protocol", sorted({each for each in FIRST_BYTES.values() if each is not None}))
def test_message_and_fix_exist_for_each_place_and_protocol(protocol: Protocol) -> None:
    messages = [
        at_listener(protocol, "external", secured=False),
        at_listener(protocol, "external", secured=True),
        in_place_of_tls(NotTls(protocol), "external"),
        at_peer_address(protocol),
        of_dialled_peer(protocol, "p2"),
        at_admin_address(protocol),
    ]
    for each in messages[2:5] if protocol == "Kafka" else messages:
        if each is None:
            assert protocol == "HTTP", "an admin address speaks it"
            continue
        assert protocol in each
        assert "; " in each or "no peer_tls" in each
    if protocol == "Kafka":
        assert messages[:2] == [None, None]


def test_message_names_mistake_and_fix() -> None:
    assert at_listener("TLS", "external", secured=False) == (
        "it speaks TLS to the plaintext listener external; set security.protocol=PLAINTEXT or SASL_PLAINTEXT "
        "in the client, or give the listener certificates (listener_tls.external)"
    )
    assert in_place_of_tls(NotTls("Kafka"), "external") == (
        "it does not speak TLS: it speaks Kafka to the TLS listener external; set security.protocol=SSL or "
        "SASL_SSL in the client"
    )
    assert explain(NotTls("SSH")) == "it does not speak TLS: it speaks SSH"
