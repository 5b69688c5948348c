"""Creates the sessions of one worker."""

from __future__ import annotations

from collections.abc import Callable

from fleet.proxy.addresses import AddressSource
from fleet.proxy.frame_limits import Limits
from fleet.proxy.router import Router
from fleet.proxy.session import Session
from fleet.proxy.wire.counters import WireCounters


class SessionFactory:
    """Creates the sessions for the clients of one port.

    Args: see ``Session``.
    """

    __slots__ = ("_addresses", "_clock", "_counters", "_limits", "_observe_answer", "_observe_rewrite")

    def __init__(
        self,
        addresses: AddressSource,
        limits: Limits,
        counters: WireCounters,
        clock: Callable[[], float],
        observe_rewrite: Callable[[float], None],
        observe_answer: Callable[[int, int, int, float], None],
    ) -> None:
        self._addresses = addresses
        self._limits = limits
        self._counters = counters
        self._clock = clock
        self._observe_rewrite = observe_rewrite
        self._observe_answer = observe_answer

    def make(self, client_host: str, router: Router | None = None) -> Session:
        return Session(
            self._addresses,
            self._limits,
            self._counters,
            client_host,
            self._clock,
            self._observe_rewrite,
            self._observe_answer,
            router,
        )
