"""What is read of requests: the header, and of two APIs a little more."""

from __future__ import annotations

from struct import Struct
from typing import Final

from fleet.proxy.wire._tables import APIS, PATCHED
from fleet.proxy.wire.addresses import Layout, Streamed
from fleet.proxy.wire.api_versions import (
    API_VERSIONS,
    API_VERSIONS_UNKNOWN,
    API_VERSIONS_V0,
    API_VERSIONS_V3,
    PRODUCE,
)
from fleet.proxy.wire.coordinators import FIND_COORDINATOR, LAST_ASKED_AGAIN, asking_again
from fleet.proxy.wire.fetch import FETCH, WITHOUT_ENDPOINTS
from fleet.proxy.wire.heartbeats import HEARTBEATS
from fleet.proxy.wire.produce import ONE_BATCH, Recognizer

read_request_header: Final = Struct(">iIIh").unpack_from
"""Size; api key and version as one number; correlation id; length of the client id, negative for null."""

# What is remembered of a request is one number: the correlation id, and above it the index into LAYOUTS. So
# a response that passes unread is recognized by one comparison. PLANS gives the part above; -1 minus it where
# more than the header must be read.

LAYOUT_SHIFT: Final = 32
CORRELATION_MASK: Final = (1 << LAYOUT_SHIFT) - 1


def _layouts() -> tuple[tuple[Layout | Streamed | None, ...], dict[int, int]]:
    layouts: list[Layout | Streamed | None] = [None]
    plans = {
        key << 16 | version: 0
        for key, api in APIS.items()
        for version in range(api.min_version, api.max_version + 1)
    }
    for key, first, last, layout in PATCHED:
        for version in range(first, last + 1):
            plans[key << 16 | version] = len(layouts) << LAYOUT_SHIFT
        if key == FIND_COORDINATOR and last <= LAST_ASKED_AGAIN and isinstance(layout, Layout):
            layouts.append(asking_again(layout, first))
        else:
            layouts.append(layout)
    for version in range(APIS[API_VERSIONS].min_version, APIS[API_VERSIONS].max_version + 1):
        plans[API_VERSIONS << 16 | version] = len(layouts) + (version >= 3) << LAYOUT_SHIFT
    layouts += (API_VERSIONS_V0, API_VERSIONS_V3, API_VERSIONS_UNKNOWN)
    for api, plan in plans.items():
        if api >> 16 in (PRODUCE, API_VERSIONS) or api >> 16 in HEARTBEATS:
            plans[api] = -1 - plan
    return tuple(layouts), plans


_MADE: Final = _layouts()
LAYOUTS: Final = _MADE[0]
PLANS: Final = _MADE[1]
VERSIONS: Final = 32
"""How many each API has room for in the table below."""
UNLISTED: Final = -(1 << 62)
"""In place of a plan: the request is not in the tables."""
PLAN_TABLE: Final[list[int]] = [
    PLANS.get(key << 16 | version, UNLISTED) for key in range(max(APIS) + 1) for version in range(VERSIONS)
]
"""``PLANS`` by key times VERSIONS plus version: a list is looked up without a number being made an object."""
UNKNOWN_API_VERSIONS: Final = len(LAYOUTS) - 1 << LAYOUT_SHIFT

API_KEYS: Final = tuple(
    next((key for key, _, _, known in PATCHED if layout and known.name == layout.name), API_VERSIONS)
    for layout in LAYOUTS
)
"""Index into LAYOUTS → api key."""

_USUAL: Final[dict[int, dict[int, Recognizer]]] = {PRODUCE: ONE_BATCH, FETCH: WITHOUT_ENDPOINTS}
_RECOGNIZERS: Final = {
    LAYOUTS.index(layout): _USUAL[key][first] for key, first, _, layout in PATCHED if key in _USUAL
}
WITHOUT_ADDRESS: Final[list[Recognizer | None]] = [_RECOGNIZERS.get(index) for index in range(len(LAYOUTS))]
"""Index into LAYOUTS → recognizes many of the responses in which there is nothing to patch."""
