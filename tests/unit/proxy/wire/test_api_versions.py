"""ApiVersions responses, restricted to the versions that the fleet knows."""

from __future__ import annotations

import datetime
import importlib
import io
import struct

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from fleet.core.errors import MalformedFrame, TruncatedFrame
from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.api_versions import API_VERSIONS, offered_range
from tests.property.wire_fleet import Play

BROKER = [
    (0, 0, 13),
    (1, 4, 18),
    (3, 0, 99),
    (4, 0, 7),
    (10, 7, 9),
    (18, 0, 4),
    (52, 0, 2),
    (55, 0, 3),
    (999, 0, 3),
]
CLIENT = [(0, 0, 13), (1, 4, 18), (3, 0, 13), (18, 0, 4), (55, 0, 2)]


def response(
    version: int, ranges: list[tuple[int, int, int]], error: ErrorCode, features: bool = True
) -> bytes:
    module = importlib.import_module(f"kio.schema.api_versions.v{version}.response")
    keys = tuple(
        module.ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in ranges
    )
    more: dict[str, object] = {}
    if version >= 1:
        more["throttle_time"] = datetime.timedelta(milliseconds=77)
    if version >= 3 and features:
        supported = module.SupportedFeatureKey(name="metadata.version", min_version=1, max_version=27)
        more |= {
            "supported_features": (supported,),
            "finalized_features_epoch": 9,
            "zk_migration_ready": True,
        }
    entity = module.ApiVersionsResponse(error_code=error, api_keys=keys, **more)
    buffer = io.BytesIO()
    entity_writer(module.ApiVersionsResponse)(buffer, entity)
    # The header of an ApiVersions response has no tagged fields in any version.
    return struct.pack(">ii", len(buffer.getvalue()) + 4, 5) + buffer.getvalue()


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("split", [0, 3, 11, 40])
def test_ranges_are_cut_and_the_rest_is_kept(version: int, split: int) -> None:
    play = Play.new()
    play.ask((API_VERSIONS, version, 5))
    raw = response(version, BROKER, ErrorCode.none)
    play.broker(raw[:split])
    play.broker(raw[split:])
    assert bytes(play.to_client) == response(version, CLIENT, ErrorCode.none)
    assert play.session.in_flight == 0


@pytest.mark.parametrize("version", range(6))
def test_broker_that_does_not_know_the_version_answers_in_v0(version: int) -> None:
    play = Play.new()
    play.ask((API_VERSIONS, version, 5))
    play.broker(response(0, [(18, 0, 9)], ErrorCode.unsupported_version))
    assert bytes(play.to_client) == response(0, [(18, 0, 5)], ErrorCode.unsupported_version)


@pytest.mark.parametrize("version", range(6))
def test_v0_body_is_recognized_by_its_form_whatever_its_error(version: int) -> None:
    """Found by the model broker: a broker that expects a SASL token answers 34, in a v0 body if necessary."""
    play = Play.new()
    play.ask((API_VERSIONS, version, 5))
    refused = response(0, [], ErrorCode.illegal_sasl_state)
    play.broker(refused)
    assert bytes(play.to_client) == refused


@pytest.mark.parametrize("version", [3, 4])
def test_flexible_body_with_an_error_is_recognized(version: int) -> None:
    play = Play.new()
    play.ask((API_VERSIONS, version, 5))
    refused = response(version, [], ErrorCode.illegal_sasl_state)
    play.broker(refused)
    assert bytes(play.to_client) == refused


def test_elements_keep_their_unknown_tags() -> None:
    play = Play.new()
    play.ask((API_VERSIONS, 3, 5))
    tags = b"\x01\x09\x02zz"

    def framed(*ranges: tuple[int, int, int]) -> bytes:
        keys = b"".join(struct.pack(">hhh", *each) + tags for each in ranges)
        body = struct.pack(">ih", 5, 0) + bytes([len(ranges) + 1]) + keys + bytes(4) + tags
        return struct.pack(">i", len(body)) + body

    play.broker(framed((999, 0, 1), (3, 0, 99), (1, 4, 19)))
    assert bytes(play.to_client) == framed((3, 0, 13), (1, 4, 18))


def test_no_range_is_empty_or_inverted() -> None:
    for key in range(-2, 120):
        for low in range(-1, 22):
            for high in range(-1, 22):
                both = offered_range(key, low, high)
                if both is None:
                    continue
                api = APIS[key]
                assert both[0] <= both[1]
                assert low <= both[0]
                assert both[1] <= min(high, api.max_version)
                assert key in (0, 17) or both[0] >= api.min_version
    assert offered_range(0, 0, 13) == (0, 13), "KAFKA-18659: librdkafka requires v0"


def test_sasl_handshake_stays_listed_from_v0_on() -> None:
    """librdkafka before 2.11.1 assumes no SASL in a cluster that does not list v0."""
    assert offered_range(17, 0, 1) == (0, 1)
    assert offered_range(17, 1, 1) == (1, 1)
    assert offered_range(17, 0, 0) is None
    assert offered_range(0, 0, 2) is None
    assert offered_range(3, 14, 20) is None


@pytest.mark.parametrize("count", [-1, 2, 2**31 - 1, -(2**31)])
def test_invalid_counts_are_refused(count: int) -> None:
    play = Play.new()
    play.ask((API_VERSIONS, 0, 5))
    with pytest.raises(MalformedFrame):
        play.broker(struct.pack(">iihihhh", 16, 5, 0, count, 3, 0, 1))


@pytest.mark.parametrize("version", range(5))
def test_every_truncation_is_refused(version: int) -> None:
    raw = response(version, BROKER, ErrorCode.none, features=False)
    untouched = {0: 0, 1: 4, 2: 4, 3: 5, 4: 5}[version]
    for cut in range(8, len(raw) - untouched):
        play = Play.new()
        play.ask((API_VERSIONS, version, 5))
        with pytest.raises((TruncatedFrame, MalformedFrame)):
            play.broker(struct.pack(">i", cut - 4) + raw[4:cut])
