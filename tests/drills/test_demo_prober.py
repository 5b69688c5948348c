from __future__ import annotations

import datetime
import io
import struct

import pytest
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import MetadataResponse, MetadataResponseBroker
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import BrokerId
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32, i32Timedelta

from fleet.core.errors import MalformedFrame, TruncatedFrame
from fleet.core.model import Endpoint, ProxyId
from fleet.drills.workload.prober import Change, Prober
from fleet.proxy.wire.metadata import brokers_of, metadata_request

P1, P2, P3 = (Endpoint("127.0.0.1", port) for port in (1001, 1002, 1003))
OWNERS: dict[Endpoint, ProxyId] = {P1: "p1", P2: "p2", P3: "p3"}


def response(correlation_id: int, brokers: dict[int, Endpoint], rack: str | None = None) -> bytes:
    """A Metadata response, encoded by kio, without its length."""
    buffer = io.BytesIO()
    entity_writer(ResponseHeader)(buffer, ResponseHeader(correlation_id=i32(correlation_id)))
    body = MetadataResponse(
        throttle_time=i32Timedelta.parse(datetime.timedelta()),
        brokers=tuple(
            MetadataResponseBroker(node_id=BrokerId(known), host=at.host, port=i32(at.port), rack=rack)
            for known, at in brokers.items()
        ),
        cluster_id="c",
        controller_id=BrokerId(1),
        topics=(),
    )
    entity_writer(MetadataResponse)(buffer, body)
    return buffer.getvalue()


def test_the_request_is_one_that_kio_reads() -> None:
    frame = metadata_request(77)
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    header, used = entity_reader(RequestHeader)(frame, 4)
    assert (header.request_api_key, header.request_api_version, header.correlation_id) == (3, 12, 77)
    body, more = entity_reader(MetadataRequest)(frame, 4 + used)
    assert (body.topics, body.allow_auto_topic_creation) == ((), False)
    assert 4 + used + more == len(frame)


@pytest.mark.parametrize("rack", [None, "", "a", "r" * 200])
def test_brokers_are_read_from_what_kio_writes(rack: str | None) -> None:
    brokers = {1: P1, 200: Endpoint("h" * 150, 65535), 3: Endpoint("", 0)}
    assert brokers_of(response(5, brokers, rack), 5) == brokers


def test_metadata_of_another_correlation_id_is_rejected() -> None:
    with pytest.raises(MalformedFrame, match="correlation id 5, expected 6"):
        brokers_of(response(5, {1: P1}), 6)


def test_metadata_that_ends_inside_a_broker_is_rejected() -> None:
    with pytest.raises(TruncatedFrame):
        brokers_of(response(5, {1: P1})[:16], 5)


def prober(**changes: list[Change]) -> Prober:
    made = Prober({proxy_id: P1 for proxy_id in changes}, OWNERS.get)
    made.changes.update(changes)
    return made


def test_fleet_is_live_once_all_survivors_advertise_survivors() -> None:
    before = Change(1.0, {1: P1, 2: P2, 3: P3})
    probed = prober(
        p1=[before, Change(10.4, {1: P1, 2: P1, 3: P3})],
        p3=[before, Change(10.7, {1: P1, 2: P3, 3: P3})],
        p2=[before],
    )
    assert probed.live_since_s({1, 2, 3}, ("p1", "p3"), 10.0) == 10.7
    assert probed.owners("p3") == {1: "p1", 2: "p3", 3: "p3"}


def test_fleet_with_a_survivor_advertising_the_dead_is_not_live() -> None:
    before = Change(1.0, {1: P1, 2: P2, 3: P3})
    probed = prober(p1=[before, Change(10.4, {1: P1, 2: P1, 3: P3})], p3=[before])
    assert probed.live_since_s({1, 2, 3}, ("p1", "p3"), 10.0) is None


def test_fleet_with_a_missing_or_unknown_address_is_not_live() -> None:
    missing = prober(p1=[Change(11.0, {1: P1, 2: P1})])
    assert missing.live_since_s({1, 2, 3}, ("p1",), 10.0) is None
    foreign = prober(p1=[Change(11.0, {1: P1, 2: P1, 3: Endpoint("127.77.3.3", 9092)})])
    assert foreign.live_since_s({1, 2, 3}, ("p1",), 10.0) is None


def test_a_relapse_starts_the_clock_again() -> None:
    good, bad = {1: P1, 2: P1}, {1: P1, 2: P2}
    probed = prober(p1=[Change(10.1, good), Change(10.2, bad), Change(10.9, good)])
    assert probed.live_since_s({1, 2}, ("p1",), 10.0) == 10.9


def test_change_between_survivors_keeps_the_live_time() -> None:
    probed = prober(p1=[Change(10.1, {1: P1, 2: P1}), Change(12.0, {1: P3, 2: P1})], p3=[])
    assert probed.live_since_s({1, 2}, ("p1", "p3"), 10.0) is None
    probed.changes["p3"] = [Change(9.0, {1: P1, 2: P1})]
    assert probed.live_since_s({1, 2}, ("p1", "p3"), 10.0) == 10.1
