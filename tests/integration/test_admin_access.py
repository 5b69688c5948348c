"""A fleet whose admin addresses require tokens and use TLS: its own commands, other clients, Prometheus."""

from __future__ import annotations

import json
import os
import secrets
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import CERTIFICATE_DAYS, LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.ports import free_ports
from fleet.drills.cluster.spawn import end, spawn
from fleet.tls import issuing
from tests.conftest import fleets
from tests.integration.clients import wait_for
from tests.integration.conftest import ROOT, FleetCommand
from tests.integration.metrics import expiries, scrape

pytestmark = pytest.mark.size("test-all")

PROMETHEUS = ROOT / "build" / "prometheus" / "bin" / "prometheus"


@pytest.fixture(scope="module")
def guarded(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """A fleet whose links use the same certificates."""
    with fleets(kafka, tmp_path_factory.mktemp("guarded")) as make:
        yield make(peer_tls=True, admin_tokens=True)


def token_file(fleet: LocalFleet, role: str) -> Path:
    return fleet.config.parent / f"{role}-token"


def ask(fleet: LocalFleet, proxy_id: ProxyId, path: str, token: str | None, method: str = "GET") -> int:
    """The status of an answer to a foreign client."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = f"https://{fleet.settings.member(proxy_id).admin}{path}"
    request = urllib.request.Request(url, headers=headers, method=method)
    context = ssl.create_default_context(cafile=fleet.certificates / "ca.pem")
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_roles_hold_and_no_token_is_seen_anywhere(guarded: LocalFleet, fleet_command: FleetCommand) -> None:
    read, write = (token_file(guarded, role).read_text() for role in ("read", "write"))
    documents = [fleet_command(guarded, "status"), fleet_command(guarded, "check", "--node", "p1")]
    assert [each["error"] for each in documents[0]["answers"]] == [None] * 3

    # The queried member queries the others as any reader does.
    def sample_value() -> bool:
        live = fleet_command(guarded, "top", "--once")
        errors = {each["proxy_id"]: each["error"] for each in live["counted"]}
        return errors == dict.fromkeys(guarded.members)  # a member that is late once has not been refused

    wait_for(sample_value, "all are counted")

    for path in ("/metrics", "/ownership", "/traffic"):
        assert [ask(guarded, "p2", path, token) for token in (None, "x" * 64, read, write)] == [
            401,
            401,
            200,
            200,
        ]
    assert [ask(guarded, "p2", path, None) for path in ("/healthz", "/readyz", "/")] == [200, 200, 200]
    assert [ask(guarded, "p2", "/drain/p3", token, "POST") for token in (None, read)] == [401, 403]
    refused = {
        labels["reason"]: count for labels, count in scrape(guarded, "p2")["fleet_admin_refused_total"]
    }
    assert refused == {"no_token": 4, "wrong_token": 3, "read_only": 1, "unreadable": 0}

    documents += [fleet_command(guarded, verb, "p3") for verb in ("drain", "undrain")]
    assert [each["applied"] for each in documents[2:]] == [True, True]

    assert "admin request refused: source=127.0.0.1 reason=no_token" in guarded.log("p2").read_text()
    written = [
        each for each in guarded.config.parent.rglob("*") if each.is_file() and "-token" not in each.name
    ]
    written += [each for each in guarded.data.rglob("*") if each.is_file()]
    assert guarded.log("p2") in written
    secret_places = [each.read_bytes() for each in written] + [json.dumps(documents).encode()]
    for proxy_id in guarded.members:
        process = psutil.Process(guarded.pid(proxy_id))
        secret_places += [
            " ".join(each.cmdline()).encode() for each in (process, *process.children(recursive=True))
        ]
    for token in (read, write):
        assert not any(token.encode() in each for each in secret_places)


def test_a_token_is_replaced_while_members_run(guarded: LocalFleet, fleet_command: FleetCommand) -> None:
    file = token_file(guarded, "read")
    former, fresh = file.read_text(), secrets.token_hex(32)
    new_file = file.with_name("fresh-token")
    new_file.touch(mode=0o600)
    new_file.write_text(fresh)
    os.replace(new_file, file)
    for proxy_id in guarded.members:
        assert [ask(guarded, proxy_id, "/ownership", token) for token in (former, fresh)] == [401, 200]
    assert fleet_command(guarded, "status")["agree"]
    file.write_text(former)


def test_admin_address_reports_when_its_certificates_expire(guarded: LocalFleet) -> None:
    found = expiries(guarded, "p1")
    assert found.keys() == {
        f"{section}.{field}" for section in ("peer_tls", "admin.tls") for field in ("ca", "certificate")
    }
    days = (issuing.CA_DAYS, CERTIFICATE_DAYS)
    for field, lasts in zip(("ca", "certificate"), days, strict=True):
        assert found[f"admin.tls.{field}"] == found[f"peer_tls.{field}"]
        assert lasts - 1 < (found[f"admin.tls.{field}"] - time.time()) / 86_400 < lasts


def test_doctor_warns_of_expiring_link_certificates(guarded: LocalFleet, fleet_command: FleetCommand) -> None:
    findings = fleet_command(guarded, "doctor")["findings"]
    soon = {
        each["subject"]
        for each in findings
        if (each["check"], each["verdict"]) == ("certificates", "warning")
    }
    assert soon == {
        f"{principal} {what}" for principal in guarded.members for what in ("admin", "peer_tls.certificate")
    }


def test_prometheus_scrapes_with_the_token_to_read(guarded: LocalFleet, tmp_path: Path) -> None:
    """With the configuration of deploy/prometheus, except for the places of members and files."""
    document = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus-tls.yml").read_text())
    (job,) = document["scrape_configs"]
    job["authorization"]["credentials_file"] = str(token_file(guarded, "read"))
    job["tls_config"]["ca_file"] = str(guarded.certificates / "ca.pem")
    job["static_configs"] = [{"targets": [str(each.admin) for each in guarded.settings.members.values()]}]
    document["rule_files"] = [str(ROOT / "deploy" / "prometheus" / "alerts.yml")]
    document["global"]["scrape_interval"] = "1s"
    config = tmp_path / "prometheus.yml"
    config.write_text(yaml.safe_dump(document))
    (port,) = free_ports(1)
    command = (
        str(PROMETHEUS),
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    process = spawn(command, tmp_path / "log")

    def health() -> list[str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/targets", timeout=20) as response:
                return [each["health"] for each in json.load(response)["data"]["activeTargets"]]
        except OSError:
            return []

    try:
        wait_for(lambda: health() == ["up"] * 3, "three targets that are up")
    finally:
        end([process], patience_s=0.0)
