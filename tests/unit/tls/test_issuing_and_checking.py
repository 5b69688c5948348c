"""fleet/tls: created certificates, files that are never overwritten, and the report of each mistake."""

from __future__ import annotations

import codecs
import re
import ssl
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleet.config import Settings
from fleet.config.file import load
from fleet.core.errors import CertificateError, ConfigError
from fleet.tls import checking, issuing
from fleet.tls.peers import check_handshake, make_contexts
from tests.certificates import Authority
from tests.unit.config.test_file import tree

NOW = datetime.now(UTC)
_NO_BOM = "save it as UTF-8 without BOM"
BROKEN: dict[str, tuple[Callable[[bytes], bytes], str, str]] = {
    "marked twice": (
        lambda raw: 2 * codecs.BOM_UTF8 + raw,
        "the file begins with a byte-order mark",
        _NO_BOM,
    ),
    "marked below": (
        lambda raw: b"\n" + codecs.BOM_UTF8 + raw,
        "line 2 begins with a byte-order mark",
        _NO_BOM,
    ),
    "utf-16": (
        lambda raw: raw.decode().encode("utf-16"),
        "the file is UTF-16 text with a byte-order mark",
        _NO_BOM,
    ),
    "indented": (
        lambda raw: b"  " + raw,
        "line 1 has text before -----BEGIN",
        "move -----BEGIN to the beginning of a line",
    ),
    "empty": (lambda _: b"", "is empty", "write the "),
    "der": (lambda _: b"\x30\x82\x01\x00\x30\x82", "is DER, not PEM", "convert it: openssl "),
}
"""Ways to break a file that OpenSSL 3 rejects, with the rule and the fix."""
MEMBERS = ("p1", "p2", "p3")
each_field = pytest.mark.parametrize(
    ("name", "field"), [("ca.pem", "ca"), ("p1.crt", "certificate"), ("p1.key", "key")]
)
each_kind = pytest.mark.parametrize("kind", BROKEN)


def check_broken_file(settings: Settings, section: str, field: str, file: Path, kind: str) -> None:
    """Require that a broken file of a member is reported in the field that names the file."""
    report = broken(file, kind)
    (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
    assert f": {section}.{field}: {file}: " in found
    assert report in found


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Three members with certificates; all files are on this machine."""
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump({**tree(), "peer_tls": {}}, sort_keys=False))
    issuing.make("demo", MEMBERS, tmp_path / "certs", 30, NOW)
    return load(file, {})


@pytest.fixture
def folder(settings: Settings, tmp_path: Path) -> Path:
    return tmp_path / "certs"


@pytest.fixture
def old_openssl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave as OpenSSL before 3.0, which finds no block after a byte-order mark."""

    def refusing(load: Callable[..., None]) -> Callable[..., None]:
        def load_unmarked(context: ssl.SSLContext, *paths: Path, **more: Any) -> None:
            for path in paths:
                if path.read_bytes().startswith(codecs.BOM_UTF8):
                    raise ssl.SSLError(524297, "[SSL] PEM lib (_ssl.c:3926)")
            load(context, *paths, **more)

        return load_unmarked

    for name in ("load_cert_chain", "load_verify_locations"):
        monkeypatch.setattr(ssl.SSLContext, name, refusing(getattr(ssl.SSLContext, name)))


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def broken(file: Path, kind: str) -> str:
    """Break a file. Returns: the rule and the fix that the report must have."""
    change, rule, fix = BROKEN[kind]
    file.write_bytes(change(file.read_bytes()))
    return f"{rule}; {fix}"


def mistakes(check: Callable[[], object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check()
    return str(caught.value).splitlines()


class TestMaking:
    def test_member_certificate_names_it_and_serves_both_sides(self, folder: Path) -> None:
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
            check_handshake(*make_contexts(issuing.member_files(folder, proxy_id)))

    def test_keys_are_for_their_owner_alone(self, folder: Path) -> None:
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert modes == {
            "ca.pem": 0o644,
            "ca-key.pem": 0o600,
            **{f"{proxy_id}.crt": 0o644 for proxy_id in MEMBERS},
            **{f"{proxy_id}.key": 0o600 for proxy_id in MEMBERS},
        }

    @pytest.mark.parametrize("left", ["ca.pem", "ca-key.pem", "p3.key", "p1.crt"])
    def test_existing_files_are_not_overwritten(self, folder: Path, left: str) -> None:
        for path in folder.iterdir():
            if path.name != left:
                path.unlink()
        before = (folder / left).read_bytes()
        with pytest.raises(CertificateError, match=rf"{left}: already exists"):
            issuing.make("demo", MEMBERS, folder, 30, NOW)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {left: before}

    def test_longest_ids_fit_into_a_certificate(self, tmp_path: Path) -> None:
        fleet, proxy_id = "f" * 63, "p_1." + "x" * 59
        issuing.make(fleet, [proxy_id], tmp_path, 1, NOW)
        names = read(tmp_path / f"{proxy_id}.crt").extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        assert names.value.get_values_for_type(x509.UniformResourceIdentifier) == [
            f"fleet://{fleet}/{proxy_id}"
        ]

    def test_unwritable_folder_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(CertificateError, match="cannot be written"):
            issuing.make("demo", MEMBERS, tmp_path / "file" / "certs", 30, NOW)

    def test_renewing_replaces_members_and_keeps_the_authority(self, folder: Path) -> None:
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        issuing.renew("demo", ["p1", "p4"], folder, 90, NOW)
        after = {path.name: path.read_bytes() for path in folder.iterdir()}

        assert {name for name in after if after[name] != before.get(name)} == {
            "p1.crt",
            "p1.key",
            "p4.crt",
            "p4.key",
        }
        for proxy_id in ("p1", "p4"):
            check_handshake(*make_contexts(issuing.member_files(folder, proxy_id)))
            assert checking.file_expiry(folder / f"{proxy_id}.crt") == (NOW + timedelta(days=90)).replace(
                microsecond=0
            )

    def test_a_certificate_does_not_outlive_its_authority(self, folder: Path) -> None:
        issuing.renew("demo", ["p1"], folder, 2 * issuing.CA_DAYS, NOW)
        assert checking.file_expiry(folder / "p1.crt") == checking.file_expiry(folder / "ca.pem")

    def test_renewal_without_a_valid_authority_fails(self, folder: Path, tmp_path: Path) -> None:
        later = NOW + timedelta(days=issuing.CA_DAYS + 1)
        with pytest.raises(CertificateError, match=r"ca\.pem: has expired"):
            issuing.renew("demo", MEMBERS, folder, 30, later)
        (folder / "ca-key.pem").write_bytes((folder / "p1.key").read_bytes())
        with pytest.raises(CertificateError, match=r"ca-key\.pem is not the key of ca\.pem"):
            issuing.renew("demo", MEMBERS, folder, 30, NOW)
        (folder / "ca-key.pem").write_text("no key")
        with pytest.raises(CertificateError, match="was not written by `fleet certs init`"):
            issuing.renew("demo", MEMBERS, folder, 30, NOW)
        with pytest.raises(CertificateError, match=r"none/ca\.pem: cannot be read \(no such file"):
            issuing.renew("demo", MEMBERS, tmp_path / "none", 30, NOW)


class TestChecking:
    def test_a_configuration_without_peer_tls_has_nothing_to_check(self, tmp_path: Path) -> None:
        file = tmp_path / "plain.yaml"
        file.write_text(yaml.safe_dump(tree()))
        checking.check_member(load(file, {}), "p1")
        assert checking.check_present(load(file, {})) == ()

    def test_valid_files_are_accepted(self, settings: Settings) -> None:
        for proxy_id in MEMBERS:
            checking.check_member(settings, proxy_id)
        assert checking.check_present(settings) == ()

    def test_member_needs_only_its_own_files(self, settings: Settings, folder: Path) -> None:
        for name in ("p2.crt", "p2.key", "p3.key"):
            (folder / name).unlink()
        checking.check_member(settings, "p1")
        assert checking.check_present(settings) == ("p2", "p3")
        found = mistakes(lambda: checking.check_member(settings, "p2"))
        assert [line.partition(": file not found")[0] for line in found] == [
            f"{settings.source}:32: peer_tls.certificate: {folder}/p2.crt",
            f"{settings.source}:32: peer_tls.key: {folder}/p2.key",
        ]

    def test_each_mistake_says_line_field_file_rule_and_fix(self, settings: Settings, folder: Path) -> None:
        (folder / "p1.key").write_bytes((folder / "p2.key").read_bytes())
        assert mistakes(lambda: checking.check_member(settings, "p1")) == [
            f"{settings.source}:32: peer_tls.key: {folder}/p1.key: is not the key of {folder}/p1.crt; "
            "copy certificate and key from the same place"
        ]

    def test_mistakes_are_reported_without_a_member(self, settings: Settings, folder: Path) -> None:
        (folder / "ca.pem").write_text("no certificate")
        (found,) = mistakes(lambda: checking.check_present(settings))
        assert f"peer_tls.ca: {folder}/ca.pem: is not a PEM certificate" in found

    def test_unreadable_file_is_reported_with_its_path(self, settings: Settings, folder: Path) -> None:
        (folder / "p1.key").unlink()
        (folder / "p1.key").mkdir()
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert "p1.key: cannot be read (is a directory); name the file in it" in found

    def test_encrypted_key_is_reported_with_its_path(self, settings: Settings, folder: Path) -> None:
        key = load_pem_private_key((folder / "p1.key").read_bytes(), None)
        secret = BestAvailableEncryption(b"secret")
        (folder / "p1.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert "p1.key: is encrypted; remove its passphrase" in found

    @pytest.mark.parametrize("shift", [timedelta(days=-40), timedelta(days=2)], ids=["expired", "not yet"])
    def test_certificate_outside_its_validity_is_refused(
        self, settings: Settings, folder: Path, shift: timedelta
    ) -> None:
        issuing.renew("demo", ["p1"], folder, 30, NOW + shift)
        first, last = NOW + shift - timedelta(hours=1), NOW + shift + timedelta(days=30)
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert f"is not valid now, but only from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC" in found

    def test_expired_authority_is_reported(self, settings: Settings, tmp_path: Path, folder: Path) -> None:
        issuing.make("demo", MEMBERS, tmp_path / "old", 30, NOW - timedelta(days=issuing.CA_DAYS + 1))
        (folder / "ca.pem").write_bytes((tmp_path / "old" / "ca.pem").read_bytes())
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert "ca.pem: is not valid now" in found

    @pytest.mark.parametrize(("fleet", "proxy_id"), [("demo", "p2"), ("other", "p1")])
    def test_certificate_of_another_member_is_reported(
        self, settings: Settings, folder: Path, fleet: str, proxy_id: str
    ) -> None:
        issuing.renew(fleet, [proxy_id], folder, 30, NOW)
        for end in ("crt", "key"):
            (folder / f"{proxy_id}.{end}").replace(folder / f"p1.{end}")
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert f"p1.crt: must name fleet://demo/p1, but names fleet://{fleet}/{proxy_id}; issue it" in found

    def test_certificate_without_a_member_is_reported(self, settings: Settings, folder: Path) -> None:
        (folder / "p1.crt").write_bytes((folder / "ca.pem").read_bytes())
        (folder / "p1.key").write_bytes((folder / "ca-key.pem").read_bytes())
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert "p1.crt: must name fleet://demo/p1, but names no member" in found

    def test_foreign_member_certificate_is_reported(
        self, settings: Settings, folder: Path, tmp_path: Path
    ) -> None:
        issuing.make("demo", MEMBERS, tmp_path / "foreign", 30, NOW)
        (folder / "ca.pem").write_bytes((tmp_path / "foreign" / "ca.pem").read_bytes())
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert "peer_tls.certificate:" in found
        assert "other members would refuse the links: its certificate is refused: " in found

    def test_an_authority_is_rotated_by_naming_both(
        self, settings: Settings, folder: Path, tmp_path: Path
    ) -> None:
        issuing.make("demo", MEMBERS, tmp_path / "fresh", 30, NOW)
        both = (folder / "ca.pem").read_bytes() + (tmp_path / "fresh" / "ca.pem").read_bytes()
        (folder / "ca.pem").write_bytes(both)
        for end in ("crt", "key"):
            (tmp_path / "fresh" / f"p2.{end}").replace(folder / f"p2.{end}")
        for proxy_id in MEMBERS:
            checking.check_member(settings, proxy_id)

    @each_kind
    @each_field
    def test_broken_file_is_reported_in_the_field_that_names_it(
        self, settings: Settings, folder: Path, name: str, field: str, kind: str
    ) -> None:
        check_broken_file(settings, "peer_tls", field, folder / name, kind)


@pytest.mark.parametrize("name", ["ca.pem", "ca-key.pem"])
def test_renewal_names_the_wrong_file_of_the_authority(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"")
    with pytest.raises(CertificateError) as caught:
        issuing.renew("demo", ["p1"], folder, 30, NOW)
    assert str(caught.value).startswith(
        f"{folder}/{name}: was not written by `fleet certs init`: is empty; write the "
    )


def test_expiry_of_a_file_without_a_certificate_is_none(folder: Path) -> None:
    assert checking.file_expiry(folder / "none") is None
    assert checking.file_expiry(folder / "p1.key") is None


class TestListeners:
    """The files of `listener_tls`."""

    @pytest.fixture
    def authority(self, tmp_path: Path) -> Authority:
        made = Authority(tmp_path / "tls")
        made.issue("p1-external", ["p1.example"])
        made.issue("probe")
        return made

    @pytest.fixture
    def settings(self, authority: Authority, tmp_path: Path) -> Settings:
        """One listener; only the certificates of p1 are on this machine."""
        return load(self.file(tmp_path), {})

    def file(self, tmp_path: Path, **changes: str) -> Path:
        section = {
            "certificate": "tls/{proxy_id}-external.crt",
            "key": "tls/{proxy_id}-external.key",
            "client_ca": "tls/ca.pem",
            "client_certificates": "required",
            "probe_certificate": "tls/probe.crt",
            "probe_key": "tls/probe.key",
        }
        file = tmp_path / "fleet.yaml"
        document = {**tree(), "listener_tls": {"external": {**section, **changes}}}
        file.write_text(yaml.safe_dump(document, sort_keys=False))
        return file

    def test_files_of_one_member_are_enough_for_it(self, settings: Settings) -> None:
        checking.check_member(settings, "p1")
        assert checking.check_present(settings) == ("p2", "p3")
        found = mistakes(lambda: checking.check_member(settings, "p2"))
        assert len(found) == 2
        assert "listener_tls.external.certificate: " in found[0]
        assert "p2-external.crt: file not found; copy the file to this path; it comes from" in found[0]

    def test_key_of_another_certificate_is_reported(self, settings: Settings, tmp_path: Path) -> None:
        (tmp_path / "tls" / "p1-external.key").write_bytes((tmp_path / "tls" / "probe.key").read_bytes())
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert "listener_tls.external.key: " in found
        assert "is not the key of" in found

    def test_expired_certificate_is_reported(self, settings: Settings, authority: Authority) -> None:
        authority.issue("p1-external", until=NOW - timedelta(hours=1))
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert "UTC; renew the certificate" in found

    def test_refused_probe_certificate_is_reported(self, settings: Settings, tmp_path: Path) -> None:
        stranger = Authority(tmp_path / "else", "others").issue("probe")
        for mine, other in ((stranger.certificate, "probe.crt"), (stranger.key, "probe.key")):
            (tmp_path / "tls" / other).write_bytes(mine.read_bytes())
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert "listener_tls.external.probe_certificate: " in found
        assert "members could not probe this listener: its certificate is refused" in found

    def test_unknown_ciphers_are_reported(self, authority: Authority, tmp_path: Path) -> None:
        settings = load(self.file(tmp_path, ciphers="ROT13"), {})
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert "listener_tls.external.ciphers: " in found
        assert "openssl ciphers" in found

    @each_kind
    @pytest.mark.parametrize(
        ("name", "field"),
        [
            ("p1-external.crt", "certificate"),
            ("p1-external.key", "key"),
            ("ca.pem", "client_ca"),
            ("probe.crt", "probe_certificate"),
            ("probe.key", "probe_key"),
        ],
    )
    def test_broken_file_is_reported_in_the_field_that_names_it(
        self, settings: Settings, tmp_path: Path, name: str, field: str, kind: str
    ) -> None:
        file = tmp_path / "tls" / name
        report = broken(file, kind)
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        line = settings.listener_tls["external"].lines[field]
        assert found.startswith(f"{settings.source}:{line}: listener_tls.external.{field}: {file}: ")
        assert report in found

    @pytest.mark.parametrize("name", ["p1-external.crt", "p1-external.key", "ca.pem"])
    def test_byte_order_mark_is_reported_in_its_field(
        self, settings: Settings, tmp_path: Path, name: str, old_openssl: None
    ) -> None:
        file = tmp_path / "tls" / name
        file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        error_text = "the file begins with a byte-order mark; save it as UTF-8 without BOM"
        assert f"{file}: {error_text}" in found
        assert ".ciphers" not in found

    def test_weak_certificate_is_reported_in_its_field(self, settings: Settings, tmp_path: Path) -> None:
        key = rsa.generate_private_key(65537, 1024)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "weak")])
        builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(NOW - timedelta(days=1)).not_valid_after(NOW + timedelta(days=1))
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (tmp_path / "tls" / "p1-external.key").write_bytes(private)
        signed = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
        (tmp_path / "tls" / "p1-external.crt").write_bytes(signed)
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert "listener_tls.external.certificate: " in found
        assert "is too weak for OpenSSL on this machine (ee key too small); issue it with" in found

    def test_a_witness_has_no_listener(self, authority: Authority, tmp_path: Path) -> None:
        document = yaml.safe_load(self.file(tmp_path).read_text())
        document["members"]["p3"] |= {"witness": True}
        del document["members"]["p3"]["listeners"]
        file = tmp_path / "fleet.yaml"
        file.write_text(yaml.safe_dump(document))
        checking.check_member(load(file, {}), "p3")


class TestAdmin:
    """The files of `admin.tls`."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        """Three members with certificates for their hosts; all files are on this machine."""
        return self.made(tmp_path, tree())

    def made(self, tmp_path: Path, document: dict[str, Any], **admin: bool) -> Settings:
        file = tmp_path / "fleet.yaml"
        file.write_text(yaml.safe_dump({**document, "admin": {"tls": {}, **admin}}, sort_keys=False))
        made = load(file, {})
        issuing.make("demo", tuple(made.members), tmp_path / "certs", 30, NOW, issuing.member_hosts(made))
        return made

    def test_valid_files_are_accepted(self, settings: Settings) -> None:
        for proxy_id in MEMBERS:
            checking.check_member(settings, proxy_id)
        assert checking.check_present(settings) == ()

    def test_files_of_one_member_are_enough_for_it(self, settings: Settings, folder: Path) -> None:
        for name in ("p2.key", "ca.pem"):
            (folder / name).unlink()
        checking.check_member(settings, "p1")
        assert checking.check_present(settings) == ("p2",)
        (found,) = mistakes(lambda: checking.check_member(settings, "p2"))
        assert f"admin.tls.key: {folder}/p2.key: file not found; copy the file to this path" in found

    @pytest.mark.parametrize("authority_is_here", [True, False])
    def test_each_mistake_says_field_file_rule_and_fix(
        self, settings: Settings, folder: Path, authority_is_here: bool
    ) -> None:
        if not authority_is_here:
            (folder / "ca.pem").unlink()
        (folder / "p1.key").write_bytes((folder / "p2.key").read_bytes())
        (folder / "p2.crt").write_text("nothing")
        (folder / "p3.crt").unlink()
        found = mistakes(lambda: checking.check_present(settings))
        assert [each.partition(": admin.tls.")[2] for each in found] == [
            f"key: {folder}/p1.key: is not the key of {folder}/p1.crt; "
            "copy certificate and key from the same place",
            f"certificate: {folder}/p2.crt: is not a PEM certificate; name the right file; "
            "`fleet certs init` creates it",
        ]

    @pytest.mark.parametrize("authority_is_here", [True, False])
    @pytest.mark.parametrize("days", [-40, 40])
    def test_certificate_outside_its_validity_is_reported(
        self, folder: Path, settings: Settings, days: int, authority_is_here: bool
    ) -> None:
        issuing.renew("demo", ["p1"], folder, 30, NOW + timedelta(days=days), issuing.member_hosts(settings))
        if not authority_is_here:
            (folder / "ca.pem").unlink()
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert "admin.tls.certificate: " in found
        assert "UTC; renew the certificate" in found

    @pytest.mark.parametrize("authority_is_here", [True, False])
    def test_certificate_of_another_host_is_reported(
        self, settings: Settings, folder: Path, authority_is_here: bool
    ) -> None:
        issuing.renew("demo", ["p1"], folder, 30, NOW)
        if not authority_is_here:
            (folder / "ca.pem").unlink()
        (found,) = mistakes(lambda: checking.check_present(settings))
        assert "`fleet` commands would refuse this certificate: its certificate is refused: " in found
        assert "certificate is not valid for '127.0.0.1'" in found

    def test_certificate_of_another_authority_is_reported(
        self, settings: Settings, folder: Path, tmp_path: Path
    ) -> None:
        issuing.make("demo", ["p1"], tmp_path / "other", 30, NOW, issuing.member_hosts(settings))
        for name in ("p1.crt", "p1.key"):
            (tmp_path / "other" / name).replace(folder / name)
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert "its certificate is refused: unable to get local issuer certificate" in found

    def test_file_that_is_no_authority_is_reported(self, settings: Settings, folder: Path) -> None:
        (folder / "ca.pem").write_text("nothing")
        (found,) = mistakes(lambda: checking.check_present(settings))
        assert f"admin.tls.ca: {folder}/ca.pem: is not a PEM certificate" in found

    @each_kind
    @each_field
    def test_broken_file_is_reported_in_the_field_that_names_it(
        self, settings: Settings, folder: Path, name: str, field: str, kind: str
    ) -> None:
        check_broken_file(settings, "admin.tls", field, folder / name, kind)

    def test_key_log_that_cannot_be_written_is_not_blamed_on_a_file(
        self, settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSLKEYLOGFILE", f"{folder}/none/keys")
        (found,) = mistakes(lambda: checking.check_member(settings, "p1"))
        assert found.endswith(
            f"SSLKEYLOGFILE: {folder}/none/keys: cannot be written (no such file or directory); "
            "unset this variable"
        )

    def test_wildcard_address_requires_no_particular_name(self, tmp_path: Path) -> None:
        document = tree(1)
        document["members"]["p1"]["admin"] = "0.0.0.0:7201"
        settings = self.made(tmp_path, document, open_to_read=True)
        issuing.renew("demo", ["p1"], tmp_path / "certs", 30, NOW, {"p1": ("p1.example",)})
        checking.check_member(settings, "p1")


class TestUpstream:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        """A complete `upstream` section whose files are all valid and on this machine."""
        own = Authority(tmp_path).issue("proxy").both
        own.replace(tmp_path / "own.pem")
        (tmp_path / "password").touch(0o600)
        (tmp_path / "password").write_text("hidden")
        sasl = {"mechanism": "PLAIN", "username": "fleet", "password": {"file": "password"}}
        tls = {"ca": "ca.pem", "certificate": "own.pem", "key": "own.pem"}
        file = tmp_path / "fleet.yaml"
        file.write_text(yaml.safe_dump({**tree(), "upstream": {"tls": tls, "sasl": sasl}}, sort_keys=False))
        return load(file, {})

    def test_valid_files_are_accepted(self, settings: Settings) -> None:
        assert checking.check_upstream(settings, must_be_there=True) == ()
        assert checking.check_upstream(settings, must_be_there=False) == ()

    def test_missing_file_is_named_or_a_mistake(self, settings: Settings, tmp_path: Path) -> None:
        for name in ("ca.pem", "own.pem", "password"):
            (tmp_path / name).unlink()
        names = [str(tmp_path / name) for name in ("ca.pem", "own.pem", "own.pem", "password")]
        assert checking.check_upstream(settings, must_be_there=False) == tuple(names)
        found = mistakes(lambda: checking.check_upstream(settings, must_be_there=True))
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
        (tmp_path / "other").mkdir()
        (tmp_path / "ca.pem").write_text("no certificate")
        own = (tmp_path / "own.pem").read_bytes()
        key, _, _ = (
            Authority(tmp_path / "other").issue("proxy").both.read_bytes().partition(b"-----BEGIN CERT")
        )
        (tmp_path / "own.pem").write_bytes(key + own[own.index(b"-----BEGIN CERT") :])
        (tmp_path / "password").chmod(0o604)
        at, where = settings.source, tmp_path
        found = mistakes(lambda: checking.check_upstream(settings, must_be_there=must_be_there))
        assert [each.partition(":")[2].partition(": ")[2] for each in found] == [
            f"upstream.tls.ca: {where}/ca.pem: is not a PEM certificate; name the right file; "
            "request it from the operator of the brokers",
            f"upstream.tls.key: {where}/own.pem: is not the key of {where}/own.pem; "
            "copy certificate and key from the same place",
            f"upstream.sasl.password: {where}/password: must be readable only by its owner; "
            f"run `chmod 600 {where}/password`",
        ]
        assert all(each.startswith(f"{at}:") for each in found)

    @each_kind
    @pytest.mark.parametrize(("name", "field"), [("ca.pem", "ca"), ("own.pem", "(certificate|key)")])
    def test_broken_file_is_reported_in_the_field_that_names_it(
        self, settings: Settings, tmp_path: Path, name: str, field: str, kind: str
    ) -> None:
        report = broken(tmp_path / name, kind)
        found = mistakes(lambda: checking.check_upstream(settings, must_be_there=True))
        assert re.search(rf": upstream\.tls\.{field}: {tmp_path / name}: ", found[0])
        assert report in found[0]

    def test_missing_variable_is_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sasl = {"mechanism": "PLAIN", "username": "fleet", "password": {"env": "KAFKA_PASSWORD"}}
        file = tmp_path / "fleet.yaml"
        file.write_text(yaml.safe_dump({**tree(), "upstream": {"sasl": sasl}}))
        settings = load(file, {})
        monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
        assert checking.check_upstream(settings, must_be_there=False) == ("$KAFKA_PASSWORD",)
        (found,) = mistakes(lambda: checking.check_upstream(settings, must_be_there=True))
        assert found.endswith("$KAFKA_PASSWORD: is not set or empty; set the variable KAFKA_PASSWORD")
        monkeypatch.setenv("KAFKA_PASSWORD", "hidden")
        assert checking.check_upstream(settings, must_be_there=True) == ()
