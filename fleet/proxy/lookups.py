"""Asks the cluster which brokers keys belong to, for all connections of a worker.

One connection to any broker serves all look-ups. While a batch is asked, later keys wait for the next batch,
and a key that several clients wait for is asked once. The connection has no credentials: brokers that require
SASL refuse it, and the keys stay unknown.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from fleet.core.errors import MalformedFrame
from fleet.proxy.broker_stream import STREAM_ERRORS, BrokerStream
from fleet.proxy.brokers import Upstreams
from fleet.proxy.routing_map import COORDINATOR_KINDS, NO_BROKER, RoutingMap
from fleet.proxy.wire.coordinators import FIND_COORDINATOR
from fleet.proxy.wire.lookups import (
    COORDINATOR_BATCH,
    FIRST_COORDINATOR,
    FIRST_METADATA,
    METADATA,
    METADATA_BY_ID,
    api_versions_request,
    coordinator_request,
    metadata_request,
    read_coordinators,
    read_ranges,
    read_topics,
)
from fleet.proxy.wire.routes import TOPIC_ID, TOPIC_NAME
from fleet.runtime.outbound import NAME_CACHE_S, Resolver
from fleet.tls.brokers import DIAL_ERRORS, explain_dial

log = logging.getLogger(__name__)

Key = tuple[int, bytes]
"""The kind of a key (GROUP, TRANSACTION, TOPIC_NAME or TOPIC_ID) and the key."""

MAX_BATCH_KEYS: Final = 500
MAX_SERVER_AGE_S: Final = 60.0
"""How long one broker is asked. A broker that the cluster has fenced keeps answering what it knew."""
MAX_ATTEMPTS: Final = 3
"""How many brokers one batch is sent to, if the first ones do not answer."""


class KeyLookups:
    """The look-ups of one worker.

    Args:
        routing: gets the answers.
        upstreams: the brokers to ask.
        context: returns the TLS context for brokers; None for plaintext.
        timeout_s: the time limit for connecting to a broker, and for its answers.
    """

    def __init__(
        self,
        routing: RoutingMap,
        upstreams: Upstreams,
        context: Callable[[], ssl.SSLContext] | None,
        timeout_s: float,
    ) -> None:
        self._routing = routing
        self._upstreams = upstreams
        self._context = context
        self._timeout_s = timeout_s
        self._waiting: dict[Key, list[Callable[[], None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._server: _Server | None = None
        self._resolver = Resolver(NAME_CACHE_S)
        self._complaint = ""
        self.requests = 0
        """Number of requests for keys that were sent to brokers."""

    def ask(self, kind: int, key: bytes, on_answer: Callable[[], None]) -> None:
        """Ask for the broker of a key. Calls ``on_answer`` once the map has an answer, or none came."""
        self._waiting.setdefault((kind, key), []).append(on_answer)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._drop_server()

    async def _serve(self) -> None:
        """Ask batch after batch until no key is left."""
        try:
            while self._waiting:
                batch = {key: self._waiting[key] for key in islice(self._waiting, MAX_BATCH_KEYS)}
                await self._answer(tuple(batch))
                for each in batch:
                    self._call_all(self._waiting.pop(each))
        except Exception:
            log.exception("looking up the brokers of keys failed")
            self._drop_server()
            waiting, self._waiting = self._waiting, {}
            for kind, key in waiting:
                self._routing.note_failure(kind, key, time.monotonic())
            for together in waiting.values():
                self._call_all(together)
        finally:
            self._task = None

    @staticmethod
    def _call_all(together: list[Callable[[], None]]) -> None:
        """Call each in a turn of the loop, so that the error of one client does not stop the others."""
        loop = asyncio.get_running_loop()
        for on_answer in together:
            loop.call_soon(on_answer)

    async def _answer(self, batch: tuple[Key, ...]) -> None:
        """Ask one broker after the other about the keys of a batch, until one of them answers."""
        why = "no broker can be reached"
        for _ in range(MAX_ATTEMPTS):
            try:
                async with asyncio.timeout(self._timeout_s):
                    if self._server is not None and time.monotonic() > self._server.until_s:
                        self._drop_server()
                    if self._server is None:
                        self._server = await self._connect()
                    await self._ask_server(self._server, batch)
            except STREAM_ERRORS as error:
                why = explain_dial(error) if isinstance(error, DIAL_ERRORS) else str(error) or "no answer"
                self._drop_server()
            else:
                self._complaint = ""
                return
        if why != self._complaint:
            log.warning("no broker says which brokers keys belong to: %s", why)
            self._complaint = why
        for kind, key in batch:
            self._routing.note_failure(kind, key, time.monotonic())

    async def _connect(self) -> _Server:
        """Connect to the best broker, and ask for its versions.

        Raises: STREAM_ERRORS: no broker is known, or it gives no usable answer
        """
        candidates = self._upstreams.candidates(time.monotonic())
        if not candidates:
            raise EOFError("no broker is known")
        tls = None if self._context is None else self._context()
        stream = await BrokerStream.connect(candidates[0].endpoint, tls, self._resolver, self._timeout_s)
        try:
            (frame,) = await stream.ask([api_versions_request(0)])
            ranges = read_ranges(frame)
            metadata_version = _newest(ranges, METADATA, (METADATA_BY_ID, FIRST_METADATA))
            coordinator_version = _newest(ranges, FIND_COORDINATOR, (COORDINATOR_BATCH, FIRST_COORDINATOR))
        except BaseException:
            stream.close()
            raise
        until_s = time.monotonic() + MAX_SERVER_AGE_S
        return _Server(stream, metadata_version, coordinator_version, until_s)

    def _drop_server(self) -> None:
        if self._server is not None:
            self._server.stream.close()
            self._server = None

    async def _ask_server(self, server: _Server, batch: tuple[Key, ...]) -> None:
        names = [key for kind, key in batch if kind == TOPIC_NAME]
        topic_ids = [key for kind, key in batch if kind == TOPIC_ID]
        if server.metadata_version < METADATA_BY_ID:
            for each in topic_ids:  # no client of such a broker has topic ids
                self._routing.note_failure(TOPIC_ID, each, time.monotonic())
            topic_ids = []
        # A broker that gets ids and names in one request ignores the names.
        for some_names, some_ids in ((names, []), ([], topic_ids)):
            if some_names or some_ids:
                self.requests += 1
                await self._ask_topics(server, some_names, some_ids)
        for kind in COORDINATOR_KINDS:
            keys = [key for of_kind, key in batch if of_kind == kind]
            await self._ask_coordinators(server, kind, keys)

    async def _ask_topics(self, server: _Server, names: list[bytes], topic_ids: list[bytes]) -> None:
        version = server.metadata_version
        (frame,) = await server.stream.ask([metadata_request(version, server.next_id(), names, topic_ids)])
        now_s = time.monotonic()
        missing = {*((TOPIC_NAME, each) for each in names), *((TOPIC_ID, each) for each in topic_ids)}
        for topic in read_topics(frame, version):
            found = ((TOPIC_NAME, topic.name), (TOPIC_ID, topic.topic_id))
            keys = [(kind, key) for kind, key in found if key]
            if keys:
                self._routing.learn_topic(keys, topic.leaders, topic.replicas, now_s)
                missing.difference_update(keys)
        for each in missing:
            self._routing.learn_topic((each,), (), (), now_s)

    async def _ask_coordinators(self, server: _Server, kind: int, keys: list[bytes]) -> None:
        version = server.coordinator_version
        size = len(keys) if version >= COORDINATOR_BATCH else 1
        batches = [keys[first : first + size] for first in range(0, len(keys), max(size, 1))]
        self.requests += len(batches)
        frames = await server.stream.ask(
            [coordinator_request(version, server.next_id(), kind, each) for each in batches]
        )
        now_s = time.monotonic()
        for together, frame in zip(batches, frames, strict=True):
            found = read_coordinators(frame, version, together)
            for key in together:
                self._routing.learn_coordinator(kind, key, found.get(key, NO_BROKER), now_s)


@dataclass(slots=True)
class _Server:
    """The broker that is asked, and the versions of requests that it knows."""

    stream: BrokerStream
    metadata_version: int
    coordinator_version: int
    until_s: float
    """When another broker is asked, by the monotonic clock."""
    last_id: int = 0

    def next_id(self) -> int:
        """The correlation id of the next request."""
        self.last_id += 1
        return self.last_id


def _newest(ranges: dict[int, tuple[int, int]], api_key: int, versions: Iterable[int]) -> int:
    """Return the first of some versions that a broker has.

    Raises: MalformedFrame: the broker has none of them
    """
    low, high = ranges.get(api_key, (0, -1))
    for version in versions:
        if low <= version <= high:
            return version
    expected = " or ".join(map(str, versions))
    raise MalformedFrame("broker", f"API key {api_key} has versions {low} to {high}, but not {expected}")
