"""Probes of peers: whether a live worker serves each peer's advertised listeners."""

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
"""For how many ``probe_timeout_s`` the prober waits for an answer. An answer after the first period is late:
the probe counts as timed out until the answer arrives."""
LOCAL_FAILURE_LOG_INTERVAL_S: Final = 10.0
"""Least time between two log lines about a local fault that persists."""
HELD_CONNECTION_SILENCE_PERIODS: Final = 2.0
"""For how many ``suspect_after_s`` a held connection may be silent before the prober replaces it."""
HELD_CONNECTION_RETRY_S: Final = 0.25
"""Wait before a new held connection after the last one ended, or could not be opened."""


class ProbeEvents(Protocol):
    """What a prober asks its control process, and reports to it."""

    def advertised_by(self, peer: ProxyId) -> Member:
        """A peer with the listeners that it advertises."""

    def is_stopping(self, peer: ProxyId) -> bool:
        """Whether a peer or this member is stopping, so that the loss of the peer's worker is expected."""

    def on_probed(self) -> None:
        """The detector has a new observation."""


class Prober:
    """Probes peers when the detector asks for it, and holds a connection to one worker of each peer.

    Args:
        settings: the settings of the whole fleet.
        me: the member that probes.
        detector: receives the results.
        events: the control process, on whose event loop the prober runs.

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
            each.get()  # load the certificates now: a mistake must show at the start, not at the first probe
        self.local_failures = 0
        """Number of probes and links that a local fault prevented. They prove nothing about a peer."""
        self.member_troubles: dict[ProxyId, str] = {}
        """The local fault that prevents this member from asking a peer now, in words for an operator."""
        self.worker_losses: dict[ProxyId, Moment] = {}
        """When a peer's worker was lost: the first sign of a death, before the detector suspects the peer."""
        self._log_limit = LogLimit(LOCAL_FAILURE_LOG_INTERVAL_S, max_keys=len(settings.members))

    def _listeners(self, peer: ProxyId) -> list[Target]:
        """The addresses and TLS contexts of a peer's advertised listeners."""
        member = self._events.advertised_by(peer)
        return [
            Target(
                Endpoint(each.host, each.bootstrap_port),
                self._tls[each.name].get() if each.name in self._tls else None,
            )
            for each in member.listeners
        ]

    async def probe(self, peer: ProxyId) -> None:
        """Probe the advertised listeners of a peer, and report the result to the detector."""
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
        """Report a late answer to a probe that already counts as timed out.

        The next probe of the peer may be running by then.
        """
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
        """Count a local fault that prevents this member from asking a peer, and log it now and then."""
        self.local_failures += 1
        self.member_troubles[peer] = f"{self._me} cannot probe {peer}: {error}"
        if self._log_limit.is_due(time.monotonic(), peer):
            log.warning("local fault, cannot probe %s (no evidence against %s): %s", peer, peer, error)

    async def keep_probe_connection(self, peer: ProxyId) -> None:
        """Keep a connection to a peer's worker open, and report its answers and its end to the detector."""
        timing = self._timing
        silence_s = HELD_CONNECTION_SILENCE_PERIODS * timing.suspect_after_s
        hold_timing = HoldTiming(
            timing.probe_timeout_s * PROBE_ANSWER_GRACE_PERIODS, timing.heartbeat_s, silence_s
        )
        while True:
            # A peer that was committed as a witness has no listener until its new incarnation is committed.
            with suppress(LocalFailure):  # the probes report the fault
                for target in await resolve(self._listeners(peer)[:1], self._resolver, hold_timing.first_s):
                    end = await hold_connection(
                        target,
                        hold_timing,
                        lambda: self._detector.worker_asked(peer, time.monotonic()),
                        lambda: self._detector.worker_answered(peer, time.monotonic()),
                    )
                    self._on_probe_connection_closed(peer, end)
            # Retry soon: without a held connection, the detector notices silence in one direction late.
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
