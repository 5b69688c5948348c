"""fleet/certs.py: what is made, what it is never written over, and how each mistake in the files is told."""

from __future__ import annotations

import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from fleet import certs
from fleet.config import Settings, load
from fleet.errors import CertificateError, ConfigError
from fleet.peer_tls import rehearse
from tests.certificates import Authority
from tests.unit.test_config import tree

NOW = datetime.now(UTC)
MEMBERS = ("p1", "p2", "p3")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Three members with certificates, all of whose files are here."""
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump({**tree(), "peer_tls": {}}, sort_keys=False))
    certs.make("demo", MEMBERS, tmp_path / "certs", 30, NOW)
    return load(file, {})


@pytest.fixture
def folder(settings: Settings, tmp_path: Path) -> Path:
    return tmp_path / "certs"


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def mistakes(check: Callable[[], object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check()
    return str(caught.value).splitlines()


class TestMaking:
    def test_a_member_gets_a_certificate_for_both_sides_that_names_it(self, folder: Path) -> None:
        certificate = read(folder / "p2.crt")
        extensions = certificate.extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        purposes = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        certificate.verify_directly_issued_by(read(folder / "ca.pem"))

        assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["fleet://demo/p2"]
        assert set(purposes) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
        assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert certificate.not_valid_after_utc == (NOW + timedelta(days=30)).replace(microsecond=0)
        for proxy_id in MEMBERS:
            rehearse(certs.files_in(folder, proxy_id))

    def test_keys_are_for_their_owner_alone(self, folder: Path) -> None:
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert modes == {
            "ca.pem": 0o644,
            "ca-key.pem": 0o600,
            **{f"{proxy_id}.crt": 0o644 for proxy_id in MEMBERS},
            **{f"{proxy_id}.key": 0o600 for proxy_id in MEMBERS},
        }

    @pytest.mark.parametrize("left", ["ca.pem", "ca-key.pem", "p3.key", "p1.crt"])
    def test_nothing_is_written_over(self, folder: Path, left: str) -> None:
        for path in folder.iterdir():
            if path.name != left:
                path.unlink()
        before = (folder / left).read_bytes()
        with pytest.raises(CertificateError, match=rf"{left}: is there already"):
            certs.make("demo", MEMBERS, folder, 30, NOW)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {left: before}

    def test_ids_as_long_as_they_may_be(self, tmp_path: Path) -> None:
        fleet, proxy_id = "f" * 63, "p_1." + "x" * 59
        certs.make(fleet, [proxy_id], tmp_path, 1, NOW)
        names = read(tmp_path / f"{proxy_id}.crt").extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        assert names.value.get_values_for_type(x509.UniformResourceIdentifier) == [
            f"fleet://{fleet}/{proxy_id}"
        ]

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(CertificateError, match="cannot be written"):
            certs.make("demo", MEMBERS, tmp_path / "file" / "certs", 30, NOW)

    def test_renewing_replaces_members_and_keeps_the_authority(self, folder: Path) -> None:
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        certs.renew("demo", ["p1", "p4"], folder, 90, NOW)
        after = {path.name: path.read_bytes() for path in folder.iterdir()}

        assert {name for name in after if after[name] != before.get(name)} == {
            "p1.crt",
            "p1.key",
            "p4.crt",
            "p4.key",
        }
        for proxy_id in ("p1", "p4"):
            rehearse(certs.files_in(folder, proxy_id))
            assert certs.expiry(folder / f"{proxy_id}.crt") == (NOW + timedelta(days=90)).replace(
                microsecond=0
            )

    def test_a_certificate_does_not_outlive_its_authority(self, folder: Path) -> None:
        certs.renew("demo", ["p1"], folder, 2 * certs.CA_DAYS, NOW)
        assert certs.expiry(folder / "p1.crt") == certs.expiry(folder / "ca.pem")

    def test_what_keeps_from_renewing(self, folder: Path, tmp_path: Path) -> None:
        later = NOW + timedelta(days=certs.CA_DAYS + 1)
        with pytest.raises(CertificateError, match=r"ca\.pem: has expired"):
            certs.renew("demo", MEMBERS, folder, 30, later)
        (folder / "ca-key.pem").write_bytes((folder / "p1.key").read_bytes())
        with pytest.raises(CertificateError, match=r"ca-key\.pem is not the key of ca\.pem"):
            certs.renew("demo", MEMBERS, folder, 30, NOW)
        (folder / "ca-key.pem").write_text("no key")
        with pytest.raises(CertificateError, match="is not what `fleet certs init` wrote"):
            certs.renew("demo", MEMBERS, folder, 30, NOW)
        with pytest.raises(CertificateError, match=r"none/ca\.pem: No such file"):
            certs.renew("demo", MEMBERS, tmp_path / "none", 30, NOW)


class TestChecking:
    def test_a_configuration_without_peer_tls_has_nothing_to_check(self, tmp_path: Path) -> None:
        file = tmp_path / "plain.yaml"
        file.write_text(yaml.safe_dump(tree()))
        certs.check_member(load(file, {}), "p1")
        assert certs.check_present(load(file, {})) == ()

    def test_right_files_are_right(self, settings: Settings) -> None:
        for proxy_id in MEMBERS:
            certs.check_member(settings, proxy_id)
        assert certs.check_present(settings) == ()

    def test_a_member_needs_its_own_files_and_nobody_else_s(self, settings: Settings, folder: Path) -> None:
        for name in ("p2.crt", "p2.key", "p3.key"):
            (folder / name).unlink()
        certs.check_member(settings, "p1")
        assert certs.check_present(settings) == ("p2", "p3")
        found = mistakes(lambda: certs.check_member(settings, "p2"))
        assert [line.partition(": there is no such file")[0] for line in found] == [
            f"{settings.source}:32: peer_tls.certificate: {folder}/p2.crt",
            f"{settings.source}:32: peer_tls.key: {folder}/p2.key",
        ]

    def test_each_mistake_says_line_field_file_rule_and_fix(self, settings: Settings, folder: Path) -> None:
        (folder / "p1.key").write_bytes((folder / "p2.key").read_bytes())
        assert mistakes(lambda: certs.check_member(settings, "p1")) == [
            f"{settings.source}:32: peer_tls.key: {folder}/p1.key: is not the key of {folder}/p1.crt; "
            "copy certificate and key from the same place"
        ]

    def test_what_is_wrong_is_wrong_without_a_member_too(self, settings: Settings, folder: Path) -> None:
        (folder / "ca.pem").write_text("no certificate")
        (found,) = mistakes(lambda: certs.check_present(settings))
        assert f"peer_tls.ca: {folder}/ca.pem: is not a PEM certificate" in found

    def test_a_file_that_cannot_be_read(self, settings: Settings, folder: Path) -> None:
        (folder / "p1.key").unlink()
        (folder / "p1.key").mkdir()
        (found,) = mistakes(lambda: certs.check_member(settings, "p1"))
        assert "p1.key: cannot be read (Is a directory); check its owner and mode" in found

    def test_a_key_with_a_passphrase(self, settings: Settings, folder: Path) -> None:
        key = load_pem_private_key((folder / "p1.key").read_bytes(), None)
        secret = BestAvailableEncryption(b"secret")
        (folder / "p1.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
        (found,) = mistakes(lambda: certs.check_member(settings, "p1"))
        assert "p1.key: is encrypted; remove its passphrase" in found

    @pytest.mark.parametrize("shift", [timedelta(days=-40), timedelta(days=2)], ids=["expired", "not yet"])
    def test_a_certificate_that_is_not_valid_now(
        self, settings: Settings, folder: Path, shift: timedelta
    ) -> None:
        certs.renew("demo", ["p1"], folder, 30, NOW + shift)
        first, last = NOW + shift - timedelta(hours=1), NOW + shift + timedelta(days=30)
        (found,) = mistakes(lambda: certs.check_member(settings, "p1"))
        assert (
            f"is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, and it is not now" in found
        )

    def test_an_authority_that_has_expired(self, settings: Settings, tmp_path: Path, folder: Path) -> None:
        certs.make("demo", MEMBERS, tmp_path / "old", 30, NOW - timedelta(days=certs.CA_DAYS + 1))
        (folder / "ca.pem").write_bytes((tmp_path / "old" / "ca.pem").read_bytes())
        (found,) = mistakes(lambda: certs.check_member(settings, "p1"))
        assert "ca.pem: is valid from" in found

    @pytest.mark.parametrize(("fleet", "proxy_id"), [("demo", "p2"), ("other", "p1")])
    def test_a_certificate_of_somebody_else(
        self, settings: Settings, folder: Path, fleet: str, proxy_id: str
    ) -> None:
        certs.renew(fleet, [proxy_id], folder, 30, NOW)
        for end in ("crt", "key"):
            (folder / f"{proxy_id}.{end}").replace(folder / f"p1.{end}")
        (found,) = mistakes(lambda: certs.check_member(settings, "p1"))
        assert f"p1.crt: names fleet://{fleet}/{proxy_id}, and must name fleet://demo/p1; issue it" in found

    def test_a_certificate_of_nobody(self, settings: Settings, folder: Path) -> None:
        (folder / "p1.crt").write_bytes((folder / "ca.pem").read_bytes())
        (folder / "p1.key").write_bytes((folder / "ca-key.pem").read_bytes())
        (found,) = mistakes(lambda: certs.check_member(settings, "p1"))
        assert "p1.crt: names nobody, and must name fleet://demo/p1" in found

    def test_a_certificate_of_another_authority(
        self, settings: Settings, folder: Path, tmp_path: Path
    ) -> None:
        certs.make("demo", MEMBERS, tmp_path / "foreign", 30, NOW)
        (folder / "ca.pem").write_bytes((tmp_path / "foreign" / "ca.pem").read_bytes())
        (found,) = mistakes(lambda: certs.check_member(settings, "p1"))
        assert "peer_tls.certificate:" in found
        assert "links would be refused: its certificate is refused: " in found

    def test_an_authority_is_rotated_by_naming_both(
        self, settings: Settings, folder: Path, tmp_path: Path
    ) -> None:
        certs.make("demo", MEMBERS, tmp_path / "fresh", 30, NOW)
        both = (folder / "ca.pem").read_bytes() + (tmp_path / "fresh" / "ca.pem").read_bytes()
        (folder / "ca.pem").write_bytes(both)
        for end in ("crt", "key"):
            (tmp_path / "fresh" / f"p2.{end}").replace(folder / f"p2.{end}")
        for proxy_id in MEMBERS:
            certs.check_member(settings, proxy_id)


def test_expiry_of_what_is_no_certificate(folder: Path) -> None:
    assert certs.expiry(folder / "none") is None
    assert certs.expiry(folder / "p1.key") is None


class TestUpstream:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        """A way to the brokers with every file that it may have, all of them here and right."""
        Authority(tmp_path).issue("proxy")
        (tmp_path / "password").touch(0o600)
        (tmp_path / "password").write_text("hidden")
        sasl = {"mechanism": "PLAIN", "username": "fleet", "password": {"file": "password"}}
        tls = {"ca": "clients-ca.pem", "certificate": "proxy.crt", "key": "proxy.key"}
        file = tmp_path / "fleet.yaml"
        file.write_text(yaml.safe_dump({**tree(), "upstream": {"tls": tls, "sasl": sasl}}, sort_keys=False))
        return load(file, {})

    def test_right_files_are_right(self, settings: Settings) -> None:
        assert certs.check_upstream(settings, must_be_there=True) == ()
        assert certs.check_upstream(settings, must_be_there=False) == ()

    def test_what_is_not_here_is_named_or_a_mistake(self, settings: Settings, tmp_path: Path) -> None:
        files = [tmp_path / name for name in ("clients-ca.pem", "proxy.crt", "proxy.key", "password")]
        for file in files:
            file.unlink()
        assert certs.check_upstream(settings, must_be_there=False) == tuple(map(str, files))
        found = mistakes(lambda: certs.check_upstream(settings, must_be_there=True))
        assert [each.split(": ")[1] for each in found] == [
            "upstream.tls.ca",
            "upstream.tls.certificate",
            "upstream.tls.key",
            "upstream.sasl.password",
        ]

    @pytest.mark.parametrize("must_be_there", [True, False])
    def test_each_mistake_says_line_field_file_rule_and_fix(
        self, settings: Settings, tmp_path: Path, must_be_there: bool
    ) -> None:
        (tmp_path / "clients-ca.pem").write_text("no certificate")
        Authority(tmp_path / "other").issue("proxy").key.replace(tmp_path / "proxy.key")
        (tmp_path / "password").chmod(0o604)
        at, where = settings.source, tmp_path
        found = mistakes(lambda: certs.check_upstream(settings, must_be_there=must_be_there))
        assert [each.partition(":")[2].partition(": ")[2] for each in found] == [
            f"upstream.tls.ca: {where}/clients-ca.pem: is not a PEM certificate; name the right file",
            f"upstream.tls.key: {where}/proxy.key: is not the key of {where}/proxy.crt; "
            "copy certificate and key from the same place",
            f"upstream.sasl.password: {where}/password: nobody but its owner may read it; "
            f"chmod 600 {where}/password",
        ]
        assert all(each.startswith(f"{at}:") for each in found)

    def test_a_variable_is_looked_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sasl = {"mechanism": "PLAIN", "username": "fleet", "password": {"env": "KAFKA_PASSWORD"}}
        file = tmp_path / "fleet.yaml"
        file.write_text(yaml.safe_dump({**tree(), "upstream": {"sasl": sasl}}))
        settings = load(file, {})
        monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
        assert certs.check_upstream(settings, must_be_there=False) == ("$KAFKA_PASSWORD",)
        (found,) = mistakes(lambda: certs.check_upstream(settings, must_be_there=True))
        assert found.endswith("$KAFKA_PASSWORD: is not set, or empty; set the variable KAFKA_PASSWORD")
        monkeypatch.setenv("KAFKA_PASSWORD", "hidden")
        assert certs.check_upstream(settings, must_be_there=True) == ()
