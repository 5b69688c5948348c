"""The shipped dashboard: the queries of its panels, and a linter.

The rules follow Grafana's dashboard-linter, which is not built here because it depends on all of Loki. The
dashboard deviates from three of its rules on purpose:

- template-job-rule requires a choice of several jobs. A job is a fleet, and panels show the maximum over its
  members: over two fleets this maximum describes neither.
- target-instance-rule requires every query to select the chosen members. Recorded metrics describe a whole
fleet. - The variables should be labelled Job and Instance. Here they are labelled Fleet and Member.

One additional rule: every name must exist in Grafana's own model, so that no name is misspelt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

Json: TypeAlias = dict[str, Any]

FILE: Final = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "fleet.json"
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
EVERY_MEMBER: Final = ".+"
VARIABLES: Final = {"$job": "fleet", "$instance": EVERY_MEMBER, "$__rate_interval": "1m", "$__range": "15m"}
"""The values that Grafana fills in for all members of a fleet and the last 15 minutes."""
UNITS: Final = frozenset(
    value for name, value in vars(units).items() if isinstance(value, str) and not name.startswith("_")
)
ON_TIME_RANGE_CHANGE: Final = 2

SELECTOR: Final = re.compile(r"\b(fleet[_:][\w:]*)(\{[^}]*\})?")
COUNTER: Final = re.compile(r"(\w*)\(?(fleet_\w+_(?:total|bucket|count|sum))\b")
RANGE: Final = re.compile(r"(\w+)\([^()\[\]]*\[([^\]]*)\]")

register_default_plugins()


def dashboard() -> Json:
    loaded: Json = json.loads(FILE.read_text(encoding="utf-8"))
    return loaded


def panels(document: Json) -> Iterator[Json]:
    """The panels with data; rows have none."""
    return (panel for panel in document["panels"] if panel["type"] != "row")


def queries(document: Json) -> Iterator[tuple[str, str]]:
    """Pairs of a panel's title and one of its queries."""
    for panel in panels(document):
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def with_variables_replaced(expression: str) -> str:
    """A query with its variables replaced, as Prometheus gets it."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def complaints(document: Json) -> Iterator[str]:
    """The violations of the rules in a dashboard."""
    yield from _of_the_whole(document)
    yield from _of_variables({each["name"]: each for each in document["templating"]["list"]})
    for panel in panels(document):
        for complaint in _of_panel(panel):
            yield f"{panel.get('title')}: {complaint}"
    for title, expression in queries(document):
        for complaint in _of_query(expression):
            yield f"{title}: {complaint} in {expression}"
    yield from _unknown(document)


def _of_the_whole(document: Json) -> Iterator[str]:
    for name in ("uid", "title", "description", "tags", "timezone", "refresh", "time"):
        if not document.get(name):
            yield f"no {name}"
    if document.get("editable", True):
        yield "editable: what is changed by hand is lost with the next one"


def _of_variables(variables: dict[str, Json]) -> Iterator[str]:
    source = variables.get("datasource", {})
    if (source.get("type"), source.get("query"), source.get("label")) != (
        "datasource",
        "prometheus",
        "Data source",
    ):
        yield "no variable for the data source"
    for name in ("job", "instance"):
        variable = variables.get(name, {})
        if variable.get("type") != "query" or not variable.get("label"):
            yield f"no variable {name}"
        if variable.get("datasource") != SOURCE:
            yield f"variable {name}: not of the chosen data source"
        if variable.get("refresh") != ON_TIME_RANGE_CHANGE:
            yield f"variable {name}: stale where another time is shown"
    if variables.get("job", {}).get("multi", True):
        yield "variable job: several fleets at a time"
    every = variables.get("instance", {})
    if not every.get("multi") or not every.get("includeAll") or every.get("allValue") != EVERY_MEMBER:
        yield "variable instance: not several members, or not all"


def _of_panel(panel: Json) -> Iterator[str]:
    if not panel.get("title") or not panel.get("description"):
        yield "no title, or no description"
    if panel.get("fieldConfig", {}).get("defaults", {}).get("unit") not in UNITS:
        yield "no unit that Grafana has"
    if not panel.get("targets"):
        yield "no target"
    if any(each.get("datasource") != SOURCE for each in (panel, *panel.get("targets", ()))):
        yield "not of the chosen data source"


def _of_query(expression: str) -> Iterator[str]:
    for name, selector in SELECTOR.findall(expression):
        if 'job=~"$job"' not in selector:
            yield f"{name}: not of the chosen fleet"
        if 'instance=~"$instance"' not in selector and ":" not in name:
            yield f"{name}: not of the chosen members"
    for function, name in COUNTER.findall(expression):
        if function not in ("rate", "increase"):
            yield f"{name}: a counter as it is"
    for function, window in RANGE.findall(expression):
        if window != "$__rate_interval" and (function, window) != ("increase", "$__range"):
            yield f"{function} over {window}"
    if "vector(" in expression:
        yield "data of its own"


def _unknown(document: Json) -> Iterator[str]:
    """Names that are lost when Grafana's own model reads a dashboard and writes it again."""
    known = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(document)))
    return _lost(document, known, "")


def _lost(before: object, after: object, where: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            if name not in after:
                yield f"{where}.{name}: unknown to Grafana"
            else:
                yield from _lost(value, after[name], f"{where}.{name}")
    elif isinstance(before, list) and isinstance(after, list):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _lost(one, other, f"{where}[{index}]")
