"""fleet/tls/pem.py: errors that name the wrong input of TLS and the reason."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from fleet.config.settings import ListenerTlsSettings
from fleet.tls.listeners import server_context
from fleet.tls.peers import explain
from fleet.tls.pem import UnusableInput, load_authorities, load_pair, pem_fault, set_ciphers
from fleet.tls.reloading import Reloading
from tests.certificates import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.issue("p1")


def server() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def refusal(pair: Pair) -> UnusableInput:
    with pytest.raises(UnusableInput) as caught:
        load_pair(server(), pair.certificate, pair.key, ("probe_certificate", "probe_key"))
    return caught.value


def test_key_of_another_certificate_is_blamed_on_the_key(authority: Authority, pair: Pair) -> None:
    other = authority.issue("p2")
    error = refusal(Pair(pair.certificate, other.key))
    assert (error.field, error.value) == ("probe_key", str(other.key))
    assert error.rule == f"is not the key of {pair.certificate}"


def test_file_that_cannot_be_read_is_blamed_on_its_field(pair: Pair, tmp_path: Path) -> None:
    assert refusal(Pair(tmp_path / "none", pair.key)).field == "probe_certificate"
    error = refusal(Pair(pair.certificate, tmp_path))
    assert str(error) == f"probe_key: {tmp_path}: cannot be read (is a directory); name the file in it"
    assert explain(error) == str(error), "a log line has the same words"


@pytest.mark.parametrize("style", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_encrypted_key_is_named_as_encrypted(pair: Pair, style: PrivateFormat) -> None:
    key = load_pem_private_key(pair.key.read_bytes(), None)
    pair.key.write_bytes(key.private_bytes(Encoding.PEM, style, BestAvailableEncryption(b"secret")))
    error = refusal(pair)
    assert (error.field, error.rule) == ("probe_key", "is encrypted")


def test_swapped_files_are_named(pair: Pair) -> None:
    error = refusal(Pair(pair.key, pair.certificate))
    assert (error.field, error.rule) == (
        "probe_certificate",
        "contains a private key, but no certificate",
    )
    error = refusal(Pair(pair.certificate, pair.certificate))
    assert (error.field, error.rule) == ("probe_key", "contains a certificate, but no private key")


def test_other_formats_are_named_with_their_conversion(authority: Authority, pair: Pair) -> None:
    chain = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    key = load_pem_private_key(pair.key.read_bytes(), None)
    der = chain.public_bytes(Encoding.DER)
    assert pem_fault(der, "certificate") == (
        "is DER, not PEM",
        "convert it: openssl x509 -inform der -in FILE -out FILE.pem",
    )
    secret = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    found = pem_fault(secret, "private key")
    assert found is not None
    assert found[1] == "convert it: openssl pkey -inform der -in FILE -out FILE.pem"
    bundle = pkcs12.serialize_key_and_certificates(b"p1", key, chain, None, NoEncryption())  # type: ignore[arg-type]
    found = pem_fault(bundle, "certificate")
    assert found is not None
    assert found[0] == "is PKCS#12, not PEM"
    found = pem_fault(b"\xfe\xed\xfe\xed\x00\x00\x00\x02", "certificate")
    assert found is not None
    assert found[0] == "is a Java keystore, not PEM"


def test_damaged_certificate_is_not_blamed_on_the_key(pair: Pair) -> None:
    lines = pair.certificate.read_bytes().splitlines(keepends=True)
    pair.certificate.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    error = refusal(pair)
    assert error.field == "probe_certificate"
    assert error.rule.startswith("is not a PEM certificate that OpenSSL can read (")


def test_joined_files_without_a_line_break_are_reported(authority: Authority) -> None:
    whole = authority.certificate.read_bytes()
    authority.certificate.write_bytes(whole.rstrip() + whole)
    with pytest.raises(UnusableInput, match=r"client_ca: .*: line \d+ has text before -----BEGIN"):
        load_authorities(server(), authority.certificate, "client_ca")


@pytest.mark.parametrize("ciphers", ["ROT13", "TLS_AES_128_GCM_SHA256", "A\0B"])
def test_invalid_cipher_list_names_field_rule_and_fix(ciphers: str) -> None:
    with pytest.raises(
        UnusableInput, match=r"^ciphers: .*is not a list of TLS 1\.2 ciphers that OpenSSL knows; write"
    ):
        set_ciphers(server(), ciphers)


def test_member_that_runs_logs_the_field_and_the_fix(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ListenerTlsSettings(pair.certificate, pair.key)
    followed = Reloading(tls.files.values(), lambda: server_context(tls), "certificates of listener external")
    before = followed.get()
    pair.key.write_bytes(b"\xef\xbb\xbf" * 2 + pair.key.read_bytes())
    assert followed.get() is before
    error_text = (
        rf"keeping the previous one: key: {pair.key}: the file begins with a byte-order mark; save it"
    )
    assert re.search(error_text, caplog.text)
