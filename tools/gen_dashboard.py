"""Writes deploy/grafana/fleet.json, the dashboard of a fleet.

    python tools/gen_dashboard.py           write the file
    python tools/gen_dashboard.py --check   exit with 1 if the file differs

Every member exports the whole ownership table. Panels about the fleet show the maximum over the members, so
one scraped member is enough for them. Panels about the data plane add up the values of all members. If the
user chooses one member, all panels show the values of that member, except recorded metrics: they describe the
whole fleet.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

FILE: Final = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "fleet.json"

WIDTH: Final = 24
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
ALL: Final = ".+"
"""The regular expression that selects every member in a query."""
RED, GREEN, YELLOW, ORANGE, BLUE = "red", "green", "yellow", "orange", "blue"

Step: TypeAlias = tuple[float | None, str]
"""The lowest value with a colour, and the colour; None in the first step."""

BUDGET: Final = 0.001
"""Share of identities that may be unserved, as in deploy/prometheus/rules.yml."""


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its queries, its look and its size."""

    title: str
    text: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 12
    height: int = 8
    mappings: tuple[tuple[str, str, str], ...] = ()
    """Triples of a value, its text and its colour."""
    steps: tuple[Step, ...] = ((None, GREEN),)
    show: str = "value"
    stacked: bool = False
    lines: bool = False
    """Whether the panel shows the steps as lines."""


def _of(metric: str, **labels: str) -> str:
    """The series of a metric, for the chosen members."""
    matchers = "".join(f', {name}="{value}"' for name, value in labels.items())
    return f'{metric}{{job=~"$job", instance=~"$instance"{matchers}}}'


def _recorded(name: str) -> str:
    """The series of a recorded metric, which has no label for a member."""
    return f'{name}{{job=~"$job"}}'


def _by(labels: str, metric: str, how: str = "max") -> str:
    return f"{how} by ({labels}) ({metric})"


def _rate(metric: str, **labels: str) -> str:
    return f"rate({_of(metric, **labels)}[$__rate_interval])"


def _quantiles(metric: str) -> tuple[Query, ...]:
    # Increases over the shown range: takeovers are rare, and a rate over seconds would show none.
    buckets = f"sum by (le) (increase({_of(f'{metric}_bucket')}[$__range]))"
    return tuple(
        Query(
            f"histogram_quantile({quantile}, {buckets})",
            f"p{round(quantile * 100)}",
        )
        for quantile in (0.5, 0.9, 0.99)
    )


def _owners(view: str) -> tuple[Query, ...]:
    owner = _of("fleet_identity_owner", view=view)
    return (Query(_by("broker_id, proxy_id", owner), "{{broker_id}} at {{proxy_id}}"),)


def _bytes(direction: str) -> Query:
    return Query(_by("broker_id", _rate("fleet_bytes_total", direction=direction), "sum"), "{{broker_id}}")


def _burn(window: str) -> Query:
    return Query(f"{_recorded(f'fleet:identities_unserved:ratio_{window}')} / {BUDGET}", window)


OVERVIEW: Final = (
    Panel(
        "Leader",
        "The Raft leader, as the members see it.",
        (Query(_by("proxy_id", _of("fleet_raft_known_leader")) + " == 1", "{{proxy_id}}"),),
        kind="stat",
        width=4,
        height=4,
        show="name",
    ),
    Panel(
        "Quorum",
        "Whether ownership can be committed.",
        (Query(f"max({_of('fleet_raft_has_quorum')})"),),
        kind="stat",
        width=4,
        height=4,
        mappings=(("0", "lost", RED), ("1", "there", GREEN)),
    ),
    Panel(
        "Generation",
        "Number of committed ownership changes.",
        (Query(f"max({_of('fleet_directory_generation')})"),),
        kind="stat",
        width=4,
        height=4,
    ),
    Panel(
        "Members up",
        "Members that every member sees as up.",
        (Query(f"sum({_by('proxy_id', _of('fleet_member_condition', condition='up'), 'min')})"),),
        kind="stat",
        width=4,
        height=4,
    ),
    Panel(
        "Identities without a live owner",
        "Brokers that clients cannot reach through the fleet.",
        (Query(f"sum({_by('broker_id', _of('fleet_identity_live_owners'), 'min')} == bool 0)"),),
        kind="stat",
        width=4,
        height=4,
        steps=((None, GREEN), (1, RED)),
    ),
    Panel(
        "Staleness",
        "Longest time that a member has been without a quorum.",
        (Query(f"max({_of('fleet_directory_staleness_seconds')})"),),
        kind="stat",
        unit="s",
        width=4,
        height=4,
        steps=((None, GREEN), (10, RED)),
    ),
)

OWNERSHIP: Final = (
    Panel(
        "Advertised owners",
        "The owner that clients see for each identity. At a takeover one row ends and another begins.",
        _owners("advertised"),
        kind="state-timeline",
        height=10,
        mappings=(("1", "owner", GREEN),),
    ),
    Panel(
        "Committed owners",
        "The owner of each identity in Raft. It follows the advertised owner.",
        _owners("committed"),
        kind="state-timeline",
        height=10,
        mappings=(("1", "owner", BLUE),),
    ),
    Panel(
        "Member conditions",
        "The condition of each member, as the members see it.",
        (
            Query(
                _by("proxy_id, condition", _of("fleet_member_condition")) + " == 1",
                "{{proxy_id}} {{condition}}",
            ),
        ),
        kind="state-timeline",
        mappings=(("1", "yes", YELLOW),),
    ),
    Panel(
        "Generation of each member",
        "Lines that stay apart show members that miss commits.",
        (Query(_of("fleet_directory_generation"), "{{instance}}"),),
    ),
)

FAILURES: Final = (
    Panel(
        "Takeovers",
        "How often a member's identities were advertised at other members, by reason.",
        (
            Query(
                _by("reason", f"increase({_of('fleet_takeovers_total')}[$__rate_interval])"),
                "{{reason}}",
            ),
        ),
    ),
    Panel(
        "Takeover time",
        "Time from detection to advertisement, over the shown range.",
        _quantiles("fleet_takeover_duration_seconds"),
        unit="s",
    ),
    Panel(
        "Staleness of each member",
        "Time that each member has been without a quorum. The data plane still serves clients.",
        (Query(_of("fleet_directory_staleness_seconds"), "{{instance}}"),),
        unit="s",
    ),
    Panel(
        "Raft term",
        "Each step is an election.",
        (Query(_of("fleet_raft_term"), "{{instance}}"),),
    ),
)

TRAFFIC: Final = (
    Panel(
        "Client connections",
        "Open connections, by identity.",
        (Query(_by("broker_id", _of("fleet_client_connections"), "sum"), "{{broker_id}}"),),
        stacked=True,
    ),
    Panel(
        "Requests",
        "By API.",
        (Query(_by("api", _rate("fleet_requests_total"), "sum"), "{{api}}"),),
        unit="reqps",
        stacked=True,
    ),
    Panel(
        "Bytes to brokers",
        "By broker.",
        (_bytes("to_broker"),),
        unit="Bps",
        stacked=True,
    ),
    Panel(
        "Bytes to clients",
        "By broker.",
        (_bytes("to_client"),),
        unit="Bps",
        stacked=True,
    ),
    Panel(
        "Brokers reachable",
        "From each member.",
        (Query(_of("fleet_upstream_up"), "{{broker_id}} from {{instance}}"),),
        kind="state-timeline",
        mappings=(("0", "down", RED), ("1", "up", GREEN)),
    ),
    Panel(
        "Rewrite time",
        "Time to rewrite the addresses in one response, over the shown range.",
        _quantiles("fleet_rewrite_duration_seconds"),
        unit="s",
    ),
    Panel(
        "Protocol errors",
        "Connections closed because of bytes that violate the Kafka protocol as the fleet offers it.",
        (Query(_by("reason", _rate("fleet_protocol_errors_total"), "sum"), "{{reason}}"),),
        unit="cps",
    ),
    Panel(
        "Limits reached",
        "Connections closed because of a limit.",
        (Query(_by("limit", _rate("fleet_connections_limited_total"), "sum"), "{{limit}}"),),
        unit="cps",
    ),
    Panel(
        "Restarted workers",
        "Workers that the supervisors restarted.",
        (Query(f"increase({_of('fleet_worker_restarts_total')}[$__rate_interval])", "{{instance}}"),),
    ),
)

OBJECTIVE: Final = (
    Panel(
        "Error budget left",
        "For 30 days: 100 % if nothing is spent, below 0 if the objective is missed.",
        (Query(_recorded("fleet:error_budget_left:ratio_30d")),),
        kind="stat",
        unit="percentunit",
        width=4,
        steps=((None, RED), (0, YELLOW), (0.25, GREEN)),
    ),
    Panel(
        "Identities unserved",
        "Share of identities without a live owner. It spends the error budget.",
        (Query(_recorded("fleet:identities_unserved:ratio"), "unserved"),),
        unit="percentunit",
        width=8,
    ),
    Panel(
        "Burn rate",
        "Speed of spending the budget over each window. At 1 the budget lasts 30 days. An alert fires"
        " if 1h and 5m are above 14.4, 6h and 30m above 6, 1d and 2h above 3, or 3d and 6h above 1.",
        tuple(map(_burn, ("5m", "30m", "1h", "2h", "6h", "1d", "3d"))),
        unit="none",
        steps=((None, GREEN), (1, YELLOW), (6, ORANGE), (14.4, RED)),
        lines=True,
    ),
)

ROWS: Final = (
    ("", OVERVIEW),
    ("Ownership", OWNERSHIP),
    ("Failures", FAILURES),
    ("Error budget", OBJECTIVE),
    ("Traffic", TRAFFIC),
)


def _field_config(panel: Panel) -> dict[str, Any]:
    steps = [{"color": colour, "value": value} for value, colour in panel.steps]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": [
            {"type": "value", "options": {value: {"text": text, "color": colour, "index": index}}}
            for index, (value, text, colour) in enumerate(panel.mappings)
        ],
    }
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        fill = 20 if panel.stacked else 0
        defaults["custom"] = {
            "drawStyle": "line",
            "fillOpacity": fill,
            "stacking": stacking,
            "spanNulls": False,
            "thresholdsStyle": {"mode": "dashed" if panel.lines else "off"},
        }
    elif panel.kind == "state-timeline":
        defaults["custom"] = {"fillOpacity": 80, "lineWidth": 0}
    return {"defaults": defaults, "overrides": []}


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {
            "textMode": panel.show,
            "colorMode": "value",
            "graphMode": "none",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    if panel.kind == "state-timeline":
        return {
            "mergeValues": True,
            "showValue": "never",
            "rowHeight": 0.8,
            "legend": {**legend, "showLegend": False},
        }
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def _targets(panel: Panel) -> list[dict[str, Any]]:
    return [
        {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            "range": panel.kind != "stat",
            "instant": panel.kind == "stat",
        }
        for index, query in enumerate(panel.queries)
    ]


def _panels() -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = []
    x = y = height = 0
    for title, panels in ROWS:
        x, y, height = 0, y + height, 0
        if title:
            grid = {"h": 1, "w": WIDTH, "x": 0, "y": y}
            placed.append(
                {
                    "id": len(placed) + 1,
                    "type": "row",
                    "title": title,
                    "collapsed": False,
                    "gridPos": grid,
                    "panels": [],
                }
            )
            y += 1
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            placed.append(
                {
                    "id": len(placed) + 1,
                    "type": panel.kind,
                    "title": panel.title,
                    "description": panel.text,
                    "datasource": DATASOURCE,
                    "gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y},
                    "fieldConfig": _field_config(panel),
                    "options": _options(panel),
                    "targets": _targets(panel),
                }
            )
            x, height = x + panel.width, max(height, panel.height)
    return placed


def _variables() -> list[dict[str, Any]]:
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {},
        },
        # One fleet at a time: the maximum over the members of two fleets describes neither.
        _query_variable("job", "Fleet", "label_values(fleet_build_info, job)", includeAll=False, multi=False),
        _query_variable(
            "instance",
            "Member",
            'label_values(fleet_build_info{job=~"$job"}, instance)',
            includeAll=True,
            multi=True,
            allValue=ALL,
            current={"selected": True, "text": ["All"], "value": ["$__all"]},
        ),
    ]


def _query_variable(name: str, label: str, query: str, **more: Any) -> dict[str, Any]:
    """A variable whose values Grafana queries again whenever the time range changes."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "current": {},
        **more,
    }


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    return {
        "uid": "kafka-proxy-fleet",
        "title": "Kafka proxy fleet",
        "description": "The owner of each broker, takeovers, and the traffic of the data plane.",
        "tags": ["kafka", "fleet"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "timezone": "browser",
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timepicker": {},
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "links": [],
        "panels": _panels(),
    }


def render() -> str:
    """The text of the file."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        if FILE.exists() and FILE.read_text(encoding="utf-8") == render():
            return 0
        print(f"{FILE.name} differs; run: python tools/gen_dashboard.py", file=sys.stderr)
        return 1
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
