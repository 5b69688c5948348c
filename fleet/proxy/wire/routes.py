"""The route of a request: which broker can answer it, and where its first key is.

`tools/gen_tables.py` generates a route for each API and version. Only the first key of a request decides.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Kinds of routes.
ANY_BROKER: Final = 0
ALL_BROKERS: Final = 1
"""All brokers have a part of the answer."""
ONE_BROKER: Final = 2
"""One broker, which the request does not name."""
API_VERSIONS_ROUTE: Final = 3
SASL: Final = 4
GROUP: Final = 5
TRANSACTION: Final = 6
CONFIG: Final = 7
"""The broker that the first resource names; any broker if the resource is another one."""
TOPIC_NAME: Final = 8
TOPIC_ID: Final = 9

# Steps to the first key. A positive number skips as many bytes.
SKIP_STRING: Final = -1
ENTER_ARRAY: Final = -2
"""Continue in the first element of an array. An empty array has no key."""


class Route(NamedTuple):
    """The kind of a route, and the steps from the end of the request's header to the first key."""

    kind: int
    steps: tuple[int, ...]
