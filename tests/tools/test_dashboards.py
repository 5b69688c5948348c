"""deploy/grafana and deploy/prometheus: they use existing metrics, and linters accept them.

What a real fleet answers to each of them is in tests/integration/test_alerts.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from fleet.admin.metrics import SUSPICIONS, FleetCollector, registry_of
from fleet.admin.snapshot import CONDITIONS
from fleet.cli import pipeline as pipeline_cli
from tests.dashboards import Json, complaints, dashboard, panels, queries, with_variables_replaced
from tests.unit.admin.sample_snapshot import view
from tools import gen_dashboard

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
PROMTOOL = os.environ.get("FLEET_PROMTOOL") or str(ROOT / "build" / "prometheus" / "bin" / "promtool")

RULE_TESTS = ("alerts_test.yml", "slo_test.yml")
RECORDED = re.compile(r"\bfleet:[\w:]+")

REQUIRED_ALERTS = {
    "FleetIdentityWithoutOwner",
    "FleetGenerationsDiffer",
    "FleetNoLeader",
    "FleetDirectoryStale",
    "FleetTakeoverRate",
}


def exposed() -> dict[str, set[str]]:
    """Sample name → its labels, as a real member exports them."""
    text = generate_latest(registry_of(FleetCollector(view()))).decode()
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, _, rest = line.partition("{")
        labels = re.findall(r'(\w+)="', rest.rpartition("}")[0])
        found.setdefault(name.split()[0], set()).update(labels)
    return found


EXPOSED = exposed()
ASKED = [expression for _, expression in queries(dashboard())]


def rules(file: str = "alerts.yml") -> list[dict[str, Any]]:
    loaded = yaml.safe_load((PROMETHEUS / file).read_text(encoding="utf-8"))
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def assert_exposed(expression: str) -> None:
    names = re.findall(r"\bfleet_\w+", expression)
    for name in names:
        assert name in EXPOSED, f"{name} in {expression}"
    allowed = {"job", "instance", "le"}.union(*(EXPOSED[name] for name in names))
    for group in re.findall(r"(?:by|without) \(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= allowed, expression
    for name, selector in re.findall(r"(fleet_\w+)\{([^}]*)\}", expression):
        labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selector))
        assert labels <= EXPOSED[name] | {"job", "instance"}, expression


def promtool(*arguments: str) -> None:
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_is_up_to_date() -> None:
    assert gen_dashboard.FILE.read_text(encoding="utf-8") == gen_dashboard.render()
    assert gen_dashboard.main(["--check"]) == 0


def test_check_reports_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gen_dashboard, "FILE", tmp_path / "grafana" / "fleet.json")
    assert gen_dashboard.main(["--check"]) == 1
    assert gen_dashboard.main([]) == 0
    assert gen_dashboard.main(["--check"]) == 0


def test_dashboard_queries_use_exposed_or_recorded_metrics() -> None:
    assert len(ASKED) > 30
    recorded = {rule["record"] for rule in rules("rules.yml")}
    for expression in ASKED:
        assert "fleet_" in expression or RECORDED.search(expression)
        assert set(RECORDED.findall(expression)) <= recorded, expression
        assert_exposed(expression)
    variables = {each["name"]: each["query"] for each in dashboard()["templating"]["list"]}
    assert variables.pop("datasource") == "prometheus"
    for name, query in variables.items():
        (metric,) = re.findall(rf"label_values\((\w+).*, {name}\)$", query["query"])
        assert metric in EXPOSED


def test_linter_accepts_the_dashboard() -> None:
    assert list(complaints(dashboard())) == []


def panel(about: Json, title: str) -> Json:
    return next(each for each in panels(about) if each["title"] == title)


def ask(about: Json, expression: str) -> None:
    panel(about, "Requests")["targets"][0]["expr"] = expression


def forget(about: Json, variable: str) -> None:
    kept = [each for each in about["templating"]["list"] if each["name"] != variable]
    about["templating"]["list"] = kept


CHOSEN = '{job=~"$job", instance=~"$instance"}'


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (lambda it: it.pop("uid"), "no uid"),
        (lambda it: it.pop("timezone"), "no timezone"),
        (lambda it: it.update(editable=True), "editable"),
        (lambda it: forget(it, "datasource"), "data source"),
        (lambda it: forget(it, "job"), "no variable job"),
        (lambda it: forget(it, "instance"), "no variable instance"),
        (lambda it: it["templating"]["list"][1].update(refresh=1), "stale"),
        (lambda it: it["templating"]["list"][1].update(multi=True), "several fleets"),
        (lambda it: it["templating"]["list"][2].update(allValue=""), "not all"),
        (lambda it: panel(it, "Requests").update(description=""), "Requests: no title, or no description"),
        (lambda it: panel(it, "Requests")["fieldConfig"]["defaults"].update(unit="requests"), "no unit"),
        (lambda it: panel(it, "Requests").update(targets=[]), "no target"),
        (lambda it: panel(it, "Requests")["targets"][0].update(datasource=None), "chosen data source"),
        (lambda it: ask(it, "fleet_raft_term"), "not of the chosen fleet"),
        (lambda it: ask(it, 'fleet_raft_term{job=~"$job"}'), "not of the chosen members"),
        (lambda it: ask(it, f"sum(fleet_requests_total{CHOSEN})"), "a counter as it is"),
        (lambda it: ask(it, f"fleet_requests_total{CHOSEN}"), "a counter as it is"),
        (lambda it: ask(it, f"rate(fleet_requests_total{CHOSEN}[5m])"), "rate over 5m"),
        (lambda it: ask(it, f"rate(fleet_requests_total{CHOSEN}[$__range])"), "rate over"),
        (lambda it: ask(it, f"fleet_raft_term{CHOSEN} or vector(0)"), "data of its own"),
        (lambda it: it.update(graphToolTip=1), ".graphToolTip: unknown"),
        (lambda it: panel(it, "Requests")["targets"][0].update(expression=""), "expression: unknown"),
        (lambda it: panel(it, "Requests")["options"]["legend"].update(shown=True), "legend.shown: unknown"),
        (
            lambda it: panel(it, "Requests")["fieldConfig"]["defaults"]["custom"].update(spanNull=True),
            "custom.spanNull: unknown",
        ),
    ],
)
def test_the_linter_finds(fault: Callable[[Json], object], complaint: str) -> None:
    broken = dashboard()
    fault(broken)
    assert any(complaint in each for each in complaints(broken))


def test_dashboard_and_rules_have_the_same_budget() -> None:
    (left,) = (rule["expr"] for rule in rules("rules.yml") if "budget" in rule["record"])
    assert left.endswith(f"/ {gen_dashboard.BUDGET}")


def test_every_reason_for_suspicion_is_counted_from_the_start() -> None:
    text = (ROOT / "fleet" / "control" / "detector.py").read_text(encoding="utf-8")
    (judgement,) = re.findall(r"def _suspicion\(.*?(?=\n    def )", text, re.DOTALL)
    assert set(re.findall(r'return .*?"(\w+)"', judgement)) == set(SUSPICIONS)


def test_dashboard_shows_the_required_panels() -> None:
    asked = " ".join(ASKED)
    for metric in (
        "fleet_identity_owner",
        "fleet_directory_generation",
        "fleet_directory_staleness_seconds",
        "fleet_takeovers_total",
        "fleet_takeover_duration_seconds_bucket",
        "fleet_client_connections",
        "fleet_requests_total",
        "fleet_bytes_total",
        "fleet_upstream_up",
        "fleet_protocol_errors_total",
        "fleet_connections_limited_total",
        "fleet_rewrite_duration_seconds_bucket",
        "fleet_member_condition",
        "fleet:error_budget_left:ratio_30d",
        "fleet:identities_unserved:ratio_1h",
    ):
        assert metric in asked, metric
    kinds = {each["title"]: each["type"] for each in panels(dashboard())}
    assert kinds["Advertised owners"] == kinds["Committed owners"] == "state-timeline"


def test_panels_have_names_and_do_not_overlap() -> None:
    shown = dashboard()["panels"]
    assert len({each["id"] for each in shown}) == len(shown)
    assert len({each["title"] for each in shown}) == len(shown)
    taken: set[tuple[int, int]] = set()
    for each in shown:
        grid = each["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, each["title"]
        taken |= cells


def test_alerts_use_exposed_metrics_and_have_annotations() -> None:
    found = {rule["alert"]: rule for rule in rules()}
    assert set(found) >= REQUIRED_ALERTS
    for rule in found.values():
        assert_exposed(rule["expr"])
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert re.fullmatch(r"[A-Z][^.]*(\.[^. ][^.]*)*\.", rule["annotations"]["summary"]), "one sentence"
        assert rule["labels"]["severity"] in ("critical", "warning")
    states = re.search(r'condition=~"([^"]*)"', found["FleetMemberDown"]["expr"])
    assert states is not None
    assert set(states.group(1).split("|")) <= set(CONDITIONS)


def test_every_alert_is_tested_and_documented() -> None:
    fired, quiet = set[str](), set[str]()
    for file in RULE_TESTS:
        tested = yaml.safe_load((PROMETHEUS / file).read_text(encoding="utf-8"))
        for test in tested["tests"]:
            for case in test["alert_rule_test"]:
                (fired if case["exp_alerts"] else quiet).add(case["alertname"])
    names = {rule["alert"] for rule in rules()}
    assert fired == names
    assert quiet == names
    document = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(Fleet\w+)` \|", document, re.MULTILINE)) == names
    on_a_fleet = (ROOT / "tests" / "integration" / "test_alerts.py").read_text(encoding="utf-8")
    assert set(re.findall(r'\("(Fleet\w+)", ', on_a_fleet)) == names


def test_recording_rules_use_exposed_metrics_and_are_used() -> None:
    recorded = {rule["record"]: rule["expr"] for rule in rules("rules.yml")}
    for expression in recorded.values():
        assert_exposed(expression)
    alerts = " ".join(rule["expr"] for rule in rules())
    alarming = set(RECORDED.findall(" ".join([alerts, *recorded.values()])))
    # The rest of the budget is for the dashboard only.
    assert alarming == set(recorded) - {"fleet:error_budget_left:ratio_30d"}
    assert set(RECORDED.findall(" ".join(ASKED))) == set(recorded)


def test_rules_dashboard_and_pipeline_have_one_objective() -> None:
    budgets = {
        float(number)
        for name in ("alerts.yml", "rules.yml")
        for number in re.findall(r"\b0\.\d+\b", " ".join(rule["expr"] for rule in rules(name)))
    }
    assert budgets == {gen_dashboard.BUDGET}
    (option,) = (each for each in pipeline_cli.availability.params if each.name == "objective")
    source = (ROOT / "fleet" / "pipeline" / "batch_audit.py").read_text(encoding="utf-8")
    written = re.search(r"^AVAILABILITY_OBJECTIVE: Final = (.*)$", source, re.MULTILINE)
    assert written is not None
    assert option.default == float(written.group(1)) == 1 - gen_dashboard.BUDGET


def test_series_in_the_alert_tests_exist() -> None:
    text = "".join((PROMETHEUS / file).read_text(encoding="utf-8") for file in RULE_TESTS)
    found = re.findall(r"series: '(\w+)\{([^}]*)\}'", text)
    assert len(found) > 20
    for name, selector in found:
        if name != "up":
            assert set(re.findall(r'(\w+)="', selector)) - {"job", "instance"} == EXPOSED[name], name


def test_promtool_accepts_the_rules_and_their_tests() -> None:
    promtool("check", "rules", str(PROMETHEUS / "rules.yml"), str(PROMETHEUS / "alerts.yml"))
    promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))
    promtool("test", "rules", *(str(PROMETHEUS / file) for file in RULE_TESTS))


def test_promtool_accepts_a_configuration_with_token_and_tls(tmp_path: Path) -> None:
    for folder, name in (("secrets", "read-token"), ("certs", "ca.pem")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
    for name in ("prometheus-tls.yml", "alerts.yml", "rules.yml"):
        shutil.copy(PROMETHEUS / name, tmp_path)
    promtool("check", "config", str(tmp_path / "prometheus-tls.yml"))
    (tmp_path / "secrets" / "read-token").unlink()
    with pytest.raises(AssertionError, match="read-token"):
        promtool("check", "config", str(tmp_path / "prometheus-tls.yml"))


def test_promtool_parses_every_query_of_the_dashboard(tmp_path: Path) -> None:
    recorded = [
        {"record": f"fleet:query:{number}", "expr": with_variables_replaced(expression)}
        for number, expression in enumerate(ASKED)
    ]
    assert not any("$" in each["expr"] for each in recorded)
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}), encoding="utf-8")
    promtool("check", "rules", str(file))


def test_promtool_lints_exposed_metrics() -> None:
    text = generate_latest(registry_of(FleetCollector(view())))
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, check=False, timeout=60
    )
    complaints = [
        line for line in (done.stdout + done.stderr).decode().splitlines() if line.startswith("fleet_")
    ]
    assert (done.returncode in (0, 3), complaints) == (True, [])
