"""Writes deploy/grafana/fleet.json, the dashboard of a fleet.

    python tools/gen_dashboard.py           write it
    python tools/gen_dashboard.py --check   exit with 1 where the file differs

Every member exports the whole ownership table, so the panels of the fleet take the highest of what members
say, and one scraped member is enough for them; those of the data plane add up what each member has served.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "fleet.json"

WIDTH: Final = 24
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
JOB: Final = '{job=~"$job"}'
RED, GREEN, YELLOW, BLUE = "red", "green", "yellow", "blue"


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
    alarm_above: float | None = None
    show: str = "value"
    stacked: bool = False


def _by(labels: str, metric: str, how: str = "max") -> str:
    return f"{how} by ({labels}) ({metric})"


def _rate(metric: str) -> str:
    return f"rate({metric}{JOB}[$__rate_interval])"


def _quantiles(metric: str) -> tuple[Query, ...]:
    # Increases over the shown range: takeovers are rare, and a rate over seconds would show none of them.
    buckets = f"sum by (le) (increase({metric}_bucket{JOB}[$__range]))"
    return tuple(
        Query(
            f"histogram_quantile({quantile}, {buckets})",
            f"p{round(quantile * 100)}",
        )
        for quantile in (0.5, 0.9, 0.99)
    )


def _owners(view: str) -> tuple[Query, ...]:
    selector = f'fleet_identity_owner{{job=~"$job", view="{view}"}}'
    return (Query(_by("broker_id, proxy_id", selector), "{{broker_id}} at {{proxy_id}}"),)


def _bytes(direction: str) -> Query:
    selector = f'fleet_bytes_total{{job=~"$job", direction="{direction}"}}'
    return Query(f"sum by (broker_id) (rate({selector}[$__rate_interval]))", "{{broker_id}}")


OVERVIEW: Final = (
    Panel(
        "Leader",
        "The member that the others take for the Raft leader.",
        (Query(_by("proxy_id", f"fleet_raft_known_leader{JOB}") + " == 1", "{{proxy_id}}"),),
        kind="stat",
        width=4,
        height=4,
        show="name",
    ),
    Panel(
        "Quorum",
        "Whether ownership can be committed.",
        (Query(f"max(fleet_raft_has_quorum{JOB})"),),
        kind="stat",
        width=4,
        height=4,
        mappings=(("0", "lost", RED), ("1", "there", GREEN)),
    ),
    Panel(
        "Generation",
        "Number of committed changes of ownership.",
        (Query(f"max(fleet_directory_generation{JOB})"),),
        kind="stat",
        width=4,
        height=4,
    ),
    Panel(
        "Members up",
        "Members that all others hold up.",
        (Query('sum(min by (proxy_id) (fleet_member_state{job=~"$job", state="up"}))'),),
        kind="stat",
        width=4,
        height=4,
    ),
    Panel(
        "Identities without a live owner",
        "Brokers that clients cannot reach through the fleet.",
        (Query(f"count(min by (broker_id) (fleet_identity_live_owners{JOB}) == 0) or vector(0)"),),
        kind="stat",
        width=4,
        height=4,
        alarm_above=0,
    ),
    Panel(
        "Staleness",
        "For how long the stalest member has been without a quorum.",
        (Query(f"max(fleet_directory_staleness_seconds{JOB})"),),
        kind="stat",
        unit="s",
        width=4,
        height=4,
        alarm_above=10,
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
                _by("proxy_id, state", f"fleet_member_state{JOB}") + " == 1",
                "{{proxy_id}} {{state}}",
            ),
        ),
        kind="state-timeline",
        mappings=(("1", "yes", YELLOW),),
    ),
    Panel(
        "Generation of each member",
        "Lines that stay apart are members that miss commits.",
        (Query(f"fleet_directory_generation{JOB}", "{{instance}}"),),
    ),
)

FAILURES: Final = (
    Panel(
        "Takeovers",
        "Times that a member's identities were advertised elsewhere, by reason.",
        (
            Query(
                'max by (reason) (increase(fleet_takeovers_total{job=~"$job"}[$__rate_interval]))',
                "{{reason}}",
            ),
        ),
    ),
    Panel(
        "Takeover time",
        "From detection to advertisement, over the shown range.",
        _quantiles("fleet_takeover_seconds"),
        unit="s",
    ),
    Panel(
        "Staleness of each member",
        "For how long a member has been without a quorum; the data plane serves on meanwhile.",
        (Query(f"fleet_directory_staleness_seconds{JOB}", "{{instance}}"),),
        unit="s",
    ),
    Panel(
        "Raft term",
        "Each step is an election.",
        (Query(f"fleet_raft_term{JOB}", "{{instance}}"),),
    ),
)

TRAFFIC: Final = (
    Panel(
        "Client connections",
        "By the identity that their port stands for.",
        (Query(_by("broker_id", f"fleet_client_connections{JOB}", "sum"), "{{broker_id}}"),),
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
        (Query(f"fleet_upstream_up{JOB}", "{{broker_id}} from {{instance}}"),),
        kind="state-timeline",
        mappings=(("0", "down", RED), ("1", "up", GREEN)),
    ),
    Panel(
        "Rewrite time",
        "To patch the addresses in one response, over the shown range.",
        _quantiles("fleet_rewrite_seconds"),
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
        (Query(_by("limit", _rate("fleet_limited_connections_total"), "sum"), "{{limit}}"),),
        unit="cps",
    ),
    Panel(
        "Restarted workers",
        "Workers that the supervisors had to start again.",
        (Query('increase(fleet_worker_restarts_total{job=~"$job"}[$__rate_interval])', "{{instance}}"),),
    ),
)

ROWS: Final = (("", OVERVIEW), ("Ownership", OWNERSHIP), ("Failures", FAILURES), ("Traffic", TRAFFIC))


def _field_config(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": GREEN, "value": None}]
    if panel.alarm_above is not None:
        steps.append({"color": RED, "value": panel.alarm_above + 0.001})
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
        }
    elif panel.kind == "state-timeline":
        defaults["custom"] = {"fillOpacity": 80, "lineWidth": 0, "spanNulls": False}
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
        {
            "name": "job",
            "label": "Fleet",
            "type": "query",
            "datasource": DATASOURCE,
            "definition": "label_values(fleet_build_info, job)",
            "query": {"query": "label_values(fleet_build_info, job)", "refId": "job"},
            "refresh": 2,
            "includeAll": False,
            "multi": False,
            "sort": 1,
            "current": {},
        },
    ]


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": "kafka-proxy-fleet",
        "title": "Kafka proxy fleet",
        "description": "Who stands for which broker, how takeovers went, and what the data plane carries.",
        "tags": ["kafka", "fleet"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
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
