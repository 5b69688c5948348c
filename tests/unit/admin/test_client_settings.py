"""What clients are told: every setting with its reason, in the form that each client wants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import yaml

from fleet import cli
from fleet.admin.client_settings import (
    CLIENT_SETTINGS,
    LIBRDKAFKA_TAKEOVER,
    TLS,
    WIDTH,
    Client,
    as_text,
    settings_for,
)
from tools.bootstrap import ROOT

CLIENTS = get_args(Client)
ADDRESSES = ("p1.example:9100", "p2.example:9100")
EXAMPLE = ROOT / "deploy" / "examples" / "fleet.yaml"
Out = pytest.CaptureFixture[str]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("secured", [False, True])
def test_every_setting_has_its_reason_printed(client: Client, secured: bool) -> None:
    settings = settings_for(client, secured=secured)
    assert (TLS[client].name in {each.name for each in settings}) is secured
    text = as_text(client, ADDRESSES, settings)
    assert all(address in text for address in ADDRESSES)
    unwrapped = " ".join(line.strip().lstrip("#/ ") for line in text.splitlines())
    for each in settings:
        assert each.value in text
        assert f"{each.why[1:]} (default: {each.default})" in unwrapped
        assert each.measured is None or each.measured[1:] in unwrapped
    comments = [line for line in text.splitlines() if line.strip().startswith(("#", "//"))]
    assert max(map(len, comments)) <= WIDTH


@pytest.mark.parametrize("client", CLIENTS)
def test_unmeasured_client_is_marked(client: Client, capsys: Out) -> None:
    reasoned = client in ("franz-go", "spark")
    asked = ["client-config", "--client", client, "-c", str(EXAMPLE)]
    assert cli.run(asked) == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert said.lstrip("#/ ").startswith("Reasoned, not measured: ") is reasoned
    assert cli.run([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["basis"] == ("reasoned, not measured" if reasoned else "measured")
    assert any(each["measured"] for each in told["settings"]) is not reasoned


def test_go_clients_get_named_values() -> None:
    """The same for plaintext and TLS; `tests/integration/test_client_config.py` compiles them."""
    sarama = as_text("sarama", ADDRESSES, settings_for("sarama", secured=True)).splitlines()
    assert 'brokers := []string{"p1.example:9100", "p2.example:9100"}' in sarama
    assert "config.Consumer.Retry.Backoff = 50*time.Millisecond" in sarama
    assert "config.Net.TLS.Enable = true" in sarama
    kafka_go = as_text("kafka-go", ADDRESSES, settings_for("kafka-go", secured=True)).splitlines()
    assert "transport.MetadataTTL = 1*time.Second" in kafka_go
    assert "transport.TLS, dialer.TLS = new(tls.Config), new(tls.Config)" in kafka_go


def test_python_output_is_valid_python() -> None:
    found: dict[str, dict[str, object]] = {}
    exec(as_text("aiokafka", ADDRESSES, settings_for("aiokafka", secured=True)), found)
    assert found["settings"] == {
        "bootstrap_servers": list(ADDRESSES),
        "request_timeout_ms": 5000,
        "retry_backoff_ms": 20,
        "security_protocol": "SSL",
    }
    spark: dict[str, dict[str, str]] = {}
    exec(as_text("spark", ADDRESSES, CLIENT_SETTINGS["spark"]), spark)
    assert spark["options"]["kafka.bootstrap.servers"] == ",".join(ADDRESSES)
    assert spark["options"]["kafka.request.timeout.ms"] == "5000"


def test_kafkajs_output_is_javascript() -> None:
    text = as_text("kafkajs", ADDRESSES, settings_for("kafkajs", secured=True))
    statements = [line for line in text.splitlines() if not line.startswith("//")]
    assert statements[0] == "const settings = { client: {}, consumer: {}, producer: {} }"
    assert statements[1] == 'settings.client.brokers = ["p1.example:9100", "p2.example:9100"]'
    assert "settings.consumer.sessionTimeout = 6000" in statements
    assert statements[-1] == "settings.client.ssl = true"


def test_clients_page_has_the_same_settings() -> None:
    page = (ROOT / "docs" / "clients.md").read_text()
    for each in LIBRDKAFKA_TAKEOVER:
        assert f"    {each.name}={each.value}\n" in page
    for client in CLIENTS:
        assert f"--client {client}" in page or f"|{client}" in page


def test_command_prints_address_of_every_member(capsys: Out) -> None:
    assert cli.run(["client-config", "--client", "java", "-c", str(EXAMPLE), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["client"] == "java"
    assert told["bootstrap_servers"] == ["127.0.0.1:9110", "127.0.0.1:9130", "127.0.0.1:9150"]
    assert told["settings"][0]["name"] == "request.timeout.ms"
    assert cli.run(["client-config", "--client", "java", "-c", str(EXAMPLE)]) == 0
    assert "bootstrap.servers=127.0.0.1:9110,127.0.0.1:9130,127.0.0.1:9150\n" in capsys.readouterr().out


def test_one_of_several_listeners_must_be_named(tmp_path: Path, capsys: Out) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    for number, member in enumerate(document["members"].values()):
        first = 9300 + 20 * number
        member["listeners"]["internal"] = {"bind": f"127.0.0.1:{first}", "first_port": first + 1}
    config = tmp_path / "fleet.yaml"
    config.write_text(yaml.safe_dump(document))
    asked = ["client-config", "--client", "java", "-c", str(config)]
    assert cli.run(asked) == 2
    assert "--listener is required: members have the listeners external, internal" in capsys.readouterr().err
    assert cli.run([*asked, "--listener", "nowhere"]) == 2
    assert "--listener nowhere: no member has it; choose one of external, internal" in capsys.readouterr().err
    assert cli.run([*asked, "--listener", "internal"]) == 0
    assert "=127.0.0.1:9300,127.0.0.1:9320,127.0.0.1:9340\n" in capsys.readouterr().out
