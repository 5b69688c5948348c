"""The proxy's part of the protocol, frame by frame, in front of real brokers."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterator

import pytest
from kio.schema.describe_quorum.v2.response import DescribeQuorumResponse
from kio.serial import entity_reader

from fleet.core.model import BrokerId, Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.integration import wire
from tests.integration.wire import ApiVersions, Connection, string

pytestmark = pytest.mark.size("test")

ILLEGAL_SASL_STATE = 34
UNSUPPORTED_VERSION = 35


def identity_port(fleet: LocalFleet, proxy_id: str, broker_id: BrokerId) -> Endpoint:
    """The address of an identity at one member, regardless of the owner."""
    endpoint = fleet.settings.member(proxy_id).to_member(fleet.settings).endpoint("external", broker_id)
    assert endpoint is not None
    return endpoint


@pytest.fixture(params=["bootstrap", "identity"])
def connection(request: pytest.FixtureRequest, fleet: LocalFleet) -> Iterator[Connection]:
    """A connection to a bootstrap port, and one to an identity's port at a member that does not own it."""
    owners = {each.broker_id: each.committed for each in fleet.ownership("p1").identities}
    stranger = next(proxy_id for proxy_id in fleet.members if proxy_id not in owners[1])
    endpoint = (
        fleet.bootstrap_endpoint("p1") if request.param == "bootstrap" else identity_port(fleet, stranger, 1)
    )
    with Connection(endpoint) as made:
        yield made


def test_produce_without_acks_has_no_response_and_continues(
    connection: Connection,
) -> None:
    connection.send(wire.produce(1, acks=0) + wire.metadata(2) + wire.produce(3, acks=0))
    assert connection.receive()[0] == 2
    assert connection.ask(wire.produce(4, acks=1))[:4] == bytes(4)  # no topics
    connection.send(wire.produce(5, acks=0))
    assert connection.ask(wire.metadata(6))


def test_sasl_handshake_v1_is_answered_by_the_broker(connection: Connection) -> None:
    body = connection.ask(wire.request(wire.SASL_HANDSHAKE, 1, 1, string("PLAIN")))
    assert int.from_bytes(body[:2], "big") == ILLEGAL_SASL_STATE


def test_sasl_handshake_v0_closes_the_connection(connection: Connection) -> None:
    connection.send(wire.request(wire.SASL_HANDSHAKE, 0, 1, string("PLAIN")) + wire.metadata(2))
    assert connection.ends()


def test_unknown_version_of_api_versions_gets_a_usable_one(connection: Connection) -> None:
    refused = ApiVersions.parse(connection.ask(wire.request(wire.API_VERSIONS, 32767, 1)))
    assert refused.error_code == UNSUPPORTED_VERSION
    assert refused.ranges.keys() == {wire.API_VERSIONS}
    low, high = refused.ranges[wire.API_VERSIONS]
    assert low == 0
    assert high >= 4
    accepted = ApiVersions.parse(connection.ask(wire.request(wire.API_VERSIONS, low, 2)))
    assert accepted.error_code == 0


def test_offered_versions_are_those_of_broker_and_fleet(connection: Connection, kafka: KafkaCluster) -> None:
    offered = ApiVersions.parse(connection.ask(wire.request(wire.API_VERSIONS, 0, 1))).ranges
    with Connection(kafka.endpoints[0]) as broker:
        of_broker = ApiVersions.parse(broker.ask(wire.request(wire.API_VERSIONS, 0, 1))).ranges
    for key, (low, high) in offered.items():
        assert of_broker[key][0] <= low <= high <= of_broker[key][1], key
    assert offered[wire.PRODUCE][0] == 0  # KAFKA-18659
    assert offered[wire.FETCH] == of_broker[wire.FETCH]
    assert offered[wire.DESCRIBE_QUORUM] == of_broker[wire.DESCRIBE_QUORUM]
    assert offered[wire.METADATA] == of_broker[wire.METADATA]
    assert len(offered) > 50


@pytest.mark.parametrize(
    ("key", "version"),
    [(999, 0), (-1, 0), (wire.FETCH, 19), (wire.DESCRIBE_QUORUM, 3), (wire.METADATA, 99)],
)
def test_unoffered_request_closes_the_connection(
    fleet: LocalFleet, connection: Connection, key: int, version: int
) -> None:
    """The proxy closes the connection before a broker could answer: the answer could not be made safe."""
    assert connection.ask(wire.metadata(1))
    connection.send(wire.request(key, version, 2, bytes(8)))
    assert connection.ends()


def quorum_of(body: bytes) -> DescribeQuorumResponse:
    """An answer to ``wire.describe_quorum``, whose header has no tagged fields."""
    response, size = entity_reader(DescribeQuorumResponse)(body, 1)
    assert (body[0], 1 + size) == (0, len(body))
    return response


def test_describe_quorum_names_controllers_without_addresses(
    connection: Connection, kafka: KafkaCluster
) -> None:
    """Found: kafka-python 3 raises KeyError for `error_message`, which v1 does not have."""
    through = quorum_of(connection.ask(wire.describe_quorum(1)))
    with Connection(kafka.endpoints[0]) as broker:
        direct = quorum_of(broker.ask(wire.describe_quorum(1)))
    at = {broker_id: kafka.listener("CONTROLLER", broker_id) for broker_id in kafka.brokers}
    assert listeners(direct) == {each: [("CONTROLLER", at[each].host, at[each].port)] for each in at}
    assert listeners(through) == {each: [("CONTROLLER", "", 0)] for each in at}
    assert settled(through) == settled(direct)


def settled(response: DescribeQuorumResponse) -> tuple[object, ...]:
    """The part of an answer that stays the same while brokers are running."""
    ((partition,),) = (topic.partitions for topic in response.topics)
    assert partition.current_voters
    voters = [(each.replica_id, each.replica_directory_id) for each in partition.current_voters]
    of_both = [(each.error_code, each.error_message) for each in (response, partition)]
    return of_both, partition.leader_id, partition.leader_epoch, voters


def listeners(response: DescribeQuorumResponse) -> dict[int, list[tuple[str, str, int]]]:
    return {
        node.node_id: [(each.name, each.host, each.port) for each in node.listeners]
        for node in response.nodes
    }


def client_hello() -> bytes:
    """The first flight of a TLS client."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="kafka")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


@pytest.mark.parametrize(
    "frame",
    [b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", client_hello(), b"\xff" * 32],
    ids=["http", "tls", "junk"],
)
def test_another_protocol_is_closed(connection: Connection, frame: bytes) -> None:
    connection.send(frame)
    assert connection.ends()


def test_every_member_serves_every_identity(fleet: LocalFleet, kafka: KafkaCluster) -> None:
    """Nine ports, each of which leads to the broker of its id, as the broker itself reports."""
    for proxy_id in fleet.members:
        for broker_id in kafka.brokers:
            with Connection(identity_port(fleet, proxy_id, broker_id)) as connection:
                assert config_error(connection, broker_id) == 0
                assert config_error(connection, broker_id % 3 + 1) != 0


def config_error(connection: Connection, broker_id: BrokerId) -> int:
    """The answer for a broker's configuration: a broker refuses to describe other brokers."""
    answer = connection.ask(wire.describe_broker_config(1, broker_id, "node.id"))
    (error_code,) = struct.unpack_from(">h", answer, 8)  # DescribeConfigsResponse.json v1: throttle, count
    return int(error_code)
