"""A certificate authority for tests: certificates for listeners, brokers and clients."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """The PEM files of a certificate and of its key."""

    certificate: Path
    key: Path

    @property
    def both(self) -> Path:
        """One file with both, a format of Kafka and OpenSSL."""
        file = self.certificate.with_suffix(".pem")
        file.write_bytes(self.key.read_bytes() + self.certificate.read_bytes())
        return file


class Authority:
    """Issues certificates into one folder. Its own certificate is `NAME.pem`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority")])
        builder = self._builder(self._name, self._key, datetime.now(UTC) + 7 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = folder / f"{name}.pem"
        signed = builder.sign(self._key, hashes.SHA256())
        self.certificate.write_bytes(signed.public_bytes(Encoding.PEM))

    def issue(self, name: str, hosts: Sequence[str] = ("127.0.0.1",), until: datetime | None = None) -> Pair:
        """Issue a certificate for servers at these hosts and for a client of that name; replaces an older
        one."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key, until or datetime.now(UTC) + 7 * DAY)
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        made = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        signed = builder.sign(self._key, hashes.SHA256())
        made.key.write_bytes(private)
        made.certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        return made

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, until: datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(until, datetime.now(UTC)) - DAY)
            .not_valid_after(until)
        )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
