"""fleet/admin/check.py: what is wrong with tokens and certificates, and that nothing of a token is shown."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from fleet import certs
from fleet.admin.check import check_member, check_present
from fleet.config import Settings, load
from fleet.errors import ConfigError
from tests.unit.test_admin_tls import NOW, READ, WRITE, secured
from tests.unit.test_config import tree


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Three members, all of whose certificates and tokens are here."""
    return secured(tmp_path)


def mistakes(check: Callable[[], object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check()
    assert READ not in str(caught.value)
    assert WRITE not in str(caught.value)
    return str(caught.value).splitlines()


def test_right_files_are_right(settings: Settings) -> None:
    for proxy_id in settings.members:
        check_member(settings, proxy_id)
    assert check_present(settings) == ()


def test_without_the_section_there_is_nothing_to_check(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(tree()))
    plain = load(tmp_path / "fleet.yaml", {})
    check_member(plain, "p1")
    assert check_present(plain) == ()


def test_what_is_elsewhere_is_named_and_wanted_from_the_member_itself(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "certs" / "p2.key").unlink()
    (tmp_path / "write-token").unlink()
    assert check_present(settings) == ("admin.tls of p2", "admin.tokens")
    found = mistakes(lambda: check_member(settings, "p2"))
    assert [line.split(": ")[1] for line in found] == ["admin.tls.certificate", "admin.tokens.write"]
    assert f"{tmp_path}/certs/p2.key: cannot be used (no such file or directory)" in found[0]
    assert f"{tmp_path}/write-token: cannot be read (no such file or directory)" in found[1]


def test_a_variable_that_is_not_set_is_elsewhere(tmp_path: Path) -> None:
    tokens = {"read": {"env": "READ"}, "write": {"env": "WRITE"}}
    settings = secured(tmp_path, tokens=tokens)
    assert check_present(settings, {"READ": READ}) == ("admin.tokens",)
    assert check_present(settings, {"READ": READ, "WRITE": WRITE}) == ()
    (found,) = mistakes(lambda: check_member(settings, "p1", {"READ": READ}))
    assert "admin.tokens.write: $WRITE: is not set, or empty; set the variable WRITE" in found


def test_a_token_that_others_may_read_is_refused(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "read-token").chmod(0o644)
    for check in (lambda: check_member(settings, "p1"), lambda: check_present(settings)):
        (found,) = mistakes(check)
        assert (
            f"admin.tokens.read: {tmp_path}/read-token: nobody but its owner may read it; chmod 600" in found
        )


def test_a_key_of_another_certificate(settings: Settings, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "certs" / "p2.key", tmp_path / "certs" / "p1.key")
    (found,) = mistakes(lambda: check_present(settings))
    assert (
        f"admin.tls.certificate: {tmp_path}/certs/p1.crt: cannot be used (TLS: key values mismatch)" in found
    )


def test_a_file_that_is_no_certificate(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "certs" / "p1.crt").write_text("nothing")
    (found,) = mistakes(lambda: check_member(settings, "p1"))
    assert f"{tmp_path}/certs/p1.crt: cannot be used (" in found


@pytest.mark.parametrize("authority_is_here", [True, False])
@pytest.mark.parametrize("days", [-40, 40])
def test_certificates_that_are_not_valid_now(
    settings: Settings, tmp_path: Path, days: int, authority_is_here: bool
) -> None:
    hosts, shift = certs.hosts_of(settings), timedelta(days=days)
    certs.renew("demo", ["p1"], tmp_path / "certs", 30, NOW + shift, hosts)
    if not authority_is_here:
        (tmp_path / "certs" / "ca.pem").unlink()
    (found,) = mistakes(lambda: check_member(settings, "p1"))
    assert "commands would refuse it: its certificate is refused: certificate " in found
    assert ("has expired" if days < 0 else "not yet valid") in found


def test_certificates_of_another_host(settings: Settings, tmp_path: Path) -> None:
    certs.renew("demo", ["p1"], tmp_path / "certs", 30, NOW)
    (found,) = mistakes(lambda: check_present(settings))
    assert "certificate is not valid for '127.0.0.1'" in found


def test_certificates_of_another_authority(settings: Settings, tmp_path: Path) -> None:
    certs.make("demo", ["p1"], tmp_path / "other", 30, NOW, certs.hosts_of(settings))
    for name in ("p1.crt", "p1.key"):
        shutil.copy(tmp_path / "other" / name, tmp_path / "certs")
    (found,) = mistakes(lambda: check_member(settings, "p1"))
    assert "its certificate is refused: unable to get local issuer certificate" in found


def test_an_authority_that_is_none(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "certs" / "ca.pem").write_text("nothing")
    (found,) = mistakes(lambda: check_present(settings))
    assert f"admin.tls.ca: {tmp_path}/certs/ca.pem: cannot be used (" in found


def test_a_wildcard_wants_no_name_in_particular(tmp_path: Path) -> None:
    document = tree(1) | {"admin": {"tls": {}}}
    document["members"]["p1"]["admin"] = "0.0.0.0:7201"
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(document))
    settings = load(tmp_path / "fleet.yaml", {})
    certs.make("demo", ["p1"], tmp_path / "certs", 30, NOW, {"p1": ("p1.example",)})
    check_member(settings, "p1")
