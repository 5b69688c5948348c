"""Every API and version that Kafka defines through a fleet, both ways, byte for byte but for addresses."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from itertools import product

import pytest

from fleet.core.model import Endpoint
from tests.conformance.exchange import (
    API_VERSIONS,
    CLUSTER_ID,
    LIMIT_S,
    REBOOTSTRAP_REQUIRED,
    nothing,
    read_frame,
    request_form,
    request_frame,
    response_form,
)
from tests.conformance.messages import Form, Maker, Reader, encode
from tests.conformance.scripted import SEED, Ground, definitions, ground
from tools.gen_tables import Message, offered

pytestmark = pytest.mark.size("test")

TIMES = 4
WITH_ADDRESSES = {
    *("Metadata", "FindCoordinator", "DescribeCluster", "Produce", "Fetch", "ShareFetch"),
    *("ShareAcknowledge", "DescribeConfigs", "DescribeQuorum"),
}


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    return definitions()


@pytest.fixture(scope="module")
def there(messages: list[Message], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground(tmp_path_factory.mktemp("fleet"), messages) as made:
        yield made


def test_messages_are_read_as_they_were_written(messages: list[Message]) -> None:
    maker = Maker(random.Random(SEED), {1: Endpoint("broker", 9092)}, unknown=0.3)
    forms: list[Form] = []
    for message in messages:
        for version in range(message.versions.low, message.versions.high + 1):
            forms += (request_form(message, version), response_form(message, version))
    for form in forms * 3:
        values = maker.message(form)
        reader = Reader(encode(form, values), unknown=True)
        assert reader.message(form) == values
        reader.end()


def test_every_version_passes(there: Ground, messages: list[Message]) -> None:
    outcome = there.through_the_fleet().run(TIMES)
    assert outcome.differences == []
    assert outcome.leaks == []
    ranges = {each.api_key: offered(each) for each in messages}
    assert outcome.tried == {(key, v) for key, each in ranges.items() for v in range(each.low, each.high + 1)}


def test_tagged_fields_that_nobody_knows_pass(there: Ground, messages: list[Message]) -> None:
    """In requests and responses, in headers and in every struct; also with the numbers that padding has."""
    conformance = there.through_the_fleet(unknown=0.5)
    outcome = conformance.run(2)
    assert outcome.differences == []
    assert outcome.leaks == []
    flexible = sum(
        max(0, offered(each).high + 1 - max(offered(each).low, each.first_flexible)) for each in messages
    )
    assert conformance.maker.made_unknown > 2 * flexible


def test_unoffered_version_is_refused(there: Ground) -> None:
    assert list(there.through_the_fleet().refused()) == []


def test_client_expecting_another_node_must_rebootstrap(there: Ground) -> None:
    """An identity's port leads to its broker, which says whether it is the expected one (KIP-1242)."""
    message = there.brokers.messages[API_VERSIONS]
    found = {}
    for broker_id, endpoint in there.advertised.items():
        for cluster_id, node_id in product((CLUSTER_ID, "another", None), (-1, *there.advertised)):
            with socket.create_connection((endpoint.host, endpoint.port), LIMIT_S) as client:
                form = request_form(message, 5)
                asked = {**nothing(form), "ClusterId": cluster_id, "NodeId": node_id}
                client.sendall(request_frame(message, 5, 1, encode(form, asked), client_id=b"a client"))
                received = read_frame(client)
            answer = Reader(received[8:]).message(response_form(message, 5))
            found[broker_id, cluster_id, node_id] = answer["ErrorCode"]
            assert len(answer["ApiKeys"]) == len(there.brokers.messages)
    assert found == {
        (broker_id, cluster_id, node_id): 0
        if cluster_id != "another" and node_id in (-1, broker_id)
        else REBOOTSTRAP_REQUIRED
        for broker_id, cluster_id, node_id in found
    }
    assert len(found) == 3 * 3 * 4


def test_without_a_fleet_all_of_this_would_be_found(there: Ground) -> None:
    outcome = there.without_a_fleet().run(TIMES)
    assert {each.partition(" ")[0] for each in outcome.leaks} == WITH_ADDRESSES
    assert {each.partition(" ")[0] for each in outcome.differences} >= {*WITH_ADDRESSES, "ApiVersions"}
    assert len(list(there.without_a_fleet().refused())) > len(WITH_ADDRESSES)
