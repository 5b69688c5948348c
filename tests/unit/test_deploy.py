"""deploy/compose and deploy/helm, as far as they can be read without the programs that they are for.

With these: tests/long/test_kubernetes.py.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import jsonschema
import pytest
import yaml

from fleet.config.file import load
from tools.bootstrap import ROOT

CHART = ROOT / "deploy" / "helm" / "fleet"
COMPOSE = ROOT / "deploy" / "compose"
PROMETHEUS = ROOT / "deploy" / "prometheus"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return loaded


def test_the_chart_has_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version("kafka-proxy-fleet")


@pytest.mark.parametrize("name", ["rules.yml", "alerts.yml"])
def test_the_chart_has_the_rules_of_today(name: str) -> None:
    """A chart cannot read beyond its folder, so it has copies."""
    assert (CHART / "files" / name).read_text() == (PROMETHEUS / name).read_text()


def test_chart_gives_secrets_as_files_alone() -> None:
    templates = {each: each.read_text() for each in (CHART / "templates").iterdir()}
    assert not [each.name for each, text in templates.items() if "secretKeyRef" in text]


def test_the_charts_defaults_fit_its_schema_and_every_value_has_one() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.validate(values, schema)
    assert values.keys() == schema["properties"].keys() - {"global"}


def test_members_of_the_compose_file_are_those_of_its_configuration(compose: dict[str, Any]) -> None:
    settings = load(COMPOSE / "fleet.yaml", {})
    members = {
        service["environment"]["FLEET_NODE"]: name
        for name, service in compose["services"].items()
        if "FLEET_NODE" in service.get("environment", {})
    }
    assert members == {each: each for each in settings.members}
    assert all(str(each.data_dir).startswith("/var/lib/fleet/") for each in settings.members.values())


def test_the_compose_file_mounts_what_there_is(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            there = (COMPOSE / source).is_file() if source.startswith(".") else source in compose["volumes"]
            assert there, volume
    scraped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    mounted = {
        volume.split(":")[0].rpartition("/")[2] for volume in compose["services"]["prometheus"]["volumes"]
    }
    assert {"prometheus.yml", *scraped["rule_files"]} <= mounted


def test_members_of_the_compose_file_have_no_rights_and_are_asked_how_they_are(
    compose: dict[str, Any],
) -> None:
    for name in load(COMPOSE / "fleet.yaml", {}).members:
        service = compose["services"][name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["healthcheck"]["test"] == ["CMD", "fleet", "ready"]
