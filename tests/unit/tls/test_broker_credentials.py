"""Options of the fleet's own clients, from the files at the time of each connection."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from fleet.config import SaslSettings, Secret, UpstreamSettings, UpstreamTlsSettings
from fleet.core.errors import ConfigError
from fleet.tls.broker_credentials import KafkaAccess
from tests.certificates import Authority


def tls(ca: Path) -> UpstreamTlsSettings:
    return UpstreamTlsSettings(ca, None, None, check_hostname=True, lines={})


def sasl(folder: Path, password: str) -> SaslSettings:
    file = folder / "password"
    file.touch(0o600)
    file.write_text(password)
    return SaslSettings("SCRAM-SHA-256", "fleet", Secret(file, None, ("upstream", "sasl", "password"), 3))


def test_tls_and_sasl_are_configured_independently(tmp_path: Path) -> None:
    secure, principal = tls(Authority(tmp_path).certificate), sasl(tmp_path, "hidden")
    credentials = {
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "fleet",
        "sasl_plain_password": "hidden",
    }
    assert KafkaAccess(UpstreamSettings(), "f").options() == {"security_protocol": "PLAINTEXT"}
    found = KafkaAccess(UpstreamSettings(sasl=principal), "f").options()
    assert found == {"security_protocol": "SASL_PLAINTEXT", **credentials}
    for upstream, protocol in (
        (UpstreamSettings(secure), "SSL"),
        (UpstreamSettings(secure, principal), "SASL_SSL"),
    ):
        found = KafkaAccess(upstream, "f").options()
        assert found["security_protocol"] == protocol
        context = found["ssl_context"]
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_token_is_read_again_for_each_connection(tmp_path: Path) -> None:
    (file := tmp_path / "token").touch(0o600)
    secret = Secret(file, None, ("upstream", "sasl", "token"), 3)
    access = KafkaAccess(UpstreamSettings(sasl=SaslSettings("OAUTHBEARER", None, secret)), "fleet.yaml")
    options = access.options()
    assert (options["security_protocol"], options["sasl_mechanism"]) == ("SASL_PLAINTEXT", "OAUTHBEARER")
    for token in ("first", "second"):
        file.write_text(f"{token}\n")
        assert asyncio.run(options["sasl_oauth_token_provider"].token()) == token
    file.unlink()
    with pytest.raises(ConfigError, match=r"^fleet\.yaml:3: upstream\.sasl\.token: "):
        asyncio.run(options["sasl_oauth_token_provider"].token())


def test_a_new_password_and_a_new_authority_are_in_use_at_once(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    authority, successor = Authority(tmp_path), Authority(tmp_path / "new")
    access = KafkaAccess(UpstreamSettings(tls(authority.certificate), sasl(tmp_path, "first")), "f")
    before = access.options()
    assert access.options()["ssl_context"] is before["ssl_context"]
    (tmp_path / "password").write_text("second")
    successor.certificate.replace(authority.certificate)
    after = access.options()
    assert after["sasl_plain_password"] == "second"
    assert after["ssl_context"].get_ca_certs() != before["ssl_context"].get_ca_certs()


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    access = KafkaAccess(UpstreamSettings(sasl=sasl(tmp_path, "hidden")), "fleet.yaml")
    (tmp_path / "password").chmod(0o644)
    with pytest.raises(ConfigError, match=r"^fleet\.yaml:3: upstream\.sasl\.password: .* `chmod 600"):
        access.options()
    with pytest.raises(
        OSError, match=r"cannot use the files of upstream\.tls: ca: .*no such file or directory\); check"
    ):
        KafkaAccess(UpstreamSettings(tls(tmp_path / "none")), "f").options()
