"""Sends a client's request to all brokers, and joins their answers: ListGroups and ListTransactions."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final

from fleet.core.errors import MalformedFrame
from fleet.core.model import BrokerId
from fleet.proxy.broker_stream import STREAM_ERRORS, BrokerStream
from fleet.proxy.brokers import Candidate, Upstreams
from fleet.proxy.wire.merging import merge
from fleet.runtime.outbound import NAME_CACHE_S, Resolver

log = logging.getLogger(__name__)

MAX_AT_A_TIME: Final = 4
"""Requests that are sent to all brokers at a time; the others wait, within their time limit."""
MAX_ANSWER_BYTES: Final = 16 << 20
"""The longest list of all brokers together: of some hundred thousand groups."""


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
        self._turns = asyncio.Semaphore(MAX_AT_A_TIME)

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
            async with asyncio.timeout(self._timeout_s), self._turns:
                responses = await self._ask_all(request)
            if responses:
                answer = merge(key, version, responses)
        except STREAM_ERRORS as error:
            log.warning("not all brokers answer a request that all of them must answer: %r", error)
        finally:
            on_answer(answer)

    async def _ask_all(self, request: bytes) -> list[bytes]:
        """Raises: STREAM_ERRORS: one of the brokers does not answer, or the answers are too long."""
        brokers = [each for each in map(self._upstreams.broker, self._reached()) if each is not None]
        asking = [asyncio.ensure_future(self._ask(each, request)) for each in brokers]
        try:
            responses = await asyncio.gather(*asking)
        finally:
            for each in asking:
                each.cancel()
        size = sum(map(len, responses))
        if size > MAX_ANSWER_BYTES:
            raise MalformedFrame("broker", f"a list of {size} bytes is above {MAX_ANSWER_BYTES}")
        return responses

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
