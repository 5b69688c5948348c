"""Every API and version that Kafka defines passes a fleet, both ways, unchanged except for addresses."""

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
    REBOOTSTRAP_REQUIRED,
    SOCKET_TIMEOUT_S,
    empty_message,
    read_frame,
    request_form,
    request_frame,
    response_form,
)
from tests.conformance.messages import Form, Maker, Reader, encode
from tests.conformance.scripted import SEED, ScriptedSetup, definitions, scripted_setup
from tools.gen_tables import Message, offered

pytestmark = pytest.mark.size("test")

MESSAGES_PER_VERSION = 4
WITH_ADDRESSES = {
    *("Metadata", "FindCoordinator", "DescribeCluster", "Produce", "Fetch", "ShareFetch"),
    *("ShareAcknowledge", "DescribeConfigs", "DescribeQuorum"),
}


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    return definitions()


@pytest.fixture(scope="module")
def setup(messages: list[Message], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSetup]:
    with scripted_setup(tmp_path_factory.mktemp("fleet"), messages) as setup:
        yield setup


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
        reader.check_end()


def test_every_version_passes(setup: ScriptedSetup, messages: list[Message]) -> None:
    outcome = setup.through_fleet().run(MESSAGES_PER_VERSION)
    assert outcome.differences == []
    assert outcome.leaks == []
    ranges = {each.api_key: offered(each) for each in messages}
    assert outcome.tried == {(key, v) for key, each in ranges.items() for v in range(each.low, each.high + 1)}


def test_unknown_tagged_fields_pass(setup: ScriptedSetup, messages: list[Message]) -> None:
    """In requests and responses, in headers and in every struct, and with the tag numbers of padding."""
    conformance = setup.through_fleet(unknown=0.5)
    outcome = conformance.run(2)
    assert outcome.differences == []
    assert outcome.leaks == []
    flexible = sum(
        max(0, offered(each).high + 1 - max(offered(each).low, each.first_flexible)) for each in messages
    )
    assert conformance.maker.made_unknown > 2 * flexible


@pytest.mark.size("test-all")
def test_every_version_passes_a_shared_port(
    messages: list[Message], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """On connections that name their broker."""
    with scripted_setup(tmp_path_factory.mktemp("shared"), messages, "shared") as shared:
        outcome = shared.through_fleet().run(MESSAGES_PER_VERSION)
        assert outcome.differences == []
        assert outcome.leaks == []
        assert list(shared.through_fleet().refused()) == []


def test_unoffered_version_is_refused(setup: ScriptedSetup) -> None:
    assert list(setup.through_fleet().refused()) == []


def test_client_expecting_another_node_must_rebootstrap(setup: ScriptedSetup) -> None:
    """An identity's port leads to its broker, which reports whether it is the expected broker (KIP-1242)."""
    message = setup.brokers.messages[API_VERSIONS]
    error_codes = {}
    for broker_id, endpoint in setup.advertised.items():
        for cluster_id, node_id in product((CLUSTER_ID, "another", None), (-1, *setup.advertised)):
            with socket.create_connection((endpoint.host, endpoint.port), SOCKET_TIMEOUT_S) as client:
                form = request_form(message, 5)
                request_values = {**empty_message(form), "ClusterId": cluster_id, "NodeId": node_id}
                client.sendall(
                    request_frame(message, 5, 1, encode(form, request_values), client_id=b"a client")
                )
                received = read_frame(client)
            response_values = Reader(received[8:]).message(response_form(message, 5))
            error_codes[broker_id, cluster_id, node_id] = response_values["ErrorCode"]
            assert len(response_values["ApiKeys"]) == len(setup.brokers.messages)
    assert error_codes == {
        (broker_id, cluster_id, node_id): 0
        if cluster_id != "another" and node_id in (-1, broker_id)
        else REBOOTSTRAP_REQUIRED
        for broker_id, cluster_id, node_id in error_codes
    }
    assert len(error_codes) == 3 * 3 * 4


def test_checks_find_every_address_without_a_fleet(setup: ScriptedSetup) -> None:
    outcome = setup.direct_to_brokers().run(MESSAGES_PER_VERSION)
    assert {each.partition(" ")[0] for each in outcome.leaks} == WITH_ADDRESSES
    assert {each.partition(" ")[0] for each in outcome.differences} >= {*WITH_ADDRESSES, "ApiVersions"}
    assert len(list(setup.direct_to_brokers().refused())) > len(WITH_ADDRESSES)
