"""Every API and version that Kafka defines through a fleet, both ways, byte for byte but for addresses."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from fleet.model import Endpoint
from tests.conformance.exchange import request_form, response_form
from tests.conformance.messages import Form, Maker, Reader, encode
from tests.conformance.scripted import SEED, Ground, definitions, ground
from tools.gen_tables import Message, offered

TIMES = 4
WITH_ADDRESSES = {
    *("Metadata", "FindCoordinator", "DescribeCluster", "Produce", "Fetch", "ShareFetch"),
    *("ShareAcknowledge", "DescribeConfigs"),
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


def test_what_is_not_offered_is_refused(there: Ground) -> None:
    assert list(there.through_the_fleet().refused()) == []


def test_without_a_fleet_all_of_this_would_be_found(there: Ground) -> None:
    outcome = there.without_a_fleet().run(TIMES)
    assert {each.partition(" ")[0] for each in outcome.leaks} == WITH_ADDRESSES
    assert {each.partition(" ")[0] for each in outcome.differences} >= {*WITH_ADDRESSES, "ApiVersions"}
    assert len(list(there.without_a_fleet().refused())) > len(WITH_ADDRESSES)
