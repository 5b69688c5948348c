"""Turns a member's view of the fleet into Prometheus metrics.

Metrics are built again at each scrape, so that owners, members and workers that no longer exist leave no
series behind. ``docs/metrics.md`` describes each metric.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType
from typing import Final, TypeAlias, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from fleet import __version__
from fleet.admin.connections import NO_CONNECTIONS, ConnectionCounts
from fleet.admin.ownership import broker_ids
from fleet.admin.snapshot import CONDITIONS, FleetView
from fleet.admin.totals import add, total
from fleet.core.errors import ConnectionLimit, WireError
from fleet.core.liveness import Suspicion
from fleet.core.model import BrokerId, Liveness, MemberStatus, ProxyId
from fleet.proxy.wire._tables import APIS
from fleet.runtime.ipc import BOOTSTRAP, REWRITE_BOUNDS_S, WorkerCounters
from fleet.tls.tokens import REFUSALS, Refusal

ApiNames: TypeAlias = Callable[[int], str]

NO_EXEMPLARS: Final[Mapping[int, Exemplar]] = MappingProxyType({})
NO_REFUSALS: Final[Mapping[Refusal, int]] = dict.fromkeys(REFUSALS, 0)

SUSPICIONS: Final[tuple[Suspicion, ...]] = get_args(Suspicion)
TAKEOVER_REASONS: Final = (*SUSPICIONS, "down", "drain")
"""The reasons for a suspicion, and the two committed changes that move a member's identities."""

TO_BROKER: Final = "to_broker"
TO_CLIENT: Final = "to_client"


@dataclass(frozen=True, slots=True)
class RenamedMetric:
    """A metric that is served by its old name as well, deprecated, until 0.4.0.

    Args:
        old_name: of the family: without ``_total``.
        old_label: the old name of the one label whose values differ; None if all labels are the same.
        new_label: the new name of that label.
        old_words: new value of that label → old value; a value that is missing here is the same.
    """

    old_name: str
    old_label: str | None = None
    new_label: str | None = None
    old_words: Mapping[str, str] = field(default_factory=dict)

    def as_before(self, metric: Metric) -> Metric:
        """A copy of a metric with its old name, labels and label values."""
        old = copy.copy(metric)
        old.name = self.old_name
        new_name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        old.documentation = f"Deprecated, removed in 0.4.0. Use {new_name}."
        old.samples = [
            sample._replace(
                name=self.old_name + sample.name.removeprefix(metric.name),
                labels=dict(map(self._label_before, sample.labels.items())),
            )
            for sample in metric.samples
        ]
        return old

    def _label_before(self, label: tuple[str, str]) -> tuple[str, str]:
        name, value = label
        if self.old_label is None or name != self.new_label:
            return label
        return self.old_label, self.old_words.get(value, value)


def limit_label(limit: str) -> str:
    """The label of a limit: its name in the configuration, without the unit."""
    return limit.removesuffix("_s").removesuffix("_bytes")


RENAMED_METRICS: Final[Mapping[str, RenamedMetric]] = MappingProxyType(
    {
        "fleet_connections_limited": RenamedMetric(
            "fleet_limited_connections",
            "limit",
            "limit",
            {limit_label(limit): limit for limit in get_args(ConnectionLimit)},
        ),
        "fleet_events_spooled": RenamedMetric("fleet_events_waiting"),
        "fleet_member_condition": RenamedMetric(
            "fleet_member_state", "state", "condition", {"leaving": "draining"}
        ),
        "fleet_raft_degraded": RenamedMetric("fleet_raft_trouble"),
        "fleet_rewrite_duration_seconds": RenamedMetric("fleet_rewrite_seconds"),
        "fleet_takeover_duration_seconds": RenamedMetric("fleet_takeover_seconds"),
    }
)
"""New family → its old name. Values of a label that are renamed need a second metric: with both values in one
metric, a sum over the label would count everything twice."""


def api_name(key: int) -> str:
    """Kafka's name of an API key, such as ``Metadata``; the number of a key that the tables lack."""
    api = APIS.get(key)
    return str(key) if api is None else api.name


def broker_label(broker_id: BrokerId) -> str:
    return "bootstrap" if broker_id == BOOTSTRAP else str(broker_id)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _gauges(name: str, text: str, labels: list[str], samples: Iterable[tuple[list[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _counters(name: str, text: str, labels: list[str], samples: Iterable[tuple[list[str], float]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _histogram(
    name: str,
    text: str,
    bounds: tuple[float, ...],
    counts: tuple[int, ...],
    total_s: float,
    exemplars: Mapping[int, Exemplar] = NO_EXEMPLARS,
) -> Metric:
    """A histogram, from the counts of separate buckets; Prometheus requires their running sums.

    Args:
        counts: observations in each bucket, the one above the last bound included.
        total_s: the sum of all observations.
        exemplars: bucket number → its exemplar; only OpenMetrics shows them.
    """
    family = HistogramMetricFamily(name, text)
    names = [*(repr(bound) for bound in bounds), "+Inf"]
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = [
        (bound, count, exemplars[index]) if index in exemplars else (bound, count)
        for index, (bound, count) in enumerate(zip(names, accumulate(counts), strict=True))
    ]
    family.add_metric([], buckets, total_s)
    return family


def _wire_reasons(error: type[WireError] = WireError) -> Iterator[str]:
    yield error.reason
    for inner in error.__subclasses__():
        yield from _wire_reasons(inner)


class FleetCollector(Collector):
    """Yields the metrics of one view.

    Args:
        names: gives the label of an API key.
        refused: the number of requests that the admin interface refused, by reason.
        connections: counts of the connections to the admin interface.
    """

    def __init__(
        self,
        view: FleetView,
        names: ApiNames = api_name,
        refused: Mapping[Refusal, int] = NO_REFUSALS,
        connections: ConnectionCounts = NO_CONNECTIONS,
    ) -> None:
        self._view = view
        self._names = names
        self._refused = refused
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        for metric in self._metrics():
            yield metric
            if metric.name in RENAMED_METRICS:
                yield RENAMED_METRICS[metric.name].as_before(metric)

    def _metrics(self) -> Iterator[Metric]:
        yield from self._ownership()
        yield from self._members()
        yield from self._raft()
        yield from self._takeovers()
        yield from self._data_plane()
        yield from self._traffic()
        yield from self._events()
        yield _counters(
            "fleet_thread_restarts",
            "Threads of the control process that ended with an error and were restarted.",
            ["thread"],
            (([thread], restarts) for thread, restarts in self._view.thread_restarts.items()),
        )
        yield _counters(
            "fleet_admin_refused",
            "Requests to the admin address that were refused because they lacked the right token.",
            ["reason"],
            (([reason], count) for reason, count in self._refused.items()),
        )
        yield _gauge(
            "fleet_admin_connections",
            "Connections to the admin address that are open or in a TLS handshake.",
            self._connections.open,
        )
        yield _counters(
            "fleet_admin_dropped_connections",
            "Connections to the admin address that were closed because of a limit.",
            ["reason"],
            (([reason], count) for reason, count in self._connections.dropped.items()),
        )

    def _ownership(self) -> Iterator[Metric]:
        directory, live = self._view.directory, self._live_members()
        views: tuple[tuple[str, Mapping[BrokerId, tuple[ProxyId, ...]]], ...] = (
            ("committed", directory.committed),
            ("advertised", directory.advertised),
        )
        yield _gauges(
            "fleet_identity_owner",
            "1 for each owner of an identity: committed by Raft, or advertised to clients.",
            ["broker_id", "proxy_id", "view"],
            (
                ([str(broker_id), owner, name], 1)
                for name, owners in views
                for broker_id in sorted(owners)
                for owner in owners[broker_id]
            ),
        )
        yield _gauges(
            "fleet_identity_live_owners",
            "Advertised owners that are neither suspect nor down. At 0, clients miss the broker.",
            ["broker_id"],
            (
                ([str(broker_id)], sum(owner in live for owner in directory.advertised.get(broker_id, ())))
                for broker_id in broker_ids(directory)
            ),
        )
        yield _gauge(
            "fleet_directory_generation",
            "Number of committed ownership changes in this member's directory.",
            directory.generation,
        )
        yield _gauge(
            "fleet_directory_revision",
            "Number of directories sent to the workers, those for bypassed members included.",
            directory.revision,
        )
        yield _gauge(
            "fleet_directory_staleness_seconds",
            "0 while there is a quorum, otherwise the time for which no ownership could be committed.",
            self._view.staleness_s,
        )

    def _events(self) -> Iterator[Metric]:
        events = self._view.events
        if events is None:
            return
        yield _counters("fleet_events_sent", "Events that Kafka has acknowledged.", [], [([], events.sent)])
        yield _gauge(
            "fleet_events_spooled", "Events on disk that Kafka has not acknowledged yet.", events.waiting
        )
        yield _counters(
            "fleet_events_dropped", "Events dropped because the spool was full.", [], [([], events.dropped)]
        )

    def _live_members(self) -> frozenset[ProxyId]:
        """Members to which clients can be sent, as this member sees them; it never suspects itself."""
        view = self._view
        # A member that is no longer in the configuration file counts by its committed status.
        live = {each.proxy_id for each in view.state.members.values() if each.status is not MemberStatus.DOWN}
        for member in view.members:
            if member.condition in ("suspect", "down"):
                live.discard(member.proxy_id)
            else:
                live.add(member.proxy_id)
        return frozenset(live | {view.me})

    def _members(self) -> Iterator[Metric]:
        members = self._view.members
        yield _gauges(
            "fleet_member_condition",
            "1 for the condition in which this member sees each member, 0 for every other condition.",
            ["proxy_id", "condition"],
            (
                ([member.proxy_id, condition], member.condition == condition)
                for member in members
                for condition in CONDITIONS
            ),
        )
        yield _gauges(
            "fleet_member_generation",
            "The generation that each member last reported to this member.",
            ["proxy_id"],
            (
                ([member.proxy_id], member.generation)
                for member in members
                if member.generation is not None and member.liveness is not Liveness.SUSPECT
            ),
        )
        yield _gauges(
            "fleet_member_connected",
            "1 if the link between this member and the other member is up.",
            ["proxy_id"],
            (([each.proxy_id], each.connected) for each in members if each.proxy_id != self._view.me),
        )
        yield CounterMetricFamily(
            "fleet_local_failures",
            "Probes of other members and links to them that failed because of a fault of this member.",
            value=self._view.local_failures,
        )
        workers = [self._view.retired, *(each.counters for each in self._view.workers)]
        yield CounterMetricFamily(
            "fleet_log_lines_dropped",
            "Log lines of the control process and the workers that could not be written to standard error.",
            value=self._view.dropped_log_lines + sum(each.dropped_log_lines for each in workers),
        )
        yield _gauge(
            "fleet_members_without_voter_digest",
            "Linked members that do not report which voters they count: they run a release before 0.3.0.",
            sum(each.has_voter_digest is False for each in members),
        )
        yield _gauges(
            "fleet_certificate_expiry_timestamp_seconds",
            "When each certificate of this member expires, by the configuration field that names it.",
            ["file"],
            (([name], at_s) for name, at_s in sorted(self._view.certificate_expiry_s.items())),
        )

    def _raft(self) -> Iterator[Metric]:
        raft = self._view.raft
        yield _gauge("fleet_raft_leader", "1 if this member is the Raft leader.", raft.role == "leader")
        yield _gauges(
            "fleet_raft_known_leader",
            "1 for the voter that this member knows as the Raft leader; all 0 without a leader.",
            ["proxy_id"],
            (([each.proxy_id], each.proxy_id == raft.leader) for each in self._view.members if each.voter),
        )
        yield _gauge("fleet_raft_has_quorum", "1 if a majority of the voters is reachable.", raft.has_quorum)
        yield _gauge(
            "fleet_raft_degraded",
            "1 if this voter cannot vote: its disk is full, or its journal was reset.",
            raft.error is not None,
        )
        yield _gauge(
            "fleet_raft_distrusted_voters",
            "Voters whose journals lack promises that this member remembers; it does not count their votes.",
            len(raft.distrusted),
        )
        yield _gauge("fleet_raft_term", "The Raft term of this member.", raft.term)
        yield _gauge(
            "fleet_raft_commit_index", "Index of the last committed entry of the Raft log.", raft.commit_index
        )

    def _takeovers(self) -> Iterator[Metric]:
        log = self._view.takeovers
        # Each series exists from the start: Prometheus sees no increase in a series that begins at 1.
        by_reason = {**dict.fromkeys(TAKEOVER_REASONS, 0), **log.by_reason}
        yield _counters(
            "fleet_takeovers",
            "Takeovers: how often the identities of a member were advertised at other members, by reason.",
            ["reason"],
            (([reason], count) for reason, count in sorted(by_reason.items())),
        )
        yield _histogram(
            "fleet_takeover_duration_seconds",
            "Time from the first sign of a failure until this member advertised the successors.",
            log.seconds.bounds,
            log.seconds.counts,
            log.seconds.total,
            self._exemplars(),
        )

    def _exemplars(self) -> Mapping[int, Exemplar]:
        """Bucket number → the last takeover in the bucket that has a trace."""
        log, found = self._view.takeovers, {}
        for each in log.recent if self._view.traced else ():
            if each.seconds is not None and each.advertised is not None and each.committed is not None:
                name = {"trace_id": each.trace_id(self._view.fleet)}
                exemplar = Exemplar(name, each.seconds, each.advertised.wall_ms / 1000)
                found[bisect_left(log.seconds.bounds, each.seconds)] = exemplar
        return found

    def _data_plane(self) -> Iterator[Metric]:
        view = self._view
        yield _gauges(
            "fleet_upstream_up",
            "1 if this member can reach the broker.",
            ["broker_id"],
            (([str(broker_id)], up) for broker_id, up in sorted(view.upstream_up.items())),
        )
        yield _gauge(
            "fleet_workers", "Workers connected to this member's control process.", len(view.workers)
        )
        yield _gauges(
            "fleet_worker_directory_generation",
            "The generation of the directory that each worker uses.",
            ["worker"],
            (([str(worker.index)], worker.counters.generation) for worker in view.workers),
        )
        yield CounterMetricFamily(
            "fleet_worker_restarts",
            "Workers that replaced an earlier one since the control process started.",
            value=view.worker_restarts,
        )
        yield _gauges(
            "fleet_ready",
            "1 for each check of /readyz that passes.",
            ["check"],
            (([check.name], check.ok) for check in view.checks),
        )
        yield _gauges(
            "fleet_build_info",
            "Always 1. The labels are the fleet, the member and its version.",
            ["fleet", "proxy_id", "version"],
            [([view.fleet, view.me, __version__], 1)],
        )

    def _traffic(self) -> Iterator[Metric]:
        now = total(worker.counters for worker in self._view.workers)
        ever: WorkerCounters = add(self._view.retired, now)
        yield _gauges(
            "fleet_client_connections",
            "Open client connections, by the identity of the port.",
            ["broker_id"],
            (([broker_label(broker_id)], count) for broker_id, count in sorted(now.connections.items())),
        )
        requests: dict[str, int] = {}
        for key, count in sorted(ever.requests.items()):
            name = self._names(key)
            requests[name] = requests.get(name, 0) + count
        yield _counters(
            "fleet_requests",
            "Requests from clients.",
            ["api"],
            (([name], count) for name, count in requests.items()),
        )
        yield _counters(
            "fleet_bytes",
            "Forwarded bytes, by direction and broker.",
            ["direction", "broker_id"],
            (
                ([direction, broker_label(broker_id)], count)
                for direction, counts in (
                    (TO_BROKER, ever.bytes_to_broker),
                    (TO_CLIENT, ever.bytes_to_client),
                )
                for broker_id, count in sorted(counts.items())
            ),
        )
        yield _histogram(
            "fleet_rewrite_duration_seconds",
            "Time to rewrite the addresses in one response. Responses served from the cache are not counted.",
            REWRITE_BOUNDS_S,
            ever.rewrite_buckets,
            ever.rewrite_sum_s,
        )
        errors = {**dict.fromkeys(_wire_reasons(), 0), **ever.errors}
        yield _counters(
            "fleet_protocol_errors",
            "Connections closed because of bytes that violate the Kafka protocol as the fleet offers it.",
            ["reason"],
            (([reason], count) for reason, count in sorted(errors.items())),
        )
        limited = {**dict.fromkeys(get_args(ConnectionLimit), 0), **ever.limited}
        yield _counters(
            "fleet_connections_limited",
            "Connections closed because of a limit.",
            ["limit"],
            (([limit_label(limit)], count) for limit, count in sorted(limited.items())),
        )


def registry_of(collector: Collector) -> CollectorRegistry:
    """A registry for one scrape: the fleet's metrics and those of the control process itself."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry
