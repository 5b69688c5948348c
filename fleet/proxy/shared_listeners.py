"""What all connections of shared ports know of the cluster: brokers of keys, versions and identities."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial

from fleet.core.errors import MalformedFrame
from fleet.core.model import BrokerId, Directory, Endpoint, ProxyId
from fleet.proxy.brokers import Upstreams
from fleet.proxy.gatherings import Gatherings
from fleet.proxy.lookups import KeyLookups
from fleet.proxy.routed_connection import RoutedConnection
from fleet.proxy.router import Cluster, Router
from fleet.proxy.routing_map import RoutingMap
from fleet.proxy.wire.common_versions import Versions, build_answer, build_body, intersect, read_versions
from fleet.proxy.wire.routing_keys import RoutingKey


class SharedListeners(Cluster):
    """The shared state of all routed connections of a worker.

    Args:
        listeners: the names of the shared listeners.
        me: this member.
        upstreams: the brokers.
        context: returns the TLS context for brokers; None for plaintext.
        timeout_s: the time limit for one look-up.
    """

    def __init__(
        self,
        listeners: frozenset[str],
        me: ProxyId,
        upstreams: Upstreams,
        context: Callable[[], ssl.SSLContext] | None,
        timeout_s: float,
    ) -> None:
        self.routing = RoutingMap()
        self.lookups = KeyLookups(self.routing, upstreams, context, timeout_s)
        self._gatherings = Gatherings(upstreams, context, timeout_s)
        self._listeners = listeners
        self._me = me
        self._upstreams = upstreams
        self._key = RoutingKey()
        self._only_identity: dict[str, BrokerId | None] = {}
        self._common: set[str] = set()
        self._versions: dict[BrokerId, Versions] = {}
        self._common_versions: Versions | None = None
        self._answers: dict[int, bytes] = {}
        """Version of ApiVersions → the body of the answer for all brokers."""

    def __contains__(self, listener: str) -> bool:
        return listener in self._listeners

    def apply(self, directory: Directory) -> None:
        """Take a new directory."""
        self._common_versions = None
        listeners, me = self._listeners, self._me
        self._only_identity = {each: only_identity(directory, each, me) for each in listeners}
        self._common = {each for each in listeners if has_common_address(directory, each, me)}

    def is_common(self, listener: str) -> bool:
        """Whether another member advertises the same address, so that ownership means nothing to clients."""
        return listener in self._common

    def note_versions(self, api_versions: Mapping[BrokerId, str]) -> None:
        """Take the answers of brokers to ApiVersions, in hexadecimal digits."""
        self._common_versions = None
        self._versions = {}
        for broker_id, digits in api_versions.items():
            try:
                self._versions[broker_id] = read_versions(bytes.fromhex(digits))
            except (MalformedFrame, ValueError):
                continue  # clients of this broker get the answer of a broker, not of all together

    def router(self, listener: str) -> Router:
        """Return the router of a new connection."""
        return Router(self, self._key, self._only_identity.get(listener))

    def look_up(self, connection: RoutedConnection) -> None:
        router = connection.router
        self.lookups.ask(router.kind, router.key, partial(connection.looked_up, connection.waits))

    def gather(self, connection: RoutedConnection) -> None:
        answer = partial(connection.gathered, connection.waits)
        self._gatherings.ask(connection.router.request, answer)

    def stop(self) -> None:
        self.lookups.stop()
        self._gatherings.stop()

    # ---- for routers

    def is_known(self, broker_id: BrokerId) -> bool:
        return self._upstreams.broker(broker_id) is not None

    def is_up(self, broker_id: BrokerId) -> bool:
        return self._upstreams.up.get(broker_id, True)

    def answer_api_versions(self, version: int, correlation_id: int) -> bytes | None:
        if self._common_versions is None:
            reached = [broker_id for broker_id, up in self._upstreams.up.items() if up]
            if not reached or any(each not in self._versions for each in reached):
                return None
            self._common_versions = intersect([self._versions[each] for each in reached])
            self._answers.clear()
        body = self._answers.get(version)
        if body is None:
            body = self._answers[version] = build_body(self._common_versions, version)
        return build_answer(body, correlation_id)

    def now_s(self) -> float:
        return time.monotonic()


def only_identity(directory: Directory, listener: str, me: ProxyId) -> BrokerId | None:
    """Return the identity that all clients of a listener of this member mean; None if there may be several.

    There are several if the member is advertised for several identities, or for none, or if another member
    has the same address, such as that of a load balancer.
    """
    if has_common_address(directory, listener, me):
        return None
    owned = [broker_id for broker_id, owners in directory.advertised.items() if me in owners]
    return owned[0] if len(owned) == 1 else None


def has_common_address(directory: Directory, listener: str, me: ProxyId) -> bool:
    """Whether another member advertises the address of a listener of this member, as behind a balancer."""
    addresses = {
        proxy_id: Endpoint(advertised.broker_host or advertised.host, advertised.bootstrap_port)
        for proxy_id, member in directory.members.items()
        if (advertised := member.listener(listener)) is not None
    }
    mine = addresses.pop(me, None)
    return mine is not None and mine in addresses.values()
