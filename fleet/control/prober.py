"""Probes of peers: whether a worker lives behind each peer's advertised listeners."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Final, Protocol

from fleet.config import Settings
from fleet.control.clock import moment
from fleet.control.detector import FailureDetector
from fleet.control.probes import HoldEnd, HoldTiming, Target, hold_connection, probe_member, resolve
from fleet.core.liveness import ProbeOutcome
from fleet.core.log_limit import LogLimit
from fleet.core.model import Endpoint, Member, ProxyId
from fleet.core.takeover import Moment
from fleet.runtime.outbound import LocalFailure, Resolver
from fleet.tls import listeners

log = logging.getLogger(__name__)

PROBE_ANSWER_GRACE_PERIODS: Final = 6.0
"""How many ``probe_timeout_s`` an answer may take that comes too late to count as one at first."""
LOCAL_FAILURE_LOG_INTERVAL_S: Final = 10.0
"""Between two log lines on what goes on failing."""
HELD_CONNECTION_SILENCE_PERIODS: Final = 2.0
"""How many ``suspect_after_s`` a held connection may be silent before another one is tried."""
HELD_CONNECTION_RETRY_S: Final = 0.25
"""After a held connection has ended, or could not be had."""


class ProbeEvents(Protocol):
    """What a prober asks its control process, and tells it."""

    def advertised_by(self, peer: ProxyId) -> Member:
        """A peer with the listeners that it advertises."""

    def is_stopping(self, peer: ProxyId) -> bool:
        """Whether the loss of a peer's worker is no sign of a death."""

    def on_probed(self) -> None:
        """The detector has learned something."""


class Prober:
    """Probes peers when the detector wants it, and holds a connection to one worker of each.

    Args:
        settings: the whole fleet's.
        me: the member that probes.
        detector: is told what comes of it.
        events: of the control process, on whose event loop everything happens.

    Raises: ConfigError: the certificates of a listener cannot be used.
    """

    def __init__(
        self, settings: Settings, me: ProxyId, detector: FailureDetector, events: ProbeEvents
    ) -> None:
        self._me = me
        self._timing = settings.timing
        self._detector = detector
        self._events = events
        self._resolver = Resolver()
        self._tls = listeners.probes(settings, me)
        for each in self._tls.values():
            each.get()  # here, where it says what is wrong, and not in the midst of detecting
        self.local_failures = 0
        """Probes and links that failed for a reason of this member's own, each of which says nothing of a
        peer."""
        self.member_troubles: dict[ProxyId, str] = {}
        """Why this member cannot ask a peer now."""
        self.worker_losses: dict[ProxyId, Moment] = {}
        """When a peer's worker was lost: the first sign of a death, before it is one."""
        self._log_limit = LogLimit(LOCAL_FAILURE_LOG_INTERVAL_S, max_keys=len(settings.members))

    def _listeners(self, peer: ProxyId) -> list[Target]:
        """Where a peer's advertised listeners are reached, and how."""
        member = self._events.advertised_by(peer)
        return [
            Target(
                Endpoint(each.host, each.bootstrap_port),
                self._tls[each.name].get() if each.name in self._tls else None,
            )
            for each in member.listeners
        ]

    async def probe(self, peer: ProxyId) -> None:
        """Ask a peer's advertised listeners whether a worker lives behind them."""
        timeout_s = self._timing.probe_timeout_s
        try:
            targets = await resolve(self._listeners(peer), self._resolver, timeout_s)
        except LocalFailure as error:
            self._on_local_failure(peer, error)
            return
        sent_s = time.monotonic()
        self._detector.probe_sent(peer, sent_s)
        answer = asyncio.create_task(probe_member(targets, timeout_s * PROBE_ANSWER_GRACE_PERIODS))
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await asyncio.shield(answer)
        except TimeoutError:
            self._on_probe_result(peer, ProbeOutcome.TIMED_OUT)
            await self._await_late_answer(peer, answer, sent_s)
        except LocalFailure as error:
            self._on_local_failure(peer, error)
        else:
            self._on_probe_result(peer, outcome)
        finally:
            answer.cancel()

    async def _await_late_answer(
        self, peer: ProxyId, answer: asyncio.Task[ProbeOutcome], sent_s: float
    ) -> None:
        """Of a probe that counts as timed out already: another one may be under way by then."""
        try:
            if await answer is ProbeOutcome.ANSWERED:
                self._detector.answered_late(peer, sent_s, time.monotonic())
                self._events.on_probed()
        except LocalFailure as error:
            self.record_local_failure(peer, error)

    def _on_probe_result(self, peer: ProxyId, outcome: ProbeOutcome) -> None:
        self.member_troubles.pop(peer, None)
        self._detector.probe_result(peer, outcome, time.monotonic())
        self._events.on_probed()

    def _on_local_failure(self, peer: ProxyId, error: LocalFailure) -> None:
        self.record_local_failure(peer, error)
        self._detector.probe_failed_here(peer, time.monotonic())
        self._events.on_probed()

    def record_local_failure(self, peer: ProxyId, error: LocalFailure) -> None:
        """Count, and say now and then, that this member cannot ask a peer."""
        self.local_failures += 1
        self.member_troubles[peer] = f"{self._me} cannot ask {peer}: {error}"
        if self._log_limit.is_due(time.monotonic(), peer):
            log.warning("this member cannot ask %s, which says nothing of %s: %s", peer, peer, error)

    async def keep_probe_connection(self, peer: ProxyId) -> None:
        """Hold a connection to a peer's worker, and tell the detector what comes of it."""
        timing = self._timing
        silence_s = HELD_CONNECTION_SILENCE_PERIODS * timing.suspect_after_s
        pace = HoldTiming(timing.probe_timeout_s * PROBE_ANSWER_GRACE_PERIODS, timing.heartbeat_s, silence_s)
        while True:
            # One that was committed as a witness has none until its new life is committed.
            with suppress(LocalFailure):  # probes tell of it
                for target in await resolve(self._listeners(peer)[:1], self._resolver, pace.first_s):
                    end = await hold_connection(
                        target,
                        pace,
                        lambda: self._detector.worker_asked(peer, time.monotonic()),
                        lambda: self._detector.worker_answered(peer, time.monotonic()),
                    )
                    self._on_probe_connection_closed(peer, end)
            # Soon: while none is held, silence in one direction is worker_losses late.
            await asyncio.sleep(min(HELD_CONNECTION_RETRY_S, timing.probe_interval_s))

    def _on_probe_connection_closed(self, peer: ProxyId, end: HoldEnd) -> None:
        now_s = time.monotonic()
        if end is HoldEnd.CLOSED and not self._events.is_stopping(peer):
            self._detector.worker_lost(peer, now_s)
            self.worker_losses[peer] = moment()
            self._events.on_probed()
        elif end is not HoldEnd.UNREACHABLE:
            self._detector.worker_given_up(peer, now_s)
            self._events.on_probed()
