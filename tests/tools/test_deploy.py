"""deploy/compose and deploy/helm, as far as tests can read them without Docker and Helm.

With these: tests/long/test_kubernetes.py.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from fleet.config.file import load
from fleet.runtime import data_dir
from tests.unit.cli.test_journal_files import configured
from tests.unit.runtime.test_data_dir import as_root, assert_migrated, fill, run_as
from tools.bootstrap import ROOT

CHART = ROOT / "deploy" / "helm" / "fleet"
COMPOSE = ROOT / "deploy" / "compose"
PROMETHEUS = ROOT / "deploy" / "prometheus"
CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"
DIGEST: Final = "sha256:" + "0123456789abcdef" * 4
VARIABLE: Final = re.compile(r"\$\{(?P<name>\w+):-(?P<default>[^}]*)\}")
IMAGE: Final = re.compile(r"[\w./-]+(:[\w.-]+)?(@sha256:[0-9a-f]{64})?")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return loaded


def test_chart_has_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version("kafka-proxy-fleet")


@as_root
@pytest.mark.parametrize("previous", [False, True])
def test_member_starts_on_the_charts_volume(previous: bool) -> None:
    """The volume is as kubelet prepares it for `fsGroup`: new, or with files of 0.2.0."""
    pod = (CHART / "templates" / "statefulset.yaml").read_text()
    uid, gid, group = (
        int(re.findall(rf"^ +{field}: (\d+)$", pod, re.MULTILINE)[0])
        for field in ("runAsUser", "runAsGroup", "fsGroup")
    )
    assert 'data_dir" (printf "/var/lib/fleet/%s' in (CHART / "templates" / "_helpers.tpl").read_text()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        volume = Path(folder, "volume")
        volume.mkdir()
        os.chown(volume, 0, group)
        volume.chmod(0o2775)
        member = replace(configured(Path(folder)).member("p1"), data_dir=volume / "proxies-0")
        if previous:
            fill(member.data_dir)
            for path in (member.data_dir, *member.data_dir.rglob("*")):
                os.chown(path, uid, group)
                # kubelet gives this to the group of all files on a volume that it mounts for the first time.
                path.chmod(path.stat().st_mode | (0o2770 if path.is_dir() else 0o660))
        for _ in range(2):
            assert run_as(uid, gid, [group], lambda: data_dir.acquire(member).close()) == 0
        if previous:
            assert_migrated(member)
        for path in (member.private_dir, *member.private_dir.rglob("*")):
            assert (path.stat().st_uid, path.stat().st_mode & 0o077) == (uid, 0)


def test_member_folders_admit_only_their_member() -> None:
    unit = (ROOT / "deploy" / "systemd" / "fleet@.service").read_text().splitlines()
    assert {"StateDirectory=fleet", "StateDirectoryMode=0700", "UMask=0077"} <= set(unit)
    image = (ROOT / "deploy" / "container" / "Containerfile").read_text()
    assert "install --directory --owner fleet --group fleet --mode 0700 /var/lib/fleet" in image


@pytest.mark.parametrize("name", ["rules.yml", "alerts.yml"])
def test_chart_has_the_current_rules(name: str) -> None:
    """A chart cannot read files outside its folder, so it has copies."""
    assert (CHART / "files" / name).read_text() == (PROMETHEUS / name).read_text()


def test_chart_mounts_secrets_as_files_only() -> None:
    templates = {each: each.read_text() for each in (CHART / "templates").iterdir()}
    assert not [each.name for each, text in templates.items() if "secretKeyRef" in text]


def test_chart_defaults_fit_the_schema_and_every_value_has_one() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.validate(values, schema)
    assert values.keys() == schema["properties"].keys() - {"global"}


def test_compose_and_configuration_have_the_same_members(compose: dict[str, Any]) -> None:
    settings = load(COMPOSE / "fleet.yaml", {})
    members = {
        service["environment"]["FLEET_NODE"]: name
        for name, service in compose["services"].items()
        if "FLEET_NODE" in service.get("environment", {})
    }
    assert members == {each: each for each in settings.members}
    assert all(str(each.data_dir).startswith("/var/lib/fleet/") for each in settings.members.values())


def test_compose_mounts_existing_files(compose: dict[str, Any]) -> None:
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


def test_compose_members_have_no_rights_and_a_health_check(
    compose: dict[str, Any],
) -> None:
    for name in load(COMPOSE / "fleet.yaml", {}).members:
        service = compose["services"][name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["healthcheck"]["test"] == ["CMD", "fleet", "ready"]


# Images by digest


def schema_problems(values: Mapping[str, Any]) -> list[str]:
    schema = json.loads((CHART / "values.schema.json").read_text())
    return [each.json_path for each in jsonschema.Draft7Validator(schema).iter_errors(values)]


def chart_values(**image: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    values["image"] |= image
    return values


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """A text of the compose file as Compose reads it with variables; an empty variable is unset."""
    return VARIABLE.sub(lambda found: variables.get(found["name"]) or found["default"], text)


def test_schema_accepts_a_digest() -> None:
    assert schema_problems(chart_values(digest=DIGEST)) == []


@pytest.mark.parametrize(
    "digest",
    [
        DIGEST.removeprefix("sha256:"),
        DIGEST[:-1],
        DIGEST + "0",
        DIGEST.upper(),
        f"@{DIGEST}",
        f"fleet@{DIGEST}",
        f" {DIGEST}",
        "sha512:" + "0" * 128,
        "latest",
    ],
)
def test_schema_rejects_an_invalid_digest(digest: str) -> None:
    assert schema_problems(chart_values(digest=digest)) == ["$.image.digest"]


def test_chart_names_its_image_once() -> None:
    """tests/long checks with Helm what the template makes of the values."""
    templates = {each.name: each.read_text() for each in (CHART / "templates").glob("*")}
    assert [name for name, text in templates.items() if ".image" in text and "repository" in text] == [
        "_helpers.tpl"
    ]
    assert re.findall(r"^ *image: (.*)$", templates["statefulset.yaml"], re.MULTILINE) == [
        '{{ include "fleet.image" . | quote }}'
    ]


@pytest.mark.parametrize("variables", [{}, {"FLEET_IMAGE": "", "KAFKA_IMAGE": ""}])
def test_images_of_the_compose_file_have_defaults(
    compose: dict[str, Any], variables: Mapping[str, str]
) -> None:
    images = {name: substitute(each["image"], variables) for name, each in compose["services"].items()}
    assert all(IMAGE.fullmatch(each) for each in images.values()), images
    assert {images[member] for member in load(COMPOSE / "fleet.yaml", {}).members} == {"fleet"}


def test_compose_images_accept_digests(compose: dict[str, Any]) -> None:
    variables = {
        found["name"]: f"registry.example/{found['name'].lower()}@{DIGEST}"
        for found in VARIABLE.finditer((COMPOSE / "compose.yaml").read_text())
        if found["name"].endswith("_IMAGE")
    }
    images = {substitute(each["image"], variables) for each in compose["services"].values()}
    (build,) = (each["build"] for each in compose["services"].values() if "build" in each)
    images |= {substitute(each, variables) for each in build["args"].values()}
    assert images == set(variables.values())
    assert all(IMAGE.fullmatch(each) for each in images)


def test_container_stages_begin_with_the_named_image(compose: dict[str, Any]) -> None:
    text = CONTAINERFILE.read_text()
    name, default = re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE)[0]
    assert text.index("ARG ") < text.index("FROM "), "an argument after the first stage is none of the next"
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {f"${{{name}}}"}
    assert re.findall(r"--from=(\S+)", text) == re.findall(r" AS (\w+)$", text, re.MULTILINE)
    (build,) = (each["build"] for each in compose["services"].values() if "build" in each)
    assert {key: substitute(each, {}) for key, each in build["args"].items()} == {name: default}


def test_digest_page_lists_every_image() -> None:
    page = (ROOT / "docs" / "pinned-images.md").read_text()
    names = {found["name"] for found in VARIABLE.finditer((COMPOSE / "compose.yaml").read_text())}
    assert {each for each in names if each.endswith("_IMAGE")} <= set(re.findall(r"\w+_IMAGE\b", page))
    assert "image.digest" in page


# Packages by hash


def test_pip_installs_only_hashed_packages_and_the_project() -> None:
    """In the container and in the two walk-throughs: an installation resolves nothing."""
    for path in (CONTAINERFILE, ROOT / "README.md", ROOT / "docs" / "three-machines.md"):
        commands = re.findall(r"\bpip (?:install|wheel)(?: (?:--?[\w-]+|[\w./*-]+))+", path.read_text())
        assert commands, path
        for each in commands:
            words = set(each.split())
            built_here = "--no-deps" in words and ("--no-build-isolation" in words or ".whl" in each)
            assert "--require-hashes" in words or built_here, f"{path.name}: {each}"
