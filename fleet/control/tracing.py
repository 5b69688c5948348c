"""OpenTelemetry spans of what control does. Only this module imports that library.

A span is created when its action is over, and passed to a thread of the library, which sends it. If the
collector is slow or down, spans are dropped, and the log says so once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context
from opentelemetry.util.types import AttributeValue

from fleet import __version__
from fleet.config import TracingSettings
from fleet.core.model import ProxyId
from fleet.core.replication import RaftStatus
from fleet.core.state import Command, DrainSet, Outcome, OwnershipSet, PinSet
from fleet.core.takeover import Moment, Takeover, trace_id

log = logging.getLogger(__name__)

SERVICE: Final = "kafka-proxy-fleet"
SEND_INTERVAL_S: Final = 1.0
SEND_TIMEOUT_S: Final = 10.0
"""A batch that the collector does not accept within this time is dropped."""
MAX_WAITING_SPANS: Final = 2048
MAX_BATCH_SPANS: Final = 512
EFFECTIVE_REASONS: Final = ("", "no_change", "repeated")
"""Outcome reasons of an operator's command that are no error."""

Attributes = Mapping[str, AttributeValue]


def make_exporter(settings: TracingSettings, source: str) -> SpanExporter:
    """Make the exporter that sends spans to the configured collector.

    Args:
        source: the name of the configuration file in errors.
    Raises:
        ConfigError: a header cannot be read.
    """
    headers = {name: secret.read(source) for name, secret in settings.headers.items()}
    return OTLPSpanExporter(
        settings.url, headers=headers, timeout=SEND_TIMEOUT_S, compression=Compression.Gzip
    )


class Tracing:
    """Records the actions and observations of one member as spans.

    Only `stop` blocks. Any thread may call the methods.

    Args:
        exporter: sends the spans.
        to: the name of the collector in the log.
        clock: returns the current instant on both clocks.
    """

    def __init__(
        self, exporter: SpanExporter, to: str, fleet: str, me: ProxyId, clock: Callable[[], Moment]
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._leads = False
        self._leaderless: Moment | None = None
        self._ids = _Ids()
        resource = Resource.create(
            {
                "service.name": SERVICE,
                "service.namespace": fleet,
                "service.instance.id": me,
                "service.version": __version__,
                "fleet.name": fleet,
            }
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False, id_generator=self._ids
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                _LoggingExporter(exporter, to),
                max_queue_size=MAX_WAITING_SPANS,
                schedule_delay_millis=1000 * SEND_INTERVAL_S,
                max_export_batch_size=MAX_BATCH_SPANS,
            )
        )
        self._tracer = self._provider.get_tracer("fleet", __version__)

    def stop(self, limit_s: float) -> None:
        """Send the waiting spans, and end. Blocks for at most ``limit_s``."""
        # The library would wait for thirty seconds.
        ending = threading.Thread(target=self._provider.shutdown, name="tracing-end", daemon=True)
        ending.start()
        ending.join(limit_s)

    # -- actions -------------------------------------------------------------------------------------------

    def on_takeover_ended(self, takeover: Takeover) -> None:
        """A takeover is over: it was advertised and committed, or the member came back earlier."""
        began = takeover.alive or takeover.detected
        parts = (
            ("detect", began, takeover.detected),
            ("advertise", takeover.detected, takeover.advertised),
            ("commit", takeover.detected, takeover.committed),
        )
        ended = max((end for _, _, end in parts if end is not None), key=lambda each: each.mono_s)
        attributes: dict[str, AttributeValue] = {
            "fleet.member": takeover.proxy_id,
            "fleet.reason": takeover.reason,
            "fleet.identities": takeover.broker_ids,
            "fleet.committed": takeover.committed is not None,
        }
        with self._ids.of_trace(takeover.trace_id(self._fleet)):
            root = self._start("fleet.takeover", began, began, attributes)
        inside = set_span_in_context(root, Context())
        for name, start, end in parts:
            if end is not None and (name != "detect" or takeover.alive is not None):
                part = self._start(f"fleet.takeover.{name}", began, start, {}, inside)
                part.end(_at(began, end))
        root.end(_at(began, ended))

    def on_proposed(self, command: Command, outcome: Future[Outcome]) -> None:
        """This member has proposed a command. The span is created when the outcome is known."""
        span_name = _span_name(command)
        if span_name is not None:
            outcome.add_done_callback(partial(self._on_outcome, command, *span_name, self._clock()))

    def _on_outcome(
        self, command: Command, name: str, attributes: Attributes, began: Moment, outcome: Future[Outcome]
    ) -> None:
        error = CancelledError("cancelled") if outcome.cancelled() else outcome.exception()
        result = None if error is not None else outcome.result()
        if isinstance(command, OwnershipSet) and (result is None or not result.applied):
            return  # The leader proposes the remaining change again.
        with self._ids.of_trace(trace_id(self._fleet, command.command_id)):
            span = self._start(name, began, began, attributes)
        if result is None:
            span.set_status(Status(StatusCode.ERROR, str(error)))
        else:
            span.set_attribute("fleet.generation", result.generation)
            span.set_attribute("fleet.outcome", result.reason or "applied")
            if result.reason not in EFFECTIVE_REASONS:
                span.set_status(Status(StatusCode.ERROR, result.reason))
        span.end(_at(began, self._clock()))

    def on_raft_status(self, status: RaftStatus) -> None:
        """Raft has this status now. The elected member records the election, from the loss of the leader."""
        led, self._leads = self._leads, status.role == "leader"
        now = self._clock()
        if self._leads and not led:
            began = self._leaderless or now
            span = self._start("fleet.election", began, began, {"fleet.term": status.term})
            span.end(_at(began, now))
        if status.leader is not None and status.role != "candidate":
            self._leaderless = None
        elif self._leaderless is None:
            self._leaderless = now

    # -- spans ---------------------------------------------------------------------------------------------

    def _start(
        self, name: str, origin: Moment, at: Moment, attributes: Attributes, inside: Context | None = None
    ) -> Span:
        context = Context() if inside is None else inside
        return self._tracer.start_span(name, context, attributes=attributes, start_time=_at(origin, at))


def _at(origin: Moment, moment: Moment) -> int:
    """An instant in nanoseconds of Unix time. The monotonic clock measures the distance from ``origin``."""
    return origin.wall_ms * 1_000_000 + round((moment.mono_s - origin.mono_s) * 1e9)


def _span_name(command: Command) -> tuple[str, dict[str, AttributeValue]] | None:
    """The name and attributes of a command's span; None if the command gets no span."""
    match command:
        case DrainSet(proxy_id=proxy_id, drained=drained):
            return "fleet.drain" if drained else "fleet.undrain", {"fleet.member": proxy_id}
        case PinSet(proxy_id=None):
            return "fleet.unpin", {"fleet.identities": (command.broker_id,)}
        case PinSet(proxy_id=str(proxy_id)):
            return "fleet.pin", {"fleet.identities": (command.broker_id,), "fleet.member": proxy_id}
        case OwnershipSet():
            moved = (*sorted(command.changes), *command.removed)
            return "fleet.ownership", {"fleet.reason": command.reason, "fleet.identities": moved}
    return None


class _Ids(RandomIdGenerator):
    """Random ids, except for traces to which several members contribute."""

    def __init__(self) -> None:
        self._known: ContextVar[int | None] = ContextVar("trace", default=None)

    @contextmanager
    def of_trace(self, name: str) -> Iterator[None]:
        """Give traces that start inside the block this id (32 hex digits)."""
        before = self._known.set(int(name, 16))
        try:
            yield
        finally:
            self._known.reset(before)

    def generate_trace_id(self) -> int:
        return self._known.get() or super().generate_trace_id()

    def is_trace_id_random(self) -> bool:
        return False


class _LoggingExporter(SpanExporter):
    """Sends spans. Logs a failure once, until the collector accepts spans again.

    The library itself logs at least one line per attempt. The first of these lines has the reason.
    """

    def __init__(self, exporter: SpanExporter, to: str) -> None:
        self._exporter = exporter
        self._to = to
        self._is_failing = False
        self._library_log = _FirstMessageHandler()
        library = logging.getLogger("opentelemetry")
        library.handlers = [self._library_log]
        library.propagate = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            result = SpanExportResult.FAILURE
            self._library_log.first = self._library_log.first or f"{type(error).__name__}: {error}"
        if result is SpanExportResult.SUCCESS:
            if self._is_failing:
                log.info("collector accepts traces again: url=%s", self._to)
            self._is_failing = False
        elif not self._is_failing:
            self._is_failing = True
            why = self._library_log.first
            log.warning("collector refuses traces, dropping them (logged once): url=%s: %s", self._to, why)
        self._library_log.first = ""
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class _FirstMessageHandler(logging.Handler):
    """Keeps the first message that the library logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()
