"""Certificates of member links: makes them, and says what is wrong with those, and with all others.

A folder that ``make`` has filled: ``ca.pem`` and ``ca-key.pem``, the authority; ``ID.crt`` and ``ID.key`` for
each member. Only ``ca.pem`` and its own two files go to a member; ``ca-key.pem`` belongs on none of them.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleet.config import (
    AdminTlsSettings,
    ListenerTlsSettings,
    PeerTlsFiles,
    PeerTlsSettings,
    Settings,
    UpstreamTlsSettings,
    is_wildcard,
)
from fleet.config.document import Problem
from fleet.core.errors import CertificateError, ConfigError
from fleet.core.file_faults import read_fault
from fleet.core.model import Endpoint, ProxyId
from fleet.tls.brokers import broker_context
from fleet.tls.listeners import probe_context, server_context
from fleet.tls.peers import explain, make_contexts, member_uri, rehearse
from fleet.tls.pem import UnusableInput, What, load_pair, pem_fault, verifying_context

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


# ------------------------------------------------------------------------------------------------- making


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
    steps.append(f"keep {folder / CA_KEY} off these machines: whoever has it can be any member")
    return tuple(steps)


def expiry(path: Path) -> datetime | None:
    """When the first certificate in a file expires; None where there is none."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None


def expires(certificate: bytes) -> datetime:
    """When a certificate expires that somebody has shown; DER."""
    return x509.load_der_x509_certificate(certificate).not_valid_after_utc


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


# ----------------------------------------------------------------------------------------------- checking


class _Reader:
    """Reads the files of one member that one section of the configuration names, and notes what is wrong.

    Args:
        section: where the section stands.
        lines: where each of its fields does.
        files: by field.
        must_be_there: whether a file that cannot be read is a mistake.
        source: where such files come from.
    """

    def __init__(
        self,
        section: tuple[str, ...],
        lines: Mapping[str, int],
        files: Mapping[str, Path],
        must_be_there: bool,
        source: str,
    ) -> None:
        self.problems: list[Problem] = []
        self.complete = True
        """Whether every file that was read is there, and is what it should be."""
        self.files = files
        self._section = section
        self._lines = lines
        self._must_be_there = must_be_there
        self._source = source

    def report(self, field: str, rule: str, fix: str) -> None:
        shown = str(self.files.get(field, ""))
        self.problems.append(Problem(self._lines[field], (*self._section, field), shown, rule, fix))

    def report_unusable(self, error: UnusableInput) -> None:
        """Note what OpenSSL does not take, of a section whose files have all been read."""
        if error.field in self._lines:
            self.problems.append(
                Problem(
                    self._lines[error.field],
                    (*self._section, error.field),
                    error.value,
                    error.rule,
                    error.fix,
                )
            )
        else:  # it is of the environment
            self.problems.append(Problem(0, (error.field,), error.value, error.rule, error.fix))

    def read(self, field: str, what: What, load: Callable[[bytes], T]) -> T | None:
        """What a file holds; None where there is none, or it is wrong."""
        raw = self._read_bytes(field)
        if raw is None:
            self.complete = False
            return None
        try:
            return load(raw)
        except UnsupportedAlgorithm:
            self.report(field, "uses an algorithm that is not known here", "issue it with RSA or EC")
        except (TypeError, ValueError):  # the former: it is encrypted
            other = f"is not a PEM {what}", f"name the right file; {self._source}"
            self.report(field, *(pem_fault(raw, what) or other))
        self.complete = False
        return None

    def _read_bytes(self, field: str) -> bytes | None:
        try:
            return self.files[field].read_bytes()
        except FileNotFoundError:
            if self._must_be_there:
                self.report(field, "there is no such file", f"copy it here; {self._source}")
        except (OSError, ValueError) as error:
            if self._must_be_there:
                self.report(field, *read_fault(error))
        return None

    def authorities(self, field: str) -> None:
        """Certificates of which one has to be valid now."""
        found = self.read(field, "certificate", x509.load_pem_x509_certificates)
        now = datetime.now(UTC)
        if found is not None and not any(_is_valid(each, now) for each in found):
            self.report(field, _validity(found[0]), "make a new authority, and name both while you rotate")

    def pair(self, certificate: str, key: str) -> x509.Certificate | None:
        """A certificate that is valid now, and whose key is the other one."""
        chain = self.read(certificate, "certificate", x509.load_pem_x509_certificates)
        private = self.read(key, "private key", lambda raw: load_pem_private_key(raw, None))
        if chain is not None and not _is_valid(chain[0], datetime.now(UTC)):
            fix = "renew it (`fleet certs renew` those of member links), or check the clock of this machine"
            self.report(certificate, _validity(chain[0]), fix)
        if chain is not None and private is not None and not _fits(chain[0], private):
            rule = f"is not the key of {self.files[certificate]}"
            self.report(key, rule, "copy certificate and key from the same place")
        return None if chain is None else chain[0]


def check_member(settings: Settings, proxy_id: ProxyId) -> None:
    """Read the files that a member needs on its own machine, and verify them as others will.

    Raises: ConfigError: every mistake, one line each
    """
    _raise(settings, _problems(settings, proxy_id, must_be_there=True))


def check_present(settings: Settings) -> tuple[ProxyId, ...]:
    """Verify the files of all members as far as they are on this machine.

    Returns: the members whose files are not all here
    Raises:  ConfigError: every mistake, one line each
    """
    problems: list[Problem] = []
    elsewhere = []
    for proxy_id in settings.members:
        problems += _problems(settings, proxy_id, must_be_there=False)
        if not all(os.access(path, os.R_OK) for path in _files(settings, proxy_id)):
            elsewhere.append(proxy_id)
    _raise(settings, problems)
    return tuple(elsewhere)


def check_upstream(settings: Settings, *, must_be_there: bool) -> tuple[str, ...]:
    """Read the certificates, and the password or token, for the way to the brokers.

    Returns: the files and variables that are not here
    Raises:  ConfigError: every mistake, one line each; with ``must_be_there`` that something is not, too
    """
    mistakes, elsewhere = [], []
    tls, sasl = settings.upstream.tls, settings.upstream.sasl
    if tls is not None:
        mistakes += [each.text(settings.source) for each in _upstream_problems(tls, must_be_there)]
        elsewhere += [str(path) for path in tls.files.values() if not os.access(path, os.R_OK)]
    if sasl is not None:
        if must_be_there or sasl.secret.is_here():
            try:
                sasl.secret.read(settings.source)
            except ConfigError as error:
                mistakes.append(str(error))
        else:
            elsewhere.append(sasl.secret.where)
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return tuple(elsewhere)


def _upstream_problems(tls: UpstreamTlsSettings, must_be_there: bool) -> list[Problem]:
    source = "ask who runs the brokers for it"
    reader = _Reader(("upstream", "tls"), tls.lines, tls.files, must_be_there, source)
    if tls.ca is not None:
        reader.authorities("ca")
    if tls.certificate is not None:
        reader.pair("certificate", "key")
    if not reader.problems and reader.complete:
        try:
            broker_context(tls)
        except UnusableInput as error:
            reader.report_unusable(error)
    return reader.problems


def _raise(settings: Settings, problems: Sequence[Problem]) -> None:
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(each.text(settings.source) for each in problems)))


def _files(settings: Settings, proxy_id: ProxyId) -> Iterator[Path]:
    if settings.peer_tls is not None:
        files = settings.peer_tls.files(proxy_id)
        yield from (files.ca, files.certificate, files.key)
    for listener in _listeners(settings, proxy_id).values():
        yield from listener.files.values()
    if settings.admin.tls is not None:
        own = settings.admin.tls.of(proxy_id)
        yield from (own.certificate, own.key)  # the authority is for who asks


def _listeners(settings: Settings, proxy_id: ProxyId) -> Mapping[str, ListenerTlsSettings]:
    if settings.members[proxy_id].witness:
        return {}
    return {name: tls.of(proxy_id) for name, tls in settings.listener_tls.items()}


def _problems(settings: Settings, proxy_id: ProxyId, *, must_be_there: bool) -> list[Problem]:
    problems: list[Problem] = []
    if settings.peer_tls is not None:
        problems += _peer_problems(settings, settings.peer_tls, proxy_id, must_be_there)
    for name, tls in _listeners(settings, proxy_id).items():
        problems += _listener_problems(name, tls, must_be_there)
    if settings.admin.tls is not None:
        at = settings.member(proxy_id).admin
        problems += _admin_problems(settings.admin.tls.of(proxy_id), at, must_be_there)
    return problems


def _peer_problems(
    settings: Settings, peer_tls: PeerTlsSettings, proxy_id: ProxyId, must_be_there: bool
) -> list[Problem]:
    own = peer_tls.files(proxy_id)
    files = {"ca": own.ca, "certificate": own.certificate, "key": own.key}
    reader = _Reader(("peer_tls",), peer_tls.lines, files, must_be_there, "`fleet certs init` makes it")
    reader.authorities("ca")
    certificate = reader.pair("certificate", "key")
    uri = member_uri(settings.fleet, proxy_id)
    if certificate is not None and uri not in (uris := _uris(certificate)):
        rule = f"names {', '.join(uris) or 'nobody'}, and must name {uri}"
        reader.report("certificate", rule, "issue it with that URI as a subject alternative name")
    if not reader.problems and reader.complete:
        try:
            rehearse(*make_contexts(own))
        except UnusableInput as error:
            reader.report_unusable(error)
        except OSError as error:
            fix = "have it issued by an authority in peer_tls.ca, for servers and for clients"
            reader.report("certificate", f"links would be refused: {explain(error)}", fix)
    return reader.problems


def _listener_problems(name: str, tls: ListenerTlsSettings, must_be_there: bool) -> list[Problem]:
    source = "it comes from the authority that clients trust"
    reader = _Reader(("listener_tls", name), tls.lines, tls.files, must_be_there, source)
    reader.pair("certificate", "key")
    if tls.client_ca is not None:
        reader.authorities("client_ca")
    if tls.probe_certificate is not None:
        reader.pair("probe_certificate", "probe_key")
    if reader.problems or not reader.complete:
        return reader.problems
    try:
        rehearse(server_context(tls), probe_context(tls))
    except UnusableInput as error:
        reader.report_unusable(error)
    except OSError as error:
        field = "certificate" if tls.probe_certificate is None else "probe_certificate"
        fix = "have it issued for servers; that of the probe for clients, by an authority in client_ca"
        reader.report(field, f"members could not ask each other here: {explain(error)}", fix)
    return reader.problems


def _admin_problems(tls: AdminTlsSettings, at: Endpoint, must_be_there: bool) -> list[Problem]:
    reader = _Reader(("admin", "tls"), tls.lines, tls.files, must_be_there, "`fleet certs init` makes it")
    # Where the authority is not here, which a member does not need, the certificate is taken for its own.
    judge = tls.certificate
    if tls.ca is not None and os.access(tls.ca, os.R_OK):
        reader.authorities("ca")
        judge = tls.ca
    reader.pair("certificate", "key")
    if reader.problems or not reader.complete:
        return reader.problems
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        load_pair(server, tls.certificate, tls.key)
        client = verifying_context(judge, "certificate" if judge is tls.certificate else "ca")
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        client.check_hostname = not is_wildcard(at.host)
        rehearse(server, client, at.tls_name)
    except UnusableInput as error:
        reader.report_unusable(error)
    except OSError as error:
        fix = f"have it issued for {at.host}, for servers, by an authority in admin.tls.ca"
        reader.report("certificate", f"commands would refuse it: {explain(error)}", fix)
    return reader.problems


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):  # the latter: extensions that are no extensions
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _fits(certificate: x509.Certificate, key: PrivateKeyTypes) -> bool:
    """Whether the two belong together; also where that cannot be said here, and OpenSSL has to."""
    try:
        return certificate.public_key() == key.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return True


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _validity(certificate: x509.Certificate) -> str:
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return f"is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, and it is not now"
