"""fleet/admin: views, totals, and what Prometheus is told of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar, Sample, Timestamp

from fleet.admin.metrics import RENAMED_METRICS, FleetCollector, registry_of
from fleet.admin.ownership import ownership_document
from fleet.admin.snapshot import CONDITIONS, FleetView, MemberView, RaftView, WorkerView
from fleet.admin.totals import add, retire, total
from fleet.core.model import Directory, Endpoint, FleetState, Liveness, MemberStatus
from fleet.core.takeover import RECENT_TAKEOVERS, Histogram, Moment, Takeover, TakeoverLog
from fleet.events.progress import EventsView
from fleet.runtime.ipc import REWRITE_BOUNDS_S, WorkerCounters
from tests.unit.admin.sample_snapshot import COUNTERS, MEMBERS, view

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


def scrape(shown: FleetView) -> dict[str, list[Sample]]:
    """Sample name → samples, as a Prometheus would read them."""
    text = generate_latest(registry_of(FleetCollector(shown))).decode()
    samples: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    return samples


def values(shown: FleetView, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(s.labels[label] for label in labels): s.value for s in scrape(shown).get(name, [])}


def test_thread_restarts_are_exported_from_the_start() -> None:
    restarts = values(view(), "fleet_thread_restarts_total", "thread")
    assert restarts == {("events",): 0, ("weights",): 2}


def test_every_owner_is_exported_committed_and_advertised() -> None:
    assert values(view(), "fleet_identity_owner", "broker_id", "proxy_id", "view") == {
        ("1", "p1", "committed"): 1,
        ("2", "p2", "committed"): 1,
        ("3", "p3", "committed"): 1,
        ("1", "p1", "advertised"): 1,
        ("2", "p3", "advertised"): 1,
        ("3", "p3", "advertised"): 1,
    }


def test_series_of_ended_subjects_vanish() -> None:
    gone = view(directory=Directory(), state=FleetState(), upstream_up={}, workers=(), members=())
    for name in (
        "fleet_identity_owner",
        "fleet_member_condition",
        "fleet_upstream_up",
        "fleet_client_connections",
    ):
        assert name in scrape(view())
        assert name not in scrape(gone)


def test_suspect_and_down_owners_are_not_live() -> None:
    directory = replace(view().directory, advertised={1: ("p1",), 2: ("p2",), 3: ("p2", "p3")})
    found = values(view(directory=directory), "fleet_identity_live_owners", "broker_id")
    assert found == {("1",): 1, ("2",): 0, ("3",): 1}


def test_member_never_suspects_itself() -> None:
    down = {**MEMBERS, "p2": replace(MEMBERS["p2"], status=MemberStatus.DOWN)}
    shown = view(me="p2", members=(), state=FleetState(members=down))
    shown = replace(
        shown, directory=replace(shown.directory, advertised={1: ("p2",), 2: ("p1",), 3: ("px",)})
    )
    assert values(shown, "fleet_identity_live_owners", "broker_id") == {("1",): 1, ("2",): 1, ("3",): 0}


def test_broker_without_owner_is_exported() -> None:
    directory = replace(view().directory, advertised={}, committed={})
    found = values(view(directory=directory), "fleet_identity_live_owners", "broker_id")
    assert found == {("1",): 0, ("2",): 0, ("3",): 0}


@pytest.mark.parametrize(
    ("has_quorum", "lost", "expected"),
    [(True, None, 0.0), (True, 90.0, 0.0), (False, 90.0, 10.5), (False, None, 60.5)],
)
def test_staleness_counts_from_the_loss_of_the_quorum(
    has_quorum: bool, lost: float | None, expected: float
) -> None:
    shown = view(raft=RaftView(has_quorum=has_quorum, quorum_lost_mono_s=lost))
    assert values(shown, "fleet_directory_staleness_seconds") == {(): expected}


def test_raft_is_exported() -> None:
    assert values(view(), "fleet_raft_leader") == {(): 1}
    assert values(view(), "fleet_raft_term") == {(): 4}
    assert values(view(), "fleet_raft_degraded") == {(): 0}
    assert values(view(), "fleet_raft_distrusted_voters") == {(): 0}
    forgetful = view(raft=RaftView(distrusted=("p2", "p3")))
    assert values(forgetful, "fleet_raft_distrusted_voters") == {(): 2}
    assert ownership_document(forgetful).distrusted_voters == ("p2", "p3")
    assert values(view(), "fleet_raft_has_quorum") == {(): 1}
    leaders = values(view(), "fleet_raft_known_leader", "proxy_id")
    assert leaders == {("p1",): 1, ("p2",): 0, ("p3",): 0}
    lost = view(raft=RaftView(role="candidate", leader=None))
    assert values(lost, "fleet_raft_leader") == {(): 0}
    assert sum(values(lost, "fleet_raft_known_leader", "proxy_id").values()) == 0


def test_linked_members_without_a_voter_digest_are_counted() -> None:
    shown = view()
    known = (False, None, True)
    members = tuple(
        replace(each, has_voter_digest=has) for each, has in zip(shown.members, known, strict=True)
    )
    assert values(replace(shown, members=members), "fleet_members_without_voter_digest") == {(): 1}
    assert ownership_document(replace(shown, members=members)).members[0].has_voter_digest is False


def test_each_member_has_exactly_one_condition() -> None:
    found = values(view(), "fleet_member_condition", "proxy_id", "condition")
    assert len(found) == 3 * len(CONDITIONS)
    assert {key for key, value in found.items() if value} == {("p1", "up"), ("p2", "suspect"), ("p3", "up")}


@pytest.mark.parametrize(
    ("status", "drained", "stopping", "liveness", "condition"),
    [
        (MemberStatus.UP, False, False, Liveness.UP, "up"),
        (MemberStatus.UP, False, False, Liveness.UNKNOWN, "unknown"),
        (MemberStatus.UP, False, False, Liveness.SUSPECT, "suspect"),
        (MemberStatus.DOWN, False, False, Liveness.UP, "down"),
        (MemberStatus.DOWN, True, True, Liveness.SUSPECT, "down"),
        (MemberStatus.DRAINING, False, False, Liveness.UP, "leaving"),
        (MemberStatus.UP, False, True, Liveness.UP, "leaving"),
        (MemberStatus.UP, True, False, Liveness.UP, "drained"),
        (MemberStatus.UP, True, False, Liveness.SUSPECT, "suspect"),
    ],
)
def test_condition_of_a_member_names_the_worst_first(
    status: MemberStatus, drained: bool, stopping: bool, liveness: Liveness, condition: str
) -> None:
    committed = replace(MEMBERS["p1"], status=status, drained=drained)
    shown = MemberView(
        "p1", None, True, False, Endpoint("127.0.0.1", 1), committed, liveness, stopping=stopping
    )
    assert shown.condition == condition


def test_requests_have_api_names_and_bytes_directions() -> None:
    assert values(view(), "fleet_requests_total", "api") == {("Produce",): 7, ("Fetch",): 9, ("Metadata",): 2}
    assert values(view(), "fleet_bytes_total", "direction", "broker_id") == {
        ("to_broker", "1"): 100,
        ("to_broker", "2"): 50,
        ("to_client", "1"): 1000,
        ("to_client", "bootstrap"): 10,
    }
    odd = view(workers=(WorkerView(0, 1, WorkerCounters(requests={9999: 1})),))
    assert values(odd, "fleet_requests_total", "api") == {("9999",): 1}


def test_counters_of_dead_workers_are_kept() -> None:
    two = view(
        workers=(WorkerView(0, 1, COUNTERS), WorkerView(1, 2, COUNTERS)),
        retired=retire(WorkerCounters(), COUNTERS),
    )
    assert values(two, "fleet_requests_total", "api")[("Produce",)] == 21
    assert values(two, "fleet_client_connections", "broker_id") == {("bootstrap",): 2, ("1",): 6}
    assert values(two, "fleet_protocol_errors_total", "reason")[("oversize",)] == 6
    assert values(two, "fleet_connections_limited_total", "limit")[("max_connections",)] == 12
    assert values(two, "fleet_worker_directory_generation", "worker") == {("0",): 7, ("1",): 7}


def test_protocol_errors_start_at_zero_for_every_reason() -> None:
    calm = view(workers=())
    assert set(values(calm, "fleet_protocol_errors_total", "reason")) >= {
        ("truncated",),
        ("oversize",),
        ("malformed",),
    }
    assert set(values(calm, "fleet_protocol_errors_total", "reason").values()) == {0}


def test_limits_start_at_zero() -> None:
    assert values(view(workers=()), "fleet_connections_limited_total", "limit") == {
        ("max_connections",): 0,
        ("max_connections_per_source",): 0,
        ("first_request_timeout",): 0,
        ("request_timeout",): 0,
        ("idle_timeout",): 0,
        ("vanished_timeout",): 0,
        ("max_patched_response",): 0,
        ("write_buffer",): 0,
    }


def without_names(samples: list[Sample], family: str) -> list[tuple[str, tuple[str, ...], float]]:
    return [(each.name.removeprefix(family), tuple(each.labels.values()), each.value) for each in samples]


@pytest.mark.parametrize("new_name", sorted(RENAMED_METRICS))
def test_deprecated_metrics_have_the_values_of_the_new_ones(new_name: str) -> None:
    """Each sample, in the same order, but for the words that are renamed."""
    shown = view(
        members=tuple(replace(each, stopping=each.proxy_id == "p1") for each in view().members),
        raft=RaftView(error="disk full"),
        events=EventsView(sent=3, waiting=2, dropped=1),
    )
    families = {family.name: family for family in FleetCollector(shown).collect()}
    old_name = RENAMED_METRICS[new_name].old_name
    new, old = families[new_name], families[old_name]
    assert (old.type, old.unit) == (new.type, new.unit)
    assert old.documentation.startswith("Deprecated, removed in 0.4.0. Use ")
    words = RENAMED_METRICS[new_name].old_words
    assert without_names(old.samples, old_name) == [
        (suffix, tuple(words.get(value, value) for value in labels), value)
        for suffix, labels, value in without_names(new.samples, new_name)
    ]
    assert old.samples
    scraped = scrape(shown)
    for sample in (*new.samples, *old.samples):
        assert sum(each.value for each in scraped[sample.name]) >= sample.value


def test_deprecated_words_are_in_deprecated_metrics_alone() -> None:
    shown = view(members=tuple(replace(each, stopping=True) for each in view().members[:1]))
    assert values(shown, "fleet_member_condition", "condition")[("leaving",)] == 1
    assert values(shown, "fleet_member_state", "state")[("draining",)] == 1
    assert ("draining",) not in values(shown, "fleet_member_condition", "condition")
    assert ("leaving",) not in values(shown, "fleet_member_state", "state")
    assert ("idle_timeout_s",) in values(shown, "fleet_limited_connections_total", "limit")


def test_histograms_are_cumulative() -> None:
    buckets = values(view(), "fleet_rewrite_duration_seconds_bucket", "le")
    assert len(buckets) == len(REWRITE_BOUNDS_S) + 1
    assert (buckets[("5e-06",)], buckets[("1e-05",)], buckets[("0.01",)], buckets[("+Inf",)]) == (5, 6, 6, 7)
    assert values(view(), "fleet_rewrite_duration_seconds_count") == {(): 7}
    assert values(view(), "fleet_rewrite_duration_seconds_sum") == {(): 0.5}
    takeovers = values(view(), "fleet_takeover_duration_seconds_bucket", "le")
    assert (takeovers[("0.0025",)], takeovers[("0.005",)], takeovers[("+Inf",)]) == (0, 1, 1)


def test_histogram_bound_is_in_its_own_bucket() -> None:
    made = Histogram.empty((1.0, 2.0)).observe(1.0).observe(1.5).observe(9.0)
    assert made == Histogram((1.0, 2.0), (1, 1, 1), 11.5)


PARSE: Callable[[str], Iterable[Metric]] = openmetrics.text_string_to_metric_families


def test_bucket_names_trace_of_last_takeover_in_openmetrics() -> None:
    log = TakeoverLog()
    for number, (took_s, committed) in enumerate(
        [(0.003, True), (0.004, True), (0.0045, False), (9.0, True)]
    ):
        detected, advertised = Moment(1000 * number, number), Moment(1000 * number + 250, number + took_s)
        end = advertised if committed else None
        log = log.put(Takeover("p2", "reset", detected, (2,), advertised, end, change=f"c{number}"))

    encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")

    def exemplars(*, traced: bool) -> dict[str, Exemplar]:
        text = encode(registry_of(FleetCollector(view(takeovers=log, traced=traced))))
        families = {family.name: family for family in PARSE(text.decode())}
        samples = families["fleet_takeover_duration_seconds"].samples
        return {each.labels["le"]: each.exemplar for each in samples if each.exemplar is not None}

    assert exemplars(traced=True) == {
        "0.005": Exemplar(
            {"trace_id": log.recent[1].trace_id("demo")},
            log.recent[1].seconds or 0.0,
            Timestamp(1, 250_000_000),
        ),
        "+Inf": Exemplar({"trace_id": log.recent[3].trace_id("demo")}, 9.0, Timestamp(3, 250_000_000)),
    }
    assert exemplars(traced=False) == {}
    assert "trace_id" not in generate_latest(registry_of(FleetCollector(view(traced=True)))).decode()

    def of_the_fleet(*, traced: bool) -> dict[str, list[Sample]]:
        """Found: those of the process are others in two scrapes, now and then."""
        found = scrape(view(takeovers=log, traced=traced))
        return {name: samples for name, samples in found.items() if not name.startswith("process_")}

    assert of_the_fleet(traced=True) == of_the_fleet(traced=False)


def test_takeover_is_counted_once_when_advertised() -> None:
    detected = Takeover("p2", "silent", Moment(0, 10.0), (2,))
    advertised = replace(detected, advertised=Moment(20, 10.02))
    committed = replace(advertised, committed=Moment(300, 10.3))
    log = TakeoverLog().put(detected)
    assert (log.by_reason, log.recent) == ({}, (detected,))
    log = log.put(advertised)
    assert (log.by_reason, log.seconds.counts[4]) == ({"silent": 1}, 1)
    log = log.put(committed)
    assert log.by_reason == {"silent": 1}
    assert log.recent == (committed,)
    again = replace(detected, detected=Moment(999, 50.0), advertised=Moment(999, 50.0))
    assert log.put(again).by_reason == {"silent": 2}


def test_last_takeovers_are_kept_and_all_are_counted() -> None:
    log = TakeoverLog()
    for number in range(RECENT_TAKEOVERS + 5):
        at = Moment(number, float(number))
        log = log.put(Takeover("p2", "reset", at, (1,), at))
    assert len(log.recent) == RECENT_TAKEOVERS
    assert log.recent[0].detected.wall_ms == 5
    assert log.by_reason == {"reset": RECENT_TAKEOVERS + 5}


def test_totals_add_counters_and_combine_gauges() -> None:
    assert total([]) == WorkerCounters()
    assert add(WorkerCounters(), COUNTERS) == COUNTERS
    both = add(COUNTERS, WorkerCounters(upstream_up={1: False, 2: False}, requests={0: 1}))
    assert both.upstream_up == {1: True, 2: False}
    assert both.requests == {0: 8, 1: 9, 3: 2}
    kept = retire(COUNTERS, COUNTERS)
    assert (kept.requests[0], kept.connections, kept.upstream_up) == (14, {}, {})


def documented() -> dict[str, tuple[str, ...]]:
    """Metric → its labels, from the table of the document."""
    rows = (line.split("|") for line in DOCUMENT.read_text(encoding="utf-8").splitlines())
    return {
        row[1].strip(" `"): tuple(re.findall(r"`(\w+)`", row[3]))
        for row in rows
        if len(row) == 7 and row[1].strip().startswith("`fleet_")
    }


def test_document_has_every_metric_with_its_labels() -> None:
    exported: dict[str, tuple[str, ...]] = {}
    for family in FleetCollector(view()).collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        exported[name] = tuple(sorted(labels))
    assert {name: tuple(sorted(labels)) for name, labels in documented().items()} == exported
