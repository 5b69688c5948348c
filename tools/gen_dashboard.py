"""Writes deploy/grafana/fleet.json, the dashboard of a fleet.

    python tools/gen_dashboard.py           write it
    python tools/gen_dashboard.py --check   exit with 1 where the file differs

Every member exports the whole ownership table, so the panels of the fleet take the highest of what members
say, and one scraped member is enough for them; those of the data plane add up what each member has served.
With one member chosen, all of them show what that one says; what rules record is of the whole fleet anyway.
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
"""What stands for every member in a query."""
RED, GREEN, YELLOW, ORANGE, BLUE = "red", "green", "yellow", "orange", "blue"

Step: TypeAlias = tuple[float | None, str]
"""From which value on something has a colour; the first of them begins nowhere."""

BUDGET: Final = 0.001
"""What may be unserved, as in deploy/prometheus/rules.yml."""


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: what it asks, how it is drawn, and how much room it takes."""

    title: str
    text: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 12
    height: int = 8
    mappings: tuple[tuple[str, str, str], ...] = ()
    """value, text, colour"""
    steps: tuple[Step, ...] = ((None, GREEN),)
    show: str = "value"
    stacked: bool = False
    lines: bool = False
    """Whether the steps are drawn."""


def _of(metric: str, **labels: str) -> str:
    """The series of a metric, of the members that are shown."""
    wanted = "".join(f', {name}="{value}"' for name, value in labels.items())
    return f'{metric}{{job=~"$job", instance=~"$instance"{wanted}}}'


def _recorded(name: str) -> str:
    """The series of a recorded metric, which has no member."""
    return f'{name}{{job=~"$job"}}'


def _by(labels: str, metric: str, how: str = "max") -> str:
    return f"{how} by ({labels}) ({metric})"


def _rate(metric: str, **labels: str) -> str:
    return f"rate({_of(metric, **labels)}[$__rate_interval])"


def _quantiles(metric: str) -> tuple[Query, ...]:
    # Increases over the shown range: takeovers are rare, and a rate over seconds would show none of them.
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
        "The member that the others take for the Raft leader.",
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
        "Number of committed changes of ownership.",
        (Query(f"max({_of('fleet_directory_generation')})"),),
        kind="stat",
        width=4,
        height=4,
    ),
    Panel(
        "Members up",
        "Members that all others hold up.",
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
        "For how long the stalest member has been without a quorum.",
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
        "Who clients are told to dial for each identity. At a takeover one row ends where another begins.",
        _owners("advertised"),
        kind="state-timeline",
        height=10,
        mappings=(("1", "owner", GREEN),),
    ),
    Panel(
        "Committed owners",
        "Who owns each identity by Raft; it follows what is advertised.",
        _owners("committed"),
        kind="state-timeline",
        height=10,
        mappings=(("1", "owner", BLUE),),
    ),
    Panel(
        "Member states",
        "As the other members see them.",
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
        "Lines that stay apart are members that miss commits.",
        (Query(_of("fleet_directory_generation"), "{{instance}}"),),
    ),
)

FAILURES: Final = (
    Panel(
        "Takeovers",
        "Times that a member's identities were advertised elsewhere, by reason.",
        (
            Query(
                _by("reason", f"increase({_of('fleet_takeovers_total')}[$__rate_interval])"),
                "{{reason}}",
            ),
        ),
    ),
    Panel(
        "Takeover time",
        "From detection to advertisement, over the shown range.",
        _quantiles("fleet_takeover_duration_seconds"),
        unit="s",
    ),
    Panel(
        "Staleness of each member",
        "For how long a member has been without a quorum; the data plane serves on meanwhile.",
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
        "By the identity that their port stands for.",
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
        "To patch the addresses in one response, over the shown range.",
        _quantiles("fleet_rewrite_duration_seconds"),
        unit="s",
    ),
    Panel(
        "Protocol errors",
        "Connections closed for bytes that are not the Kafka protocol as the fleet offers it.",
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
        "Workers that the supervisors had to start again.",
        (Query(f"increase({_of('fleet_worker_restarts_total')}[$__rate_interval])", "{{instance}}"),),
    ),
)

OBJECTIVE: Final = (
    Panel(
        "Error budget left",
        "For 30 days: 100 % where nothing of it is spent, below 0 where the objective is missed.",
        (Query(_recorded("fleet:error_budget_left:ratio_30d")),),
        kind="stat",
        unit="percentunit",
        width=4,
        steps=((None, RED), (0, YELLOW), (0.25, GREEN)),
    ),
    Panel(
        "Identities unserved",
        "The part of what members tell clients that leads nowhere: what spends the budget.",
        (Query(_recorded("fleet:identities_unserved:ratio"), "unserved"),),
        unit="percentunit",
        width=8,
    ),
    Panel(
        "Burn rate",
        "How much faster than it may the budget is spent, over each window: at 1 it lasts for just 30 days."
        " An alert fires where 1h and 5m are above 14.4, 6h and 30m above 6, 1d and 2h above 3, or 3d and 6h"
        " above 1.",
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
    made: list[dict[str, Any]] = []
    x = y = height = 0
    for title, panels in ROWS:
        x, y, height = 0, y + height, 0
        if title:
            grid = {"h": 1, "w": WIDTH, "x": 0, "y": y}
            made.append(
                {
                    "id": len(made) + 1,
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
            made.append(
                {
                    "id": len(made) + 1,
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
    return made


def _variables() -> list[dict[str, Any]]:
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {},
        },
        # One fleet at a time: the highest of what the members of two say would be of neither.
        _asked("job", "Fleet", "label_values(fleet_build_info, job)", includeAll=False, multi=False),
        _asked(
            "instance",
            "Member",
            'label_values(fleet_build_info{job=~"$job"}, instance)',
            includeAll=True,
            multi=True,
            allValue=ALL,
            current={"selected": True, "text": ["All"], "value": ["$__all"]},
        ),
    ]


def _asked(name: str, label: str, query: str, **more: Any) -> dict[str, Any]:
    """A variable whose values are asked for, anew whenever another range of time is shown."""
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
    """The dashboard as Grafana imports it."""
    return {
        "uid": "kafka-proxy-fleet",
        "title": "Kafka proxy fleet",
        "description": "Who stands for which broker, how takeovers went, and what the data plane carries.",
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
