"""Sends a client's request to all brokers, and joins their answers: ListGroups and ListTransactions."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

from fleet.core.model import BrokerId
from fleet.proxy.broker_stream import STREAM_ERRORS, BrokerStream
from fleet.proxy.brokers import Candidate, Upstreams
from fleet.proxy.wire.merging import merge
from fleet.runtime.outbound import NAME_CACHE_S, Resolver

log = logging.getLogger(__name__)


class Gatherings:
    """The requests of one worker that all brokers answer. Such requests are rare, so no connection is kept.

    Args: see ``KeyLookups``.
    """

    def __init__(
        self, upstreams: Upstreams, context: Callable[[], ssl.SSLContext] | None, timeout_s: float
    ) -> None:
        self._upstreams = upstreams
        self._context = context
        self._timeout_s = timeout_s
        self._resolver = Resolver(NAME_CACHE_S)
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, request: bytes, on_answer: Callable[[bytes], None]) -> None:
        """Send a whole request to all brokers that are up.

        Calls ``on_answer`` with the whole response; empty if one of the brokers gives none.
        """
        task = asyncio.get_running_loop().create_task(self._gather(request, on_answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        for each in self._tasks:
            each.cancel()

    async def _gather(self, request: bytes, on_answer: Callable[[bytes], None]) -> None:
        key, version = int.from_bytes(request[4:6], "big"), int.from_bytes(request[6:8], "big")
        answer = b""
        try:
            async with asyncio.timeout(self._timeout_s):
                brokers = map(self._upstreams.broker, self._reached())
                asking = [self._ask(each, request) for each in brokers if each is not None]
                responses = await asyncio.gather(*asking)
            if responses:
                answer = merge(key, version, responses)
        except STREAM_ERRORS as error:
            log.warning("not all brokers answer a request that all of them must answer: %r", error)
        on_answer(answer)

    def _reached(self) -> list[BrokerId]:
        """The brokers that are up. A broker that is down has no groups: others coordinate them."""
        return [broker_id for broker_id, up in self._upstreams.up.items() if up]

    async def _ask(self, broker: Candidate, request: bytes) -> bytes:
        """Raises: STREAM_ERRORS."""
        tls = None if self._context is None else self._context()
        stream = await BrokerStream.connect(broker.endpoint, tls, self._resolver, self._timeout_s)
        try:
            (response,) = await stream.ask([request])
        finally:
            stream.close()
        return response
