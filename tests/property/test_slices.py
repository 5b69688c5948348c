"""A response that is patched in slices equals the response that is patched at once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.core.errors import MalformedFrame, TruncatedFrame
from fleet.proxy.wire._tables import PATCHED
from fleet.proxy.wire.addresses import Layout, Parts
from fleet.proxy.wire.primitives import OUT_OF_BYTES
from tests.examples import examples
from tests.property import wire_fleet
from tests.property.test_patch import CORRELATION_ID, OneAddress, sample
from tests.property.wire_fleet import Play, small_slices

SLICED = [
    (key, version, layout)
    for key, first, last, layout in PATCHED
    if isinstance(layout, Layout) and layout.slices is not None
    for version in range(first, last + 1)
]
NAMES = [f"{layout.name}-{version}" for _, version, layout in SLICED]
quick = settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_each_response_that_is_held_whole_has_slices() -> None:
    held = {layout.name for *_, layout in PATCHED if isinstance(layout, Layout) and layout.whole}
    assert held == {layout.name for *_, layout in SLICED}
    assert {"describe_configs_v4", "find_coordinator_v4", "produce_v10", "share_acknowledge_v1"} <= held


@pytest.mark.parametrize(("key", "version", "layout"), SLICED, ids=NAMES)
@quick
@given(
    seed=st.integers(0, 2**32),
    slice_bytes=st.integers(1, 300),
    cuts=st.lists(st.integers(0, 6_000), max_size=6),
)
def test_slices_give_what_one_patch_gives(
    key: int, version: int, layout: Layout, seed: int, slice_bytes: int, cuts: list[int]
) -> None:
    raw, expected = sample(key, version, seed)
    with small_slices(slice_bytes):
        play = Play.new()
        play.ask((key, version, CORRELATION_ID), (key, version, CORRELATION_ID))
        for piece in wire_fleet.pieces(raw + raw, cuts):
            play.broker(piece)
    assert bytes(play.to_client) == expected + expected
    assert play.session.in_flight == 0
    assert play.counters.rewritten[key] == 2 * (_is_patched(layout, raw))


def _is_patched(layout: Layout, raw: bytes) -> bool:
    parts: Parts = []
    layout.patch(memoryview(raw), OneAddress(), parts)
    return bool(parts)


@pytest.mark.parametrize(("key", "version", "layout"), SLICED, ids=NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_response_that_ends_too_early_is_refused_in_slices(
    key: int, version: int, layout: Layout, seed: int
) -> None:
    raw, _ = sample(key, version, seed)
    for cut in range(8, len(raw), max(1, len(raw) // 100)):
        short = (cut - 4).to_bytes(4, "big") + raw[4:cut]
        try:
            layout.patch(memoryview(short), OneAddress(), [b""])
        except (*OUT_OF_BYTES, MalformedFrame):
            with small_slices(16):
                play = Play.new()
                play.ask((key, version, CORRELATION_ID))
                with pytest.raises((TruncatedFrame, MalformedFrame)):
                    play.broker(short)
            assert not play.to_client
