"""Creates and renews the certificates for links between members: an authority, and one for each member.

``make`` fills a folder: ``ca.pem`` and ``ca-key.pem`` of the authority, ``ID.crt`` and ``ID.key`` for each
member. A member receives only ``ca.pem`` and its own two files. ``ca-key.pem`` belongs on no member.
"""

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
from fleet.tls.pem import PemKind, pem_fault

CA: Final = "ca.pem"
CA_KEY: Final = "ca-key.pem"
CA_DAYS: Final = 3650
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
NO_HOSTS: Final[Mapping[ProxyId, Sequence[str]]] = {}
_BACKDATED: Final = timedelta(hours=1)
"""A machine whose clock is slow must accept a new certificate immediately."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Authority:
    """The certificate and key that sign the certificates of members."""

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
    """Create an authority for one fleet, and a certificate and key for each member.

    Args:   hosts: names and addresses for a member's certificate, in addition to its id
    Raises: CertificateError: one of the files already exists, or cannot be written
    """
    files = [member_files(folder, proxy_id) for proxy_id in members]
    paths = [folder / CA, folder / CA_KEY, *(path for each in files for path in (each.certificate, each.key))]
    existing = [str(path) for path in paths if path.exists()]
    if existing:
        raise CertificateError(
            f"{existing[0]}: already exists and is not overwritten; replace the certificates of members with "
            "`fleet certs renew`, or choose a new folder with --out"
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
    """Replace the certificates and keys of members, signed by the authority in the folder.

    Args:   hosts: names and addresses for a member's certificate, in addition to its id
    Raises: CertificateError: the authority is missing or has expired, or a file cannot be written
    """
    certificate = _load_authority(folder / CA, "certificate", x509.load_pem_x509_certificate)
    key = _load_authority(folder / CA_KEY, "private key", lambda raw: load_pem_private_key(raw, None))
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        raise CertificateError(f"{folder}: {CA_KEY} is not the key of {CA}; restore both from one backup")
    if certificate.not_valid_after_utc <= now:
        raise CertificateError(f"{folder / CA}: has expired; create a new one with `fleet certs init`")
    until = min(now + timedelta(days=days), certificate.not_valid_after_utc)
    for proxy_id in members:
        _issue(Authority(certificate, key), fleet, proxy_id, folder, until, now, hosts.get(proxy_id, ()))


def _load_authority(path: Path, kind: PemKind, load: Callable[[bytes], T]) -> T:
    """Load one of the two files of an authority. Raises: CertificateError: the file cannot be used."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        rule = f"cannot be read ({str(error.strerror).lower()})"
        raise CertificateError(f"{path}: {rule}; set the folder of `fleet certs init` with --out") from error
    try:
        return load(raw)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        rule, fix = pem_fault(raw, kind) or (f"is not a PEM {kind}", "set the right folder with --out")
        raise CertificateError(f"{path}: was not written by `fleet certs init`: {rule}; {fix}") from error


def member_hosts(settings: Settings) -> dict[ProxyId, tuple[str, ...]]:
    """The hosts of each member at which clients may dial its admin address: admin, peer and loopback.

    Members verify only the id in each other's certificates. Commands and Prometheus verify the host.
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


def member_files(folder: Path, proxy_id: ProxyId) -> PeerTlsFiles:
    """The files of one member in a folder that ``make`` fills."""
    return PeerTlsFiles(folder / CA, folder / f"{proxy_id}.crt", folder / f"{proxy_id}.key")


def next_steps(settings: Settings, members: Sequence[ProxyId], folder: Path) -> tuple[str, ...]:
    """What an operator must do with the files that ``make`` or ``renew`` has written to a folder."""
    steps = []
    for proxy_id in members:
        source = member_files(folder, proxy_id)
        line = f"copy to the machine of {proxy_id}: {source.ca}, {source.certificate}, {source.key}"
        if settings.peer_tls is not None:
            target = settings.peer_tls.files(proxy_id)
            line += f" (as {target.ca}, {target.certificate}, {target.key})"
        steps.append(f"{line}; make the key readable only for the user of the member")
    if settings.peer_tls is None:
        steps.append(
            "add `peer_tls:` to the configuration; without further fields, members read certs/ next to the "
            "configuration file"
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
    files = member_files(folder, proxy_id)
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
    """Replace a whole file atomically, with its final mode from the beginning."""
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
        rule = f"cannot be written ({str(error.strerror).lower()})"
        raise CertificateError(f"{path}: {rule}; check the folder and its owner") from error
