"""Checks the certificates, keys and credentials that a configuration names, and reports every mistake."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
)

from fleet.config import (
    AdminTlsSettings,
    ListenerTlsSettings,
    PeerTlsSettings,
    Settings,
    UpstreamTlsSettings,
    is_wildcard,
)
from fleet.config.document import Problem
from fleet.core.errors import ConfigError
from fleet.core.file_faults import read_fault
from fleet.core.model import Endpoint, ProxyId
from fleet.tls.brokers import broker_context
from fleet.tls.issuing import T
from fleet.tls.listeners import probe_context, server_context
from fleet.tls.peers import check_handshake, explain, make_contexts, member_uri
from fleet.tls.pem import PemKind, UnusableInput, load_pair, pem_fault, verifying_context

# ------------------------------------------------------------------------------------------------- expiry


def file_expiry(path: Path) -> datetime | None:
    """The expiry of the first certificate in a PEM file; None if the file has no certificate."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None


def der_expiry(certificate: bytes) -> datetime:
    """The expiry of a certificate in DER, as a peer presents it."""
    return x509.load_der_x509_certificate(certificate).not_valid_after_utc


# ----------------------------------------------------------------------------------------------- checking


class _SectionChecker:
    """Reads the files of one member from one section of the configuration, and records the mistakes.

    Args:
        section: the path of the section.
        lines: the line of each field.
        files: the file of each field.
        must_be_there: whether a file that cannot be read is a mistake.
        source: where such files come from, for fixes.
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
        """Whether every file was found and parsed."""
        self.files = files
        self._section = section
        self._lines = lines
        self._must_be_there = must_be_there
        self._source = source

    def report(self, field: str, rule: str, fix: str) -> None:
        shown = str(self.files.get(field, ""))
        self.problems.append(Problem(self._lines[field], (*self._section, field), shown, rule, fix))

    def report_unusable(self, error: UnusableInput) -> None:
        """Record an input that OpenSSL rejects although all files of the section could be read."""
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
        else:  # the input is an environment variable
            self.problems.append(Problem(0, (error.field,), error.value, error.rule, error.fix))

    def read(self, field: str, kind: PemKind, load: Callable[[bytes], T]) -> T | None:
        """The parsed content of a file; None if the file is missing or wrong."""
        raw = self._read_bytes(field)
        if raw is None:
            self.complete = False
            return None
        try:
            return load(raw)
        except UnsupportedAlgorithm:
            rule = "uses an algorithm that is not supported"
            self.report(field, rule, "issue the certificate with RSA or EC")
        except (TypeError, ValueError):  # TypeError: the key is encrypted
            other = f"is not a PEM {kind}", f"name the right file; {self._source}"
            self.report(field, *(pem_fault(raw, kind) or other))
        self.complete = False
        return None

    def _read_bytes(self, field: str) -> bytes | None:
        try:
            return self.files[field].read_bytes()
        except FileNotFoundError:
            if self._must_be_there:
                self.report(field, "file not found", f"copy the file to this path; {self._source}")
        except (OSError, ValueError) as error:
            if self._must_be_there:
                self.report(field, *read_fault(error))
        return None

    def authorities(self, field: str) -> None:
        """Check a file of certificates, of which at least one must be valid now."""
        found = self.read(field, "certificate", x509.load_pem_x509_certificates)
        now = datetime.now(UTC)
        if found is not None and not any(_is_valid(each, now) for each in found):
            fix = "create a new authority, and keep both in this file during the rotation"
            self.report(field, _validity(found[0]), fix)

    def pair(self, certificate: str, key: str) -> x509.Certificate | None:
        """Check that a certificate is valid now and that the key belongs to it. Returns the certificate."""
        chain = self.read(certificate, "certificate", x509.load_pem_x509_certificates)
        private = self.read(key, "private key", lambda raw: load_pem_private_key(raw, None))
        if chain is not None and not _is_valid(chain[0], datetime.now(UTC)):
            fix = (
                "renew the certificate (with `fleet certs renew` for member links), "
                "or correct the clock of this machine"
            )
            self.report(certificate, _validity(chain[0]), fix)
        if chain is not None and private is not None and not _is_key_of(chain[0], private):
            rule = f"is not the key of {self.files[certificate]}"
            self.report(key, rule, "copy certificate and key from the same place")
        return None if chain is None else chain[0]


def check_member(settings: Settings, proxy_id: ProxyId) -> None:
    """Read the files that a member needs on its own machine, and verify them as its peers will.

    Raises: ConfigError: every mistake, one line each
    """
    _raise(settings, _problems(settings, proxy_id, must_be_there=True))


def check_present(settings: Settings) -> tuple[ProxyId, ...]:
    """Verify the files of all members that are on this machine.

    Returns: the members with files that are not on this machine
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
    """Read the certificates, and the password or token, for connections to the brokers.

    Returns: the files and variables that are not on this machine
    Raises:  ConfigError: every mistake, one line each; with ``must_be_there`` also what is missing
    """
    mistakes, elsewhere = [], []
    tls, sasl = settings.upstream.tls, settings.upstream.sasl
    if tls is not None:
        mistakes += [each.text(settings.source) for each in _upstream_problems(tls, must_be_there)]
        elsewhere += [str(path) for path in tls.files.values() if not os.access(path, os.R_OK)]
    if sasl is not None:
        if must_be_there or sasl.secret.is_available():
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
    source = "request it from the operator of the brokers"
    checker = _SectionChecker(("upstream", "tls"), tls.lines, tls.files, must_be_there, source)
    if tls.ca is not None:
        checker.authorities("ca")
    if tls.certificate is not None:
        checker.pair("certificate", "key")
    if not checker.problems and checker.complete:
        try:
            broker_context(tls)
        except UnusableInput as error:
            checker.report_unusable(error)
    return checker.problems


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
        own = settings.admin.tls.for_member(proxy_id)
        yield from (own.certificate, own.key)  # only clients of the admin address need the authority


def _listeners(settings: Settings, proxy_id: ProxyId) -> Mapping[str, ListenerTlsSettings]:
    if settings.members[proxy_id].witness:
        return {}
    return {name: tls.for_member(proxy_id) for name, tls in settings.listener_tls.items()}


def _problems(settings: Settings, proxy_id: ProxyId, *, must_be_there: bool) -> list[Problem]:
    problems: list[Problem] = []
    if settings.peer_tls is not None:
        problems += _peer_problems(settings, settings.peer_tls, proxy_id, must_be_there)
    for name, tls in _listeners(settings, proxy_id).items():
        problems += _listener_problems(name, tls, must_be_there)
    if settings.admin.tls is not None:
        address = settings.member(proxy_id).admin
        problems += _admin_problems(settings.admin.tls.for_member(proxy_id), address, must_be_there)
    return problems


def _peer_problems(
    settings: Settings, peer_tls: PeerTlsSettings, proxy_id: ProxyId, must_be_there: bool
) -> list[Problem]:
    own = peer_tls.files(proxy_id)
    files = {"ca": own.ca, "certificate": own.certificate, "key": own.key}
    checker = _SectionChecker(
        ("peer_tls",), peer_tls.lines, files, must_be_there, "`fleet certs init` creates it"
    )
    checker.authorities("ca")
    certificate = checker.pair("certificate", "key")
    uri = member_uri(settings.fleet, proxy_id)
    if certificate is not None and uri not in (uris := _uris(certificate)):
        rule = f"must name {uri}, but names {', '.join(uris) or 'no member'}"
        checker.report("certificate", rule, "issue it with this URI as a subject alternative name")
    if not checker.problems and checker.complete:
        try:
            check_handshake(*make_contexts(own))
        except UnusableInput as error:
            checker.report_unusable(error)
        except OSError as error:
            fix = "issue it by an authority in peer_tls.ca, for server and client authentication"
            checker.report("certificate", f"other members would refuse the links: {explain(error)}", fix)
    return checker.problems


def _listener_problems(name: str, tls: ListenerTlsSettings, must_be_there: bool) -> list[Problem]:
    source = "it comes from the authority that clients trust"
    checker = _SectionChecker(("listener_tls", name), tls.lines, tls.files, must_be_there, source)
    checker.pair("certificate", "key")
    if tls.client_ca is not None:
        checker.authorities("client_ca")
    if tls.probe_certificate is not None:
        checker.pair("probe_certificate", "probe_key")
    if checker.problems or not checker.complete:
        return checker.problems
    try:
        check_handshake(server_context(tls), probe_context(tls))
    except UnusableInput as error:
        checker.report_unusable(error)
    except OSError as error:
        field = "certificate" if tls.probe_certificate is None else "probe_certificate"
        fix = (
            "issue `certificate` for server authentication, and `probe_certificate` for client "
            "authentication by an authority in client_ca"
        )
        checker.report(field, f"members could not probe this listener: {explain(error)}", fix)
    return checker.problems


def _admin_problems(tls: AdminTlsSettings, address: Endpoint, must_be_there: bool) -> list[Problem]:
    checker = _SectionChecker(
        ("admin", "tls"), tls.lines, tls.files, must_be_there, "`fleet certs init` creates it"
    )
    # A member does not need the authority. Without its file, the certificate is verified against itself.
    trusted = tls.certificate
    if tls.ca is not None and os.access(tls.ca, os.R_OK):
        checker.authorities("ca")
        trusted = tls.ca
    checker.pair("certificate", "key")
    if checker.problems or not checker.complete:
        return checker.problems
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        load_pair(server, tls.certificate, tls.key)
        client = verifying_context(trusted, "certificate" if trusted is tls.certificate else "ca")
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        client.check_hostname = not is_wildcard(address.host)
        check_handshake(server, client, address.tls_name)
    except UnusableInput as error:
        checker.report_unusable(error)
    except OSError as error:
        fix = (
            f"issue the certificate for {address.host} and for server authentication, "
            "by an authority in admin.tls.ca"
        )
        problem = f"`fleet` commands would refuse this certificate: {explain(error)}"
        checker.report("certificate", problem, fix)
    return checker.problems


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):  # ValueError: the extensions cannot be parsed
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _is_key_of(certificate: x509.Certificate, key: PrivateKeyTypes) -> bool:
    """Whether a key belongs to a certificate. True for unsupported algorithms, which OpenSSL checks later."""
    try:
        return certificate.public_key() == key.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return True


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _validity(certificate: x509.Certificate) -> str:
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return f"is not valid now, but only from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"
