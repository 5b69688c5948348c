"""A view as Prometheus metrics, made anew at each scrape, so that what is no more leaves no series behind.

``docs/metrics.md`` describes each of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from fleet.admin.snapshot import STATES, FleetView
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
"""Why a member is suspected, and what is committed of one."""

TO_BROKER: Final = "to_broker"
TO_CLIENT: Final = "to_client"


def api_name(key: int) -> str:
    """Kafka's name of an API key, such as ``Metadata``; its number where the tables have none."""
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
    """A histogram of separate buckets, of which Prometheus wants the running sums.

    Args:
        exemplars: by the number of the bucket; in OpenMetrics alone.
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
        names: the label of an API key.
        refused: how many requests to the admin interface were turned away, by reason.
        connections: those to the admin interface.
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
        yield from self._ownership()
        yield from self._members()
        yield from self._raft()
        yield from self._takeovers()
        yield from self._data_plane()
        yield from self._traffic()
        yield from self._events()
        yield _counters(
            "fleet_thread_restarts",
            "Threads of the control process that ended by an error, and were started again.",
            ["thread"],
            (([thread], restarts) for thread, restarts in self._view.thread_restarts.items()),
        )
        yield _counters(
            "fleet_admin_refused",
            "Requests to the admin address that were refused for want of the right token.",
            ["reason"],
            (([reason], count) for reason, count in self._refused.items()),
        )
        yield _gauge(
            "fleet_admin_connections",
            "Connections to the admin address that are open, or in a TLS handshake.",
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
            "1 for each proxy that stands for an identity, by Raft (committed) or to clients (advertised).",
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
            "Advertised owners of an identity that are not suspect or down; at 0 clients miss a broker.",
            ["broker_id"],
            (
                ([str(broker_id)], sum(owner in live for owner in directory.advertised.get(broker_id, ())))
                for broker_id in broker_ids(directory)
            ),
        )
        yield _gauge(
            "fleet_directory_generation",
            "Number of committed changes of ownership that this member's directory has.",
            directory.generation,
        )
        yield _gauge(
            "fleet_directory_revision",
            "Number of directories handed to the workers, overlay changes included.",
            directory.revision,
        )
        yield _gauge(
            "fleet_directory_staleness_seconds",
            "0 while there is a quorum, else for how long ownership could not be committed.",
            self._view.staleness_s,
        )

    def _events(self) -> Iterator[Metric]:
        events = self._view.events
        if events is None:
            return
        yield _counters("fleet_events_sent", "Events that Kafka has acknowledged.", [], [([], events.sent)])
        yield _gauge("fleet_events_waiting", "Events on the disk, for Kafka to take them.", events.waiting)
        yield _counters(
            "fleet_events_dropped", "Events given up for want of room.", [], [([], events.dropped)]
        )

    def _live_members(self) -> frozenset[ProxyId]:
        """Members that clients can be sent to, as far as this one knows; it never doubts itself."""
        view = self._view
        # Members that a newer file has no more are judged by what Raft has of them.
        live = {each.proxy_id for each in view.state.members.values() if each.status is not MemberStatus.DOWN}
        for member in view.members:
            if member.state in ("suspect", "down"):
                live.discard(member.proxy_id)
            else:
                live.add(member.proxy_id)
        return frozenset(live | {view.me})

    def _members(self) -> Iterator[Metric]:
        members = self._view.members
        yield _gauges(
            "fleet_member_state",
            "1 for the state that this member sees each member in, 0 for the others.",
            ["proxy_id", "state"],
            (([member.proxy_id, state], member.state == state) for member in members for state in STATES),
        )
        yield _gauges(
            "fleet_member_generation",
            "The generation that each member last reported to this one.",
            ["proxy_id"],
            (
                ([member.proxy_id], member.generation)
                for member in members
                if member.generation is not None and member.liveness is not Liveness.SUSPECT
            ),
        )
        yield _gauges(
            "fleet_member_connected",
            "1 where the link between this member and another is up.",
            ["proxy_id"],
            (([each.proxy_id], each.connected) for each in members if each.proxy_id != self._view.me),
        )
        yield CounterMetricFamily(
            "fleet_local_failures",
            "Probes of other members, and links to them, that failed for a reason of this member's own.",
            value=self._view.local_failures,
        )
        workers = [self._view.retired, *(each.counters for each in self._view.workers)]
        yield CounterMetricFamily(
            "fleet_log_lines_dropped",
            "Log lines of the control process and the workers that standard error has not taken.",
            value=self._view.dropped_log_lines + sum(each.dropped_log_lines for each in workers),
        )
        yield _gauge(
            "fleet_members_without_voter_digest",
            "Linked members that do not say which voters they count: they run a release before 0.3.0.",
            sum(each.has_voter_digest is False for each in members),
        )

        yield _gauges(
            "fleet_certificate_expiry_timestamp_seconds",
            "When the certificates of this member expire, in Unix time, by the field that names them.",
            ["file"],
            (([name], at_s) for name, at_s in sorted(self._view.certificate_expiry_s.items())),
        )

    def _raft(self) -> Iterator[Metric]:
        raft = self._view.raft
        yield _gauge("fleet_raft_leader", "1 where this member is the Raft leader.", raft.role == "leader")
        yield _gauges(
            "fleet_raft_known_leader",
            "1 for the member that this one takes for the Raft leader; all 0 where it knows none.",
            ["proxy_id"],
            (([each.proxy_id], each.proxy_id == raft.leader) for each in self._view.members if each.voter),
        )
        yield _gauge(
            "fleet_raft_has_quorum", "1 where a majority of the voters is reachable.", raft.has_quorum
        )
        yield _gauge(
            "fleet_raft_trouble",
            "1 where this member does not vote although it should: its disk is full, or it was reset.",
            raft.trouble is not None,
        )
        yield _gauge(
            "fleet_raft_distrusted_voters",
            "Voters that have forgotten promises that this member remembers: it counts none of their votes.",
            len(raft.distrusted),
        )
        yield _gauge("fleet_raft_term", "The Raft term that this member is in.", raft.term)
        yield _gauge(
            "fleet_raft_commit_index", "Index of the last committed entry of Raft's log.", raft.commit_index
        )

    def _takeovers(self) -> Iterator[Metric]:
        log = self._view.takeovers
        # From the start on: where a series begins at 1, Prometheus sees no increase.
        by_reason = {**dict.fromkeys(TAKEOVER_REASONS, 0), **log.by_reason}
        yield _counters(
            "fleet_takeovers",
            "Times that identities of a member were advertised at others, by reason.",
            ["reason"],
            (([reason], count) for reason, count in sorted(by_reason.items())),
        )
        yield _histogram(
            "fleet_takeover_seconds",
            "From detecting that a member fails until this member advertised its identities elsewhere.",
            log.seconds.bounds,
            log.seconds.counts,
            log.seconds.total,
            self._exemplars(),
        )

    def _exemplars(self) -> Mapping[int, Exemplar]:
        """The last takeover of each bucket that is told in a trace."""
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
            "1 where this member can reach a broker.",
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
            "Workers that took the place of another since the control process started.",
            value=view.worker_restarts,
        )
        yield _gauges(
            "fleet_ready",
            "1 for each condition of /readyz that holds.",
            ["check"],
            (([check.name], check.ok) for check in view.checks),
        )
        yield _gauges(
            "fleet_build_info",
            "Always 1; the labels say what runs.",
            ["fleet", "proxy_id", "version"],
            [([view.fleet, view.me, __version__], 1)],
        )

    def _traffic(self) -> Iterator[Metric]:
        now = total(worker.counters for worker in self._view.workers)
        ever: WorkerCounters = add(self._view.retired, now)
        yield _gauges(
            "fleet_client_connections",
            "Client connections open now, by the identity that their port stands for.",
            ["broker_id"],
            (([broker_label(broker_id)], count) for broker_id, count in sorted(now.connections.items())),
        )
        requests: dict[str, int] = {}
        for key, count in sorted(ever.requests.items()):
            name = self._names(key)
            requests[name] = requests.get(name, 0) + count
        yield _counters(
            "fleet_requests",
            "Requests of clients.",
            ["api"],
            (([name], count) for name, count in requests.items()),
        )
        yield _counters(
            "fleet_bytes",
            "Bytes forwarded, by direction and broker.",
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
            "fleet_rewrite_seconds",
            "Time to rewrite the addresses in one response, unless it begins as one before it did.",
            REWRITE_BOUNDS_S,
            ever.rewrite_buckets,
            ever.rewrite_sum_s,
        )
        errors = {**dict.fromkeys(_wire_reasons(), 0), **ever.errors}
        yield _counters(
            "fleet_protocol_errors",
            "Connections closed because of bytes that are not the Kafka protocol as the fleet offers it.",
            ["reason"],
            (([reason], count) for reason, count in sorted(errors.items())),
        )
        limited = {**dict.fromkeys(get_args(ConnectionLimit), 0), **ever.limited}
        yield _counters(
            "fleet_limited_connections",
            "Connections closed because of a limit.",
            ["limit"],
            (([limit], count) for limit, count in sorted(limited.items())),
        )


def registry_of(collector: Collector) -> CollectorRegistry:
    """A registry for one scrape: the fleet's metrics and those of the control process itself."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry
