"""Decides which broker each request of a connection is for, where one port serves all brokers. No I/O.

    UNKNOWN ──the member owns one identity──► ASSUMED ──another key, asked again──► INFERRED
       ├──first request with a key────────────────────────────────────────────────────▲
       └──ApiVersions v5 with a node id──► EXACT

Clients keep a connection for each broker id, so the first key of the first keyed request says which broker a
connection is for. While this is inferred, the first key of each keyed request is checked again: a key of
another broker makes the worker ask the cluster, and the cluster's answer decides. A request is never split,
and only one broker at a time has requests in flight, so responses keep their order.

The session calls `Router.route` for each frame, until the identity is exact. If the frame has to wait, the
connection does what ``wait`` says, and presents the frame again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from librt.strings import read_i16_be, read_i32_be

from fleet.core.errors import OversizeFrame, UnidentifiedBroker
from fleet.core.model import BrokerId
from fleet.proxy.frame_limits import HEADER_LIMIT_BYTES, PROBE_LIMIT_BYTES
from fleet.proxy.routing_map import UNKNOWN, RoutingMap
from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.api_versions import read_expectation
from fleet.proxy.wire.fetch import FETCH
from fleet.proxy.wire.merging import LIST_GROUPS, LIST_TRANSACTIONS
from fleet.proxy.wire.produce import REQUEST_HEADER_BYTES
from fleet.proxy.wire.racks import FIRST_WITH_RACK, blank_rack, has_no_rack
from fleet.proxy.wire.rejections import has_sessions, reject_log_dirs, reject_session
from fleet.proxy.wire.requests import VERSIONS_PER_API
from fleet.proxy.wire.routes import ALL_BROKERS, API_VERSIONS_ROUTE, CONFIG, GROUP, ONE_BROKER, SASL
from fleet.proxy.wire.routing_keys import KEY_FOUND, KEY_INCOMPLETE, ROUTE_TABLE, RoutingKey
from fleet.proxy.wire.verdicts import INCOMPLETE, ORDINARY

if TYPE_CHECKING:
    from mypy_extensions import i64

    from fleet.proxy.wire.routes import Route

# How a connection's broker is known.
NOT_KNOWN: Final = 0
ASSUMED: Final = 1
"""The member owns one identity, so its clients mean this one."""
INFERRED: Final = 2
"""From the key of a request."""
EXACT: Final = 3
"""The client has named the broker."""

# Destinations that are not a broker.
ANY: Final = -1
"""Any broker that is up."""
NO_UPSTREAM: Final = -2
"""No request needed a broker yet."""

# Why a frame waits.
NOTHING: Final = 0
LOOK_UP: Final = 1
"""Ask the cluster for the broker of `Router.key`."""
SWITCH: Final = 2
"""Wait until nothing is in flight, and connect to `Router.next_upstream`."""
QUIET: Final = 3
"""Wait until nothing is in flight."""
GATHER: Final = 4
"""Send `Router.request` to all brokers, and call `Router.gathered` with the answer."""
REPLACE: Final = 5
"""Present the frame again as `Router.replacement`."""

MAX_FETCH_BYTES: Final = 128 * 1024
"""The longest Fetch that must be seen whole. A partition takes 28 to 33 bytes."""


class Cluster(Protocol):
    """What a router has to know of the cluster."""

    routing: RoutingMap

    def is_known(self, broker_id: BrokerId) -> bool: ...

    def is_up(self, broker_id: BrokerId) -> bool:
        """Whether the last attempt to reach a broker succeeded; True before the first one."""

    def answer_api_versions(self, version: int, correlation_id: int) -> bytes | None:
        """The whole response to ApiVersions for all brokers; None while their versions are unknown."""

    def now_s(self) -> float: ...


class Router:
    """Routes the requests of one connection.

    Args:
        cluster: shared by all connections of the worker.
        reader: reads keys; shared, as one frame is read at a time.
        assumed: the only identity that the member owns, or None.

    ``identity`` is the broker that the connection is for, or ANY; ``certainty`` says how it is known.
    ``upstream`` is the broker that gets the requests now, ANY while a bootstrap connection is dialled, or
    NO_UPSTREAM. ``reply`` is an answer for the client, which `take_reply` returns. ``greeting`` is the
    client's ApiVersions request if it was answered here: each broker gets it first.
    """

    __slots__ = (
        "_checked_key",
        "_checked_kind",
        "_checked_partition",
        "_checked_version",
        "_cluster",
        "_gathered",
        "_has_asked",
        "_has_credentials",
        "_reader",
        "certainty",
        "greeting",
        "identity",
        "key",
        "kind",
        "next_upstream",
        "replacement",
        "reply",
        "request",
        "routing",
        "upstream",
        "wait",
        "whole_bytes",
    )

    def __init__(self, cluster: Cluster, reader: RoutingKey, assumed: BrokerId | None) -> None:
        self._cluster = cluster
        self._reader = reader
        self.routing = cluster.routing
        self.identity: i64 = ANY if assumed is None else assumed
        self.certainty: i64 = NOT_KNOWN if assumed is None else ASSUMED
        self.upstream: i64 = NO_UPSTREAM
        self.wait: i64 = NOTHING
        self.next_upstream: i64 = ANY
        self.kind: i64 = 0
        """The kind of the key to look up."""
        self.key = b""
        """The key to look up."""
        self.reply = b""
        self.greeting = b""
        self.request = b""
        """The request that all brokers have to answer."""
        self._gathered = b""
        self.replacement = b""
        self.whole_bytes: i64 = 0
        """The length of the frame in front, if all of it is needed."""
        self._has_credentials = False
        """Whether the client has authenticated to ``upstream``; other brokers do not know it."""
        self._has_asked = False
        """Whether the cluster was asked for the key of the waiting frame."""
        self._checked_kind: i64 = -1
        self._checked_key = b""
        self._checked_partition: i64 = -1
        self._checked_version: i64 = -1
        """The last key that belonged to ``identity``, and the version of the map at that time."""

    def route(self, data: bytes, pos: i64, end: i64, is_first: bool) -> int:
        """Route one frame.

        Args:
            pos: where the frame begins; end: of the arrived bytes.
            is_first: whether nothing is in flight, and no frame of ``data`` passes before this one.
        Returns: ORDINARY: the frame goes to ``upstream``; INCOMPLETE: more bytes are needed, or the frame
            waits for ``wait``; else the position after a frame that ``reply`` answers.
        Raises: WireError: the frame cannot be routed; close the connection
        """
        self.wait = NOTHING
        self.whole_bytes = 0
        if end - pos < REQUEST_HEADER_BYTES:
            return INCOMPLETE
        api_key: int = read_i16_be(data, pos + 4)
        version: int = read_i16_be(data, pos + 6)
        place: i64 = api_key * VERSIONS_PER_API + version
        if not (0 <= version < VERSIONS_PER_API and 0 <= place < len(ROUTE_TABLE)):
            return self._pass_to_any()  # answered or refused
        route = ROUTE_TABLE[place]
        if route is None:
            return self._pass_to_any()
        kind: i64 = route.kind
        if kind >= GROUP:
            found = self._reader.read(route, data, pos, end, version >= APIS[api_key].first_flexible)
            if found == KEY_FOUND:
                verdict = self._route_key(route, data, api_key == FETCH and version >= FIRST_WITH_RACK)
                if api_key == FETCH and self.certainty == INFERRED and verdict == ORDINARY:
                    return self._blank_rack(data, pos, end, version)
                return verdict
            if found == KEY_INCOMPLETE:
                if end - pos >= HEADER_LIMIT_BYTES:
                    raise OversizeFrame(
                        "client", f"no key in {HEADER_LIMIT_BYTES} bytes of request {api_key}"
                    )
                return INCOMPLETE
            if self.certainty == NOT_KNOWN and has_sessions(api_key, version):
                return self._reply_locally(data, pos, end, is_first)
        elif kind in (ONE_BROKER, ALL_BROKERS) and self.certainty == NOT_KNOWN:
            return self._reply_locally(data, pos, end, is_first)
        elif kind == API_VERSIONS_ROUTE:
            return self._route_api_versions(data, pos, end, version)
        elif kind == SASL:
            if self.certainty != NOT_KNOWN:
                if self._cluster.is_up(self.identity):
                    verdict = self._send_to(self.identity)
                else:
                    verdict = self._pass_to_any()
                self._has_credentials = verdict == ORDINARY
                return verdict
            raise UnidentifiedBroker(
                "client",
                "the client authenticates before it has shown which broker it means; use a client that sends "
                "ApiVersions v5 (KIP-1242), or a listener of another kind, such as `identity_ports` or `sni`",
            )
        return self._pass_to_any()

    def connected(self, broker_id: BrokerId | None) -> None:
        """Note the broker that was connected for ``upstream``; None if its id is not known."""
        if self.upstream == ANY and broker_id is not None:
            self.upstream = broker_id

    def answered(self) -> None:
        """Note that the cluster was asked for ``key``."""
        self._has_asked = True

    def gathered(self, answer: bytes) -> None:
        """Note the answer of all brokers to the waiting frame."""
        self._gathered = answer

    def switched(self) -> None:
        """Note that ``next_upstream`` gets the requests from now on."""
        self.upstream = self.next_upstream

    def take_reply(self) -> bytes:
        reply, self.reply = self.reply, b""
        return reply

    def _route_key(self, route: Route, data: bytes, may_be_follower: bool) -> int:
        """Route a request by its first key, which the reader has found.

        Args: may_be_follower: whether a replica that is not the leader can answer.
        """
        reader = self._reader
        kind: i64 = route.kind
        if kind == CONFIG:  # for this request alone: the broker's id is in the request
            if not self._cluster.is_known(reader.partition):
                return self._pass_to_any()
            return self._send_to(reader.partition)
        if (
            self._checked_kind == kind
            and self._checked_partition == reader.partition
            and self._checked_version == self.routing.version
            and reader.end - reader.start == len(self._checked_key)
            and data.startswith(self._checked_key, reader.start)
            and self._checked_version >= 0
        ):
            return self._send_to(self.identity)
        key = data[reader.start : reader.end]
        broker_id = self.routing.find(kind, key, reader.partition)
        if broker_id == UNKNOWN or self._contradicts(broker_id, may_be_follower, kind, key):
            if not self._has_asked and not self.routing.is_fresh(kind, key, self._cluster.now_s()):
                self.kind, self.key = kind, key
                self.wait = LOOK_UP
                return INCOMPLETE
            if broker_id >= 0 and self._cluster.is_known(broker_id):
                self.identity = broker_id
                self.certainty = INFERRED
        self._has_asked = False
        if self.certainty == NOT_KNOWN:
            return self._pass_to_any()  # the broker's error is the right one
        if broker_id == self.identity:
            self._checked_kind = kind
            self._checked_key = key
            self._checked_partition = reader.partition
            self._checked_version = self.routing.version
        return self._send_to(self.identity)

    def _blank_rack(self, data: bytes, pos: i64, end: i64, version: int) -> int:
        """Pass a Fetch without its rack, so that the leader answers with records.

        With a rack the leader may name a follower. The client's connection for the follower would infer the
        leader from the same key, and the leader would name the follower again, for ever.
        """
        size: int = read_i32_be(data, pos)
        after: i64 = pos + 4 + size
        if version < FIRST_WITH_RACK:
            return ORDINARY
        if after <= end and after >= pos + REQUEST_HEADER_BYTES:
            last_two_bytes: int = read_i16_be(data, after - 2)
            if has_no_rack(last_two_bytes, version):
                return ORDINARY
        if size > MAX_FETCH_BYTES:
            raise OversizeFrame(
                "client", f"Fetch of {size} bytes, perhaps with a rack, is above {MAX_FETCH_BYTES}"
            )
        if after > end:
            self.whole_bytes = after - pos
            return INCOMPLETE
        self.replacement = blank_rack(data[pos:after], version)
        if len(self.replacement) == after - pos:
            return ORDINARY  # tagged fields, and no rack
        self.wait = REPLACE
        return INCOMPLETE

    def _contradicts(self, broker_id: BrokerId, may_be_follower: bool, kind: int, key: bytes) -> bool:
        """Whether the map has another broker for a key than the connection's."""
        if self.certainty == NOT_KNOWN:
            return True
        if broker_id < 0 or broker_id == self.identity:
            return False
        # A follower may be the replica that the leader has named (KIP-392).
        is_follower = (
            self.certainty == ASSUMED
            and may_be_follower
            and self.routing.is_replica(kind, key, self._reader.partition, self.identity)
        )
        return not is_follower

    def _pass_to_any(self) -> int:
        """Pass a request that any broker can answer: to the connection's broker, if it is up."""
        if self.upstream == NO_UPSTREAM:
            has_broker = self.certainty != NOT_KNOWN and self._cluster.is_up(self.identity)
            self.upstream = self.identity if has_broker else ANY
        return ORDINARY

    def _send_to(self, broker_id: BrokerId) -> int:
        if self.upstream == NO_UPSTREAM:
            self.upstream = broker_id
        if self.upstream == broker_id:
            return ORDINARY
        if self._has_credentials:
            raise UnidentifiedBroker(
                "client",
                f"the client has authenticated to broker {self.upstream}, and its request is for broker "
                f"{broker_id}; use a client that names its broker (KIP-1242), or a listener of another kind",
            )
        self.next_upstream = broker_id
        self.wait = SWITCH
        return INCOMPLETE

    def _route_api_versions(self, data: bytes, pos: i64, end: i64, version: int) -> int:
        """Learn the broker that the client names, or answer for all brokers together."""
        size: int = read_i32_be(data, pos)
        after: i64 = pos + 4 + size
        if self.upstream != NO_UPSTREAM or self.greeting or not 0 <= size <= PROBE_LIMIT_BYTES - 4:
            return self._pass_to_any()
        if after > end:
            return INCOMPLETE
        frame = data[pos:after]
        is_expecting, node_id = read_expectation(frame)
        if node_id >= 0 and self._cluster.is_known(node_id):
            self.identity = node_id
            self.certainty = EXACT
            return self._send_to(node_id)
        if self.certainty == ASSUMED and self._cluster.is_up(self.identity):
            return self._send_to(self.identity)
        if is_expecting:  # a broker says whether the client has to look for its cluster again
            return self._pass_to_any()
        correlation_id: int = read_i32_be(data, pos + 8)
        answer = self._cluster.answer_api_versions(version, correlation_id)
        if answer is None:
            return self._pass_to_any()
        self.greeting = frame
        self.reply = answer
        return after

    def _reply_locally(self, data: bytes, pos: i64, end: i64, is_first: bool) -> int:
        """Answer a request of a connection whose broker is not known, once all earlier ones are answered."""
        if not is_first:
            self.wait = QUIET
            return INCOMPLETE
        size: int = read_i32_be(data, pos)
        after: i64 = pos + 4 + size
        api_key: int = read_i16_be(data, pos + 4)
        version: int = read_i16_be(data, pos + 6)
        correlation_id: int = read_i32_be(data, pos + 8)
        if not 10 <= size <= HEADER_LIMIT_BYTES - 4:
            raise OversizeFrame("client", f"request {api_key} of {size} bytes is above {HEADER_LIMIT_BYTES}")
        if after > end:
            return INCOMPLETE
        if api_key in (LIST_GROUPS, LIST_TRANSACTIONS):
            if not self._gathered:
                self.request = data[pos:after]
                self.wait = GATHER
                return INCOMPLETE
            self.reply, self._gathered = self._gathered, b""
        elif has_sessions(api_key, version):
            self.reply = reject_session(api_key, version, correlation_id)
        else:
            self.reply = reject_log_dirs(api_key, version, correlation_id, data[pos:after])
        return after
