"""The header of requests, and the layouts of their responses."""

from __future__ import annotations

from struct import Struct
from typing import Final

from fleet.core.errors import MalformedFrame, OversizeFrame, UnsupportedVersion
from fleet.proxy.wire._tables import APIS, PATCHED
from fleet.proxy.wire.addresses import Layout, Streamed
from fleet.proxy.wire.api_versions import (
    API_VERSIONS,
    API_VERSIONS_UNKNOWN,
    API_VERSIONS_V0,
    API_VERSIONS_V3,
    PRODUCE,
    SASL_HANDSHAKE,
)
from fleet.proxy.wire.coordinators import FIND_COORDINATOR, LAST_RETRY_VERSION, with_retry_after_move
from fleet.proxy.wire.fetch import FETCH, FETCH_RECOGNIZERS
from fleet.proxy.wire.heartbeats import HEARTBEATS
from fleet.proxy.wire.produce import PRODUCE_RECOGNIZERS, Recognizer

read_request_header: Final = Struct(">iIIh").unpack_from
"""Size; API key and version as one number; correlation id; length of the client id, negative for null."""

# The entry that is remembered for a request is one number: the correlation id, and above it the index into
# LAYOUTS. So one comparison recognizes a response that passes unread. RESPONSE_LAYOUTS has the upper part of
# the entry, or -1 minus it if more than the header must be read.

LAYOUT_SHIFT: Final = 32
CORRELATION_MASK: Final = (1 << LAYOUT_SHIFT) - 1


def _build_layouts() -> tuple[tuple[Layout | Streamed | None, ...], dict[int, int]]:
    """Build LAYOUTS and RESPONSE_LAYOUTS from the generated tables; the comment above explains both.

    Index 0 of LAYOUTS is None, the layout of all responses that pass unread.
    """
    layouts: list[Layout | Streamed | None] = [None]
    response_layouts = {
        key << 16 | version: 0
        for key, api in APIS.items()
        for version in range(api.min_version, api.max_version + 1)
    }
    for key, first, last, layout in PATCHED:
        for version in range(first, last + 1):
            response_layouts[key << 16 | version] = len(layouts) << LAYOUT_SHIFT
        if key == FIND_COORDINATOR and last <= LAST_RETRY_VERSION and isinstance(layout, Layout):
            layouts.append(with_retry_after_move(layout, first))
        else:
            layouts.append(layout)
    for version in range(APIS[API_VERSIONS].min_version, APIS[API_VERSIONS].max_version + 1):
        response_layouts[API_VERSIONS << 16 | version] = len(layouts) + (version >= 3) << LAYOUT_SHIFT
    layouts += (API_VERSIONS_V0, API_VERSIONS_V3, API_VERSIONS_UNKNOWN)
    for api, response_layout in response_layouts.items():
        if api >> 16 in (PRODUCE, API_VERSIONS) or api >> 16 in HEARTBEATS:
            response_layouts[api] = -1 - response_layout
    return tuple(layouts), response_layouts


_BUILT: Final = _build_layouts()
LAYOUTS: Final = _BUILT[0]
RESPONSE_LAYOUTS: Final = _BUILT[1]
VERSIONS_PER_API: Final = 32
"""Number of versions of each API in the table below."""
UNLISTED: Final = -(1 << 62)
"""The value of the response layout of a request that is not in the tables."""
RESPONSE_LAYOUT_TABLE: Final[list[int]] = [
    RESPONSE_LAYOUTS.get(key << 16 | version, UNLISTED)
    for key in range(max(APIS) + 1)
    for version in range(VERSIONS_PER_API)
]
"""``RESPONSE_LAYOUTS`` by key times VERSIONS_PER_API plus version: a list look-up creates no object."""
UNKNOWN_API_VERSIONS: Final = len(LAYOUTS) - 1 << LAYOUT_SHIFT

API_KEYS: Final = tuple(
    next((key for key, _, _, known in PATCHED if layout and known.name == layout.name), API_VERSIONS)
    for layout in LAYOUTS
)
"""Index into LAYOUTS → API key."""

_RECOGNIZERS_BY_API: Final[dict[int, dict[int, Recognizer]]] = {
    PRODUCE: PRODUCE_RECOGNIZERS,
    FETCH: FETCH_RECOGNIZERS,
}
_RECOGNIZERS: Final = {
    LAYOUTS.index(layout): _RECOGNIZERS_BY_API[key][first]
    for key, first, _, layout in PATCHED
    if key in _RECOGNIZERS_BY_API
}
RECOGNIZERS: Final[list[Recognizer | None]] = [_RECOGNIZERS.get(index) for index in range(len(LAYOUTS))]
"""Index into LAYOUTS → recognizer of many responses without an address."""


def unlisted_response_layout(api_key: int, version: int) -> int:
    """Return the layout of the response to a request that is not in the tables.

    Raises: UnsupportedVersion: not ApiVersions, of which brokers refuse unknown versions in a known form.
    """
    if (api_key, version) == (SASL_HANDSHAKE, 0):
        detail = "SaslHandshake v0 is not supported, because its tokens have no header; use v1"
        raise UnsupportedVersion("client", detail)
    if api_key != API_VERSIONS:
        raise UnsupportedVersion("client", f"API key {api_key}, version {version} is not offered")
    return UNKNOWN_API_VERSIONS


def size_error(size: int, limit: int) -> MalformedFrame | OversizeFrame:
    if size > limit:
        return OversizeFrame("client", f"request of {size} bytes is above {limit}")
    return MalformedFrame("client", f"impossible request size of {size} bytes")
