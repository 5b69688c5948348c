"""Certificates for the links of members, made and renewed: an authority, and one for each member."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleet.config import (
    PeerTlsFiles,
    Settings,
    is_wildcard,
)
from fleet.core.errors import CertificateError
from fleet.core.model import ProxyId
from fleet.tls.peers import member_uri
from fleet.tls.pem import What, pem_fault

CA: Final = "ca.pem"
CA_KEY: Final = "ca-key.pem"
CA_DAYS: Final = 3650
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
NO_HOSTS: Final[Mapping[ProxyId, Sequence[str]]] = {}
_BACKDATED: Final = timedelta(hours=1)
"""So that a machine whose clock is a little behind takes a new certificate at once."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Authority:
    """Who signs, with the key where that is at hand."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make(
    fleet: str,
    members: Sequence[ProxyId],
    folder: Path,
    days: int,
    now: datetime,
    hosts: Mapping[ProxyId, Sequence[str]] = NO_HOSTS,
) -> None:
    """An authority for one fleet, and a certificate and key for each member.

    Args:   hosts: names and addresses that a member's certificate is issued for, beside its id
    Raises: CertificateError: one of the files is there already, or cannot be written
    """
    ours = [files_in(folder, proxy_id) for proxy_id in members]
    paths = [folder / CA, folder / CA_KEY, *(path for each in ours for path in (each.certificate, each.key))]
    there = [str(path) for path in paths if path.exists()]
    if there:
        raise CertificateError(
            f"{there[0]}: is there already, and nothing is overwritten; `fleet certs renew` replaces "
            "members' certificates, another --out starts afresh"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"{fleet} members")
    builder = _builder(name, name, key, now, now + timedelta(days=max(CA_DAYS, days)))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    authority = Authority(builder.sign(key, hashes.SHA256()), key)
    _write(folder / CA_KEY, _private(key), 0o600)
    _write(folder / CA, authority.certificate.public_bytes(Encoding.PEM), 0o644)
    for proxy_id in members:
        _issue(authority, fleet, proxy_id, folder, now + timedelta(days=days), now, hosts.get(proxy_id, ()))


def renew(
    fleet: str,
    members: Sequence[ProxyId],
    folder: Path,
    days: int,
    now: datetime,
    hosts: Mapping[ProxyId, Sequence[str]] = NO_HOSTS,
) -> None:
    """New certificates and keys, by the authority in the folder, in the place of those there are.

    Args:   hosts: as of ``make``
    Raises: CertificateError: the authority is not there, or has expired, or a file cannot be written
    """
    certificate = _own(folder / CA, "certificate", x509.load_pem_x509_certificate)
    key = _own(folder / CA_KEY, "private key", lambda raw: load_pem_private_key(raw, None))
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        raise CertificateError(f"{folder}: {CA_KEY} is not the key of {CA}")
    if certificate.not_valid_after_utc <= now:
        raise CertificateError(f"{folder / CA}: has expired; start afresh with `fleet certs init`")
    until = min(now + timedelta(days=days), certificate.not_valid_after_utc)
    for proxy_id in members:
        _issue(Authority(certificate, key), fleet, proxy_id, folder, until, now, hosts.get(proxy_id, ()))


def _own(path: Path, what: What, load: Callable[[bytes], T]) -> T:
    """One of the two files of an authority. Raises: CertificateError: it cannot be used."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CertificateError(
            f"{path}: {error.strerror}; name the folder of `fleet certs init` with --out"
        ) from error
    try:
        return load(raw)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        rule, fix = pem_fault(raw, what) or (f"is not a PEM {what}", "name the right folder with --out")
        raise CertificateError(f"{path}: is not what `fleet certs init` wrote: {rule}; {fix}") from error


def hosts_of(settings: Settings) -> dict[ProxyId, tuple[str, ...]]:
    """By member, where its admin address is asked: there, at the address for its peers, and on its machine.

    Members know each other by their ids alone; commands and Prometheus look at the host.
    """
    return {
        proxy_id: tuple(
            dict.fromkeys(
                host.partition("%")[0]
                for host in (member.admin.host, member.peer.host, *LOOPBACK)
                if not is_wildcard(host)
            )
        )
        for proxy_id, member in settings.members.items()
    }


def files_in(folder: Path, proxy_id: ProxyId) -> PeerTlsFiles:
    """The files of one member in a folder that ``make`` fills."""
    return PeerTlsFiles(folder / CA, folder / f"{proxy_id}.crt", folder / f"{proxy_id}.key")


def next_steps(settings: Settings, members: Sequence[ProxyId], folder: Path) -> tuple[str, ...]:
    """What an operator does with the files that ``make`` or ``renew`` has just written to a folder."""
    steps = []
    for proxy_id in members:
        made = files_in(folder, proxy_id)
        line = f"copy to the machine of {proxy_id}: {made.ca}, {made.certificate}, {made.key}"
        if settings.peer_tls is not None:
            wanted = settings.peer_tls.files(proxy_id)
            line += f" (as {wanted.ca}, {wanted.certificate}, {wanted.key})"
        steps.append(f"{line}; the key is for the user alone who runs it")
    if settings.peer_tls is None:
        steps.append(
            "add `peer_tls:` to the configuration; without fields below it, members look into certs/ beside "
            "the file"
        )
    steps.append(f"keep {folder / CA_KEY} off these machines: anyone who has it can impersonate any member")
    return tuple(steps)


def _issue(
    authority: Authority,
    fleet: str,
    proxy_id: ProxyId,
    folder: Path,
    until: datetime,
    now: datetime,
    hosts: Sequence[str],
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    uri = x509.UniformResourceIdentifier(member_uri(fleet, proxy_id))
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _builder(_name(proxy_id), authority.certificate.subject, key, now, until)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([uri, *map(_host_name, hosts)]), critical=False
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    files = files_in(folder, proxy_id)
    _write(files.key, _private(key), 0o600)
    _write(files.certificate, builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM), 0o644)


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host.rstrip("."))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _BACKDATED).not_valid_after(until)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, mode: int) -> None:
    """The whole file at once, and nobody else's to read for a moment."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise CertificateError(f"{path}: cannot be written ({error.strerror})") from error
