"""The failure detector of one member: observations of its peers in, up, unknown or suspect out. Pure.

One table (``_LIVENESS_AFTER``) gives a peer's next liveness from its current liveness and the verdict on its
observations. A peer that is killed, frozen, cut off, or that has only lost its control process, looks
different on the link and to a probe of its advertised listener. ``FailureDetector._suspicion`` distinguishes
these cases.

A *probe* asks the data plane. A *heartbeat* comes from the control process. Therefore an answered probe
protects a peer for ``control_grace_s`` while its control process restarts, and heartbeats do not protect a
peer whose advertised listener fails.

Each probe opens a new connection, now and then. In addition, this member keeps one *held* connection to a
worker of each peer, and asks the same question on it at every heartbeat. A held connection without answers
shows early that nothing reaches the peer, although its heartbeats arrive. If the peer is only slow, answers
keep coming.

Evidence against a peer is its behaviour (a refusal, a reset, a wrong answer) and its silence. A failure of
this member to ask (no name, no descriptor, no route) is no evidence: see ``probe_failed_here`` and
``link_failed_here``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from fleet.core.liveness import ProbeOutcome, Suspicion, Transition
from fleet.core.model import Liveness, ProxyId

OPEN_PROBE_INTERVAL_S: Final = 0.1
"""How soon the next probe follows while the verdict on a peer is open."""

LINK_LOST_PROBE_INTERVAL_S: Final = 0.02
"""How soon the next probe follows just after a link was lost. A process tree that is being killed may still
answer the first probe."""

LINK_LOST_WINDOW_S: Final = 0.5
"""How long a link counts as just lost."""

WORKER_LOSS_BYPASS_S: Final = 0.1
"""How long the others bypass a peer after its worker was lost, whatever probes say. The listener accepts
connections while any of its processes lives. A client that connects meanwhile fails, and its next back-off is
longer."""

WORKER_LOSS_MIN_STEADY_S: Final = 2.0
"""How long a peer must have been well before the loss of its worker causes a bypass. A worker that comes and
goes must not move clients each time."""

MIN_FAILED_PROBES: Final = 2
"""How many consecutive probes must fail before they outweigh heartbeats."""

PROBE_TIMEOUT_PERIODS: Final = 3.0
"""For how many ``suspect_after_s`` probes must time out before they outweigh heartbeats. A connection and an
answer over it may take two round trips."""

UNANSWERED_QUESTION_PERIODS: Final = 1.5
"""For how many ``suspect_after_s`` a question on the held connection may stay unanswered. A peer with a round
trip of a second is slow, not dead."""

NO_QUORUM_PERIODS: Final = 2.0
"""For how many ``suspect_after_s`` the quorum may be lost, as in an election, before this member counts as
alone."""


class DetectorTiming(Protocol):
    """The part of the settings' timing that the detector uses."""

    @property
    def heartbeat_s(self) -> float: ...
    @property
    def suspect_after_s(self) -> float: ...
    @property
    def control_grace_s(self) -> float: ...
    @property
    def probe_interval_s(self) -> float: ...
    @property
    def grace_s(self) -> float: ...
    @property
    def overlay_ttl_s(self) -> float: ...


class Verdict(StrEnum):
    """The conclusion from the observations of a peer, at one moment."""

    HEALTHY = "healthy"
    OPEN = "open"
    DEAD = "dead"


_LIVENESS_AFTER: Final[Mapping[tuple[Liveness, Verdict], Liveness]] = {
    (Liveness.UNKNOWN, Verdict.HEALTHY): Liveness.UP,
    (Liveness.UNKNOWN, Verdict.OPEN): Liveness.UNKNOWN,
    (Liveness.UNKNOWN, Verdict.DEAD): Liveness.SUSPECT,
    (Liveness.UP, Verdict.HEALTHY): Liveness.UP,
    (Liveness.UP, Verdict.OPEN): Liveness.UP,
    (Liveness.UP, Verdict.DEAD): Liveness.SUSPECT,
    (Liveness.SUSPECT, Verdict.HEALTHY): Liveness.UP,
    (Liveness.SUSPECT, Verdict.OPEN): Liveness.SUSPECT,
    (Liveness.SUSPECT, Verdict.DEAD): Liveness.SUSPECT,
}


@dataclass(slots=True)
class _Peer:
    """All observations of one peer. Times are on the detector's own clock unless stated otherwise."""

    liveness: Liveness = Liveness.UNKNOWN
    since_s: float = 0.0
    since_alone_s: float = 0.0
    """How long this member had been alone in total at ``since_s``."""
    linked: bool = False
    linked_since_s: float = 0.0
    worker_loss_bypass_until_s: float = 0.0
    """See ``WORKER_LOSS_BYPASS_S``; in the past if there is no bypass for this reason."""
    link_lost_s: float | None = None
    """When the link was lost; None while the link is up."""
    heard_s: float | None = None
    """When the last heartbeat arrived or the link came up, whichever is later."""
    ready: bool | None = None
    incarnation: int = 0
    probe_sent_s: float | None = None
    probing: bool = False
    probe_void: bool = False
    """The current probe proves nothing: this process was paused, or the peer restarted meanwhile."""
    probe_now: bool = False
    answered_s: float | None = None
    failures: int = 0
    """Number of consecutive unanswered probes. The first of them was sent at ``failing_since_s``."""
    failing_since_s: float = 0.0
    refused: bool = False
    """The last failure was a refusal."""
    probe_not_sent: bool = False
    """The last probe failed because of a local fault, and proves nothing about the peer."""
    link_failed_here_s: float | None = None
    """When a local fault last prevented this member from making a link to the peer."""
    asked_s: float | None = None
    """When the oldest unanswered question on the held connection was sent; None if none is unanswered."""
    worker_heard_s: float | None = None
    """When the last answer on a held connection arrived."""
    open_questions_s: deque[float] = field(default_factory=deque)
    """When each unanswered question on the held connection was sent. This field and the next two are on the
    caller's clock, which continues while this process is paused."""
    probe_out_s: float = 0.0
    """When the last probe was sent, on the caller's clock."""
    alive_s: float | None = None
    """See ``FailureDetector.alive_s``."""

    def record_answer(self, asked_s: float) -> None:
        """A worker has answered a question that was sent at ``asked_s``, on the caller's clock."""
        self.alive_s = asked_s if self.alive_s is None else max(self.alive_s, asked_s)


class FailureDetector:
    """Liveness of every peer, as this member judges it.

    Args:
        me: this member, which never suspects itself.
        peers: all other members.
        timing: the settings' timing.
        now_s: the monotonic clock at the start of this process.
    """

    def __init__(self, me: ProxyId, peers: Iterable[ProxyId], timing: DetectorTiming, now_s: float) -> None:
        self.me = me
        self._timing = timing
        self._peers = {peer: _Peer(since_s=now_s) for peer in peers if peer != me}
        self._started_s = now_s
        self._seen_s = now_s
        self._paused_s = 0.0
        """How long this process was paused. This time does not count as silence of a peer."""
        self._alone_s = 0.0
        """How long this member was alone in total; see ``NO_QUORUM_PERIODS``."""
        self._alone_since_s: float | None = now_s
        """When the quorum was lost; None while there is a quorum."""

    # -- observations --------------------------------------------------------------------------------------

    def link_up(self, peer: ProxyId, now_s: float) -> None:
        """The link to a peer is up."""
        at_s, record = self._detector_time_s(now_s), self._peers[peer]
        record.linked = True
        record.linked_since_s = at_s
        record.link_lost_s = None
        record.heard_s = at_s
        record.probe_now = True

    def link_down(self, peer: ProxyId, now_s: float) -> None:
        """The link to a peer is lost: reset, closed, or given up after silence."""
        at_s, record = self._detector_time_s(now_s), self._peers[peer]
        if record.linked:
            record.linked = False
            record.link_lost_s = at_s
            record.probe_now = True

    def worker_lost(self, peer: ProxyId, now_s: float) -> None:
        """The held connection to a peer's worker has ended."""
        at_s, record = self._detector_time_s(now_s), self._peers[peer]
        record.probe_now = True
        record.asked_s = None
        record.open_questions_s.clear()
        steady_since_s = max(record.linked_since_s, record.worker_loss_bypass_until_s)
        if record.liveness is Liveness.UP and at_s - steady_since_s >= WORKER_LOSS_MIN_STEADY_S:
            record.worker_loss_bypass_until_s = at_s + WORKER_LOSS_BYPASS_S

    def worker_asked(self, peer: ProxyId, now_s: float) -> None:
        """A question was sent on the held connection to a peer's worker."""
        at_s, record = self._detector_time_s(now_s), self._peers[peer]
        record.open_questions_s.append(now_s)
        if record.asked_s is None:
            record.asked_s = at_s

    def worker_answered(self, peer: ProxyId, now_s: float) -> None:
        """An answer arrived on the held connection to a peer's worker."""
        record = self._peers[peer]
        record.worker_heard_s = self._detector_time_s(now_s)
        record.asked_s = None
        if record.open_questions_s:
            record.record_answer(record.open_questions_s.popleft())

    def worker_given_up(self, peer: ProxyId, now_s: float) -> None:
        """The held connection to a peer's worker was silent for too long, and this member closed it."""
        self._detector_time_s(now_s)
        record = self._peers[peer]
        record.asked_s = None
        record.open_questions_s.clear()
        record.probe_now = True

    def heartbeat(self, peer: ProxyId, report_ready: bool, incarnation: int, now_s: float) -> None:
        """A report of a peer has arrived over the link."""
        at_s, record = self._detector_time_s(now_s), self._peers[peer]
        if incarnation != record.incarnation:
            # The peer has restarted: failed probes of the previous incarnation do not count against it.
            record.incarnation = incarnation
            record.failures = 0
            record.probe_void = record.probing
            record.probe_now = True
        if not report_ready or not record.ready or self._silent_s(record, at_s) >= self._half_suspect_after_s:
            record.probe_now = record.probe_now or record.liveness is Liveness.SUSPECT
        record.ready = report_ready
        record.heard_s = at_s

    def link_failed_here(self, peer: ProxyId, now_s: float) -> None:
        """A local fault prevented this member from making a link to a peer."""
        at_s, record = self._detector_time_s(now_s), self._peers[peer]
        record.link_failed_here_s = at_s

    def probe_sent(self, peer: ProxyId, now_s: float) -> None:
        """The probe of a peer is sent now, after its name was resolved."""
        at_s, record = self._detector_time_s(now_s), self._peers[peer]
        record.probe_sent_s = at_s
        record.probe_out_s = now_s

    def probe_failed_here(self, peer: ProxyId, now_s: float) -> None:
        """A local fault has ended the current probe of a peer."""
        self._detector_time_s(now_s)
        record = self._peers[peer]
        record.probing = record.probe_void = False
        record.probe_not_sent = True

    def probe_result(self, peer: ProxyId, outcome: ProbeOutcome, now_s: float) -> None:
        """The current probe of a peer has ended."""
        at_s, record = self._detector_time_s(now_s), self._peers[peer]
        void, record.probing, record.probe_void = record.probe_void, False, False
        record.probe_not_sent = False
        if outcome is ProbeOutcome.ANSWERED:
            record.failures = 0
            # The answer proves that the peer was alive when the probe was sent, not that it is alive now.
            record.answered_s = record.probe_sent_s
            record.record_answer(record.probe_out_s)
        elif not void:
            if record.failures == 0:
                record.failing_since_s = at_s if record.probe_sent_s is None else record.probe_sent_s
            record.failures += 1
            record.refused = outcome is ProbeOutcome.REFUSED

    def answered_late(self, peer: ProxyId, sent_s: float, now_s: float) -> None:
        """The answer to a probe has arrived after the probe counted as timed out.

        Args:
            sent_s: when the probe was sent, on the clock of ``now_s``.
        """
        record = self._peers[peer]
        self._detector_time_s(now_s)
        record.failures = 0
        record.record_answer(sent_s)
        sent_s -= self._paused_s
        record.answered_s = sent_s if record.answered_s is None else max(record.answered_s, sent_s)

    # -- conclusions ---------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Transition]:
        """Judge every peer. Call it after observations, and at ``next_deadline_s`` at the latest."""
        at_s = self._detector_time_s(now_s)
        transitions = []
        for peer, record in self._peers.items():
            verdict, reason = self._verdict(record, at_s)
            before, record.liveness = record.liveness, _LIVENESS_AFTER[record.liveness, verdict]
            if record.liveness is not before:
                record.since_s = at_s
                record.since_alone_s = self._alone_s + self._without_quorum_s(at_s)
                transitions.append(Transition(peer, before, record.liveness, reason, now_s))
        return transitions

    @property
    def liveness(self) -> Mapping[ProxyId, Liveness]:
        """The liveness of each peer at the last tick."""
        return {peer: record.liveness for peer, record in self._peers.items()}

    def alive_s(self, peer: ProxyId) -> float | None:
        """The last moment at which a peer's worker was certainly alive, on the caller's clock.

        This is the time when the last answered question was sent. None: the worker has never answered.
        """
        return self._peers[peer].alive_s

    def bypassed(
        self, now_s: float, has_quorum: bool, committed_down: AbstractSet[ProxyId]
    ) -> frozenset[ProxyId]:
        """The members that the overlay bypasses.

        With a quorum, a suspicion lapses if it is not committed within ``overlay_ttl_s``, and stays lapsed
        until the peer recovers. A broken link between two members must not make their Metadata disagree for
        ever. The suspicion lapses one heartbeat earlier, because by ``overlay_ttl_s`` the workers must have
        received the change.

        After ``NO_QUORUM_PERIODS`` without a quorum, nothing can be committed and this member acts alone: it
        bypasses every peer that it suspects, and this time does not count for ``overlay_ttl_s``. A shorter
        time without a quorum, such as an election, counts, and lapsed suspicions stay lapsed.

        A member that is committed down is bypassed for as long as it is suspected here, because it still owns
        identities that no other member may own. A peer whose worker was just lost is bypassed for
        ``WORKER_LOSS_BYPASS_S``.

        Args:
            has_quorum: whether there is a quorum now. Call the method regularly, because the time with a
                quorum counts.
            committed_down: the members that are committed down.
        """
        at_s = self._detector_time_s(now_s)
        self._count_alone(at_s, has_quorum)

        def is_bypassed(peer: ProxyId, record: _Peer) -> bool:
            if record.liveness is not Liveness.SUSPECT:
                return at_s < record.worker_loss_bypass_until_s
            if peer in committed_down or self._is_alone(at_s):
                return True
            return at_s < self._suspicion_lapses_s(record)

        return frozenset(peer for peer, record in self._peers.items() if is_bypassed(peer, record))

    def receives_heartbeats(self, peer: ProxyId, now_s: float) -> bool:
        """Whether heartbeats of a peer arrive here."""
        at_s, record = self._detector_time_s(now_s), self._peers[peer]
        return record.linked and self._silent_s(record, at_s) < self._timing.suspect_after_s

    @property
    def failed_probes(self) -> frozenset[ProxyId]:
        """The peers whose advertised listeners do not answer, except those that this member cannot ask."""
        return frozenset(
            peer for peer, record in self._peers.items() if record.failures and not record.probe_not_sent
        )

    def probes_due(self, now_s: float) -> list[ProxyId]:
        """The peers to probe now. Each counts as being probed until ``probe_result`` or
        ``probe_failed_here``."""
        at_s = self._detector_time_s(now_s)
        due = []
        for peer, record in self._peers.items():
            if not record.probing and at_s >= self._probe_due_s(record, at_s):
                record.probing = True
                record.probe_now = False
                record.probe_sent_s = at_s
                record.probe_out_s = now_s
                due.append(peer)
        return due

    def next_deadline_s(self, now_s: float) -> float:
        """When to call ``tick`` and ``probes_due`` next if no observation arrives earlier."""
        at_s = self._detector_time_s(now_s)
        # At most one heartbeat away: the detector takes a long gap between two calls for a pause.
        nearest_s = at_s + self._timing.heartbeat_s
        for record in self._peers.values():
            if not record.probing:
                nearest_s = min(nearest_s, self._probe_due_s(record, at_s))
            nearest_s = min([nearest_s, *(each for each in self._deadlines_s(record) if each > at_s)])
        # A microsecond late: a call that rounding makes early would miss the deadline.
        return max(now_s, nearest_s + self._paused_s + 1e-6)

    # -- time and deadlines --------------------------------------------------------------------------------

    def _count_alone(self, at_s: float, has_quorum: bool) -> None:
        if not has_quorum:
            self._alone_since_s = at_s if self._alone_since_s is None else self._alone_since_s
            return
        if self._is_alone(at_s):
            self._alone_s += self._without_quorum_s(at_s)
        elif self._alone_since_s is not None:
            for record in self._peers.values():
                # The time without a quorum was an election, which counts towards overlay_ttl_s.
                record.since_alone_s = min(record.since_alone_s, self._alone_s)
        self._alone_since_s = None

    def _without_quorum_s(self, at_s: float) -> float:
        return 0.0 if self._alone_since_s is None else at_s - self._alone_since_s

    def _is_alone(self, at_s: float) -> bool:
        return self._without_quorum_s(at_s) >= NO_QUORUM_PERIODS * self._timing.suspect_after_s

    def _suspicion_lapses_s(self, record: _Peer) -> float:
        """When a suspicion lapses that no other member shares."""
        alone_s = max(0.0, self._alone_s - record.since_alone_s)
        return record.since_s + alone_s + self._timing.overlay_ttl_s - self._timing.heartbeat_s

    @property
    def _half_suspect_after_s(self) -> float:
        return self._timing.suspect_after_s / 2

    def _detector_time_s(self, now_s: float) -> float:
        """The detector's own time, which stops while this process is paused (SIGSTOP, swap, suspend)."""
        gap_s, self._seen_s = now_s - self._seen_s, max(now_s, self._seen_s)
        if gap_s > self._half_suspect_after_s:
            self._paused_s += gap_s - min(self._timing.heartbeat_s, gap_s)
            for record in self._peers.values():
                record.probe_void = record.probing
        return self._seen_s - self._paused_s

    def _last_signs_s(self, record: _Peer) -> tuple[float, float]:
        """The last sign of life of a peer's control process, and of the peer as a whole."""
        heard_s = self._started_s if record.heard_s is None else record.heard_s
        signs = (record.answered_s, record.worker_heard_s)
        return heard_s, max([heard_s, *(sign_s for sign_s in signs if sign_s is not None)])

    def _control_since_s(self, record: _Peer, heard_s: float) -> float:
        """Since when a peer's control process is missing.

        A time in which a local fault prevented a link to the peer does not count.
        """
        return heard_s if record.link_failed_here_s is None else max(heard_s, record.link_failed_here_s)

    def _grace_ends_s(self, record: _Peer) -> float:
        """When the wait for a peer ends that has never been heard.

        A local fault extends the wait, but by at most ``grace_s``: the name of a removed peer may no longer
        resolve either.
        """
        since_s = min(self._control_since_s(record, self._started_s), self._started_s + self._timing.grace_s)
        return since_s + self._timing.grace_s

    def _silent_s(self, record: _Peer, at_s: float) -> float:
        return at_s - self._last_signs_s(record)[0]

    def _deadlines_s(self, record: _Peer) -> list[float]:
        """The moments at which the verdict can change without an observation."""
        timing = self._timing
        heard_s, alive_s = self._last_signs_s(record)
        deadlines = [
            self._grace_ends_s(record),
            alive_s + timing.suspect_after_s,
            self._control_since_s(record, heard_s) + timing.control_grace_s,
            record.worker_loss_bypass_until_s,
            self._suspicion_lapses_s(record),
        ]
        if record.failures:
            deadlines.append(record.failing_since_s + PROBE_TIMEOUT_PERIODS * timing.suspect_after_s)
        if record.asked_s is not None:
            deadlines.append(record.asked_s + UNANSWERED_QUESTION_PERIODS * timing.suspect_after_s)
        return deadlines

    def _probe_due_s(self, record: _Peer, at_s: float) -> float:
        if not record.linked and record.link_lost_s is None:
            return float("inf")
        if record.probe_now or record.probe_sent_s is None:
            return at_s
        interval_s = self._timing.probe_interval_s
        due_s = record.probe_sent_s + interval_s
        if record.liveness is Liveness.SUSPECT:
            return due_s
        just_lost = (
            record.link_lost_s is not None
            and record.probe_sent_s - record.link_lost_s < LINK_LOST_WINDOW_S
            and not record.probe_not_sent
        )
        soon_s = record.probe_sent_s + min(
            LINK_LOST_PROBE_INTERVAL_S if just_lost else OPEN_PROBE_INTERVAL_S, interval_s
        )
        if not record.linked or record.failures:
            return soon_s
        # Early enough for a verdict at suspect_after_s.
        half_silent_s = self._last_signs_s(record)[0] + self._half_suspect_after_s
        if record.asked_s is not None:
            half_silent_s = min(half_silent_s, record.asked_s + self._half_suspect_after_s)
        return min(due_s, max(soon_s, half_silent_s))

    def _verdict(self, record: _Peer, at_s: float) -> tuple[Verdict, str]:
        dead = self._suspicion(record, at_s)
        if dead is not None:
            return Verdict.DEAD, dead
        if not record.linked or not record.ready or record.failures:
            return Verdict.OPEN, ""
        if self._silent_s(record, at_s) >= self._timing.suspect_after_s:
            return Verdict.OPEN, ""
        if record.liveness is Liveness.SUSPECT:
            # If no probe can be sent, an answer on the held connection is sufficient.
            answered_s = record.worker_heard_s if record.probe_not_sent else record.answered_s
            if answered_s is None or answered_s < record.since_s:
                return Verdict.OPEN, ""
        return Verdict.HEALTHY, "recovered"

    def _suspicion(self, record: _Peer, at_s: float) -> Suspicion | None:
        """The reason to suspect a peer; None if there is no reason."""
        timing = self._timing
        in_grace = record.liveness is Liveness.UNKNOWN and at_s < self._grace_ends_s(record)
        if record.ready is None:
            # The peer has never sent a report, so it cannot have lost anything.
            return None if in_grace else "never_heard"
        if not record.linked and record.failures and record.refused:
            return "reset"
        heard_s, alive_s = self._last_signs_s(record)
        probed = record.probe_sent_s is not None and record.probe_sent_s > alive_s
        if probed and at_s - alive_s >= timing.suspect_after_s:
            return "silent"
        if at_s - self._control_since_s(record, heard_s) >= timing.control_grace_s:
            return "control_gone"
        if record.failures >= MIN_FAILED_PROBES and (
            record.refused or at_s - record.failing_since_s >= PROBE_TIMEOUT_PERIODS * timing.suspect_after_s
        ):
            return "unreachable"
        if self._is_unanswered(record, at_s):
            return "unreachable"
        if record.ready is False and not in_grace:
            return "not_ready"
        return None

    def _is_unanswered(self, record: _Peer, at_s: float) -> bool:
        """Whether a worker has not answered for too long, neither on the held connection nor on a new one."""
        if (
            record.asked_s is None
            or at_s - record.asked_s < UNANSWERED_QUESTION_PERIODS * self._timing.suspect_after_s
        ):
            return False
        return record.answered_s is None or record.answered_s < record.asked_s
