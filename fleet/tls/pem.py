"""Loads certificates, keys and ciphers for TLS, with errors that name the wrong input.

OpenSSL's errors name neither a file nor a field, and one call takes several inputs. This module therefore
loads each input by a separate call, or checks each input separately after a call has failed.
"""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import Final, Literal, TypeAlias

from fleet.core.file_faults import Fault, encoding_fault, read_fault

PemKind: TypeAlias = Literal["certificate", "private key"]

_BEGIN: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
_BOM: Final = b"\xef\xbb\xbf"
_KEYSTORE: Final = b"\xfe\xed\xfe\xed"
"""Source: java.security.KeyStore, type JKS."""
_DER: Final = re.compile(rb"\x30[\x80-\x84]")
_PKCS12: Final = re.compile(rb"\x30(?:\x80|\x81.|\x82..|\x83...|\x84....)\x02\x01\x03", re.DOTALL)
"""Source: RFC 7292, section 4: a sequence that begins with the version, 3."""
_LABELS: Final[dict[PemKind, bytes]] = {"certificate": b"CERTIFICATE", "private key": b"PRIVATE KEY"}
_TO_PEM: Final[dict[PemKind, str]] = {
    "certificate": "convert it: openssl x509 -inform der -in FILE -out FILE.pem",
    "private key": "convert it: openssl pkey -inform der -in FILE -out FILE.pem",
}
_TOO_WEAK: Final = frozenset({"EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"})
"""OpenSSL's reasons for certificates below its security level."""
_KEY_LOG: Final = "SSLKEYLOGFILE"


class UnusableInput(ssl.SSLError):
    """One input of a TLS context cannot be used.

    Args:
        field: the field of the section that names the input.
        value: the value of the field: a path, or a list of ciphers.
        rule, fix: the rule that the input breaks, and what to write instead.
    """

    def __init__(self, field: str, value: object, rule: str, fix: str) -> None:
        super().__init__(f"{field}: {value}: {rule}; {fix}")
        self.field = field
        self.value = str(value)
        self.rule = rule
        self.fix = fix

    def __str__(self) -> str:
        return str(self.args[0])


def load_pair(
    context: ssl.SSLContext, certificate: Path, key: Path, fields: tuple[str, str] = ("certificate", "key")
) -> None:
    """Load the certificate that a context presents, and its key.

    Args:   fields: the names of the two fields in their section
    Raises: UnusableInput: a file cannot be read or is not PEM, or the key does not match the certificate
    """
    chain, private = _read(certificate, fields[0]), _read(key, fields[1])
    try:
        context.load_cert_chain(certificate, key, password="")  # never prompt on a terminal
    except ssl.SSLError as error:
        reason = _reason(error)
        if reason == "KEY_VALUES_MISMATCH":
            rule, fix = f"is not the key of {certificate}", "copy certificate and key from the same place"
            raise UnusableInput(fields[1], key, rule, fix) from error
        if reason in _TOO_WEAK:
            rule = f"is too weak for OpenSSL on this machine ({_words(error)})"
            fix = "issue it with SHA-256, and with an RSA key of 2048 bits or an EC key"
            raise UnusableInput(fields[0], certificate, rule, fix) from error
        if not _holds_certificates(certificate):
            raise _unusable_pem(fields[0], certificate, chain, "certificate", error) from error
        raise _unusable_pem(fields[1], key, private, "private key", error) from error


def load_authorities(context: ssl.SSLContext, path: Path, field: str) -> None:
    """Load the authorities by which a context verifies its peers.

    Raises: UnusableInput: the file cannot be read, or contains no certificate
    """
    raw = _read(path, field)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise _unusable_pem(field, path, raw, "certificate", error) from error


def verifying_context(ca: Path | None, field: str = "ca") -> ssl.SSLContext:
    """A client context that verifies servers by the authorities in a file, or by those of the system.

    Raises: UnusableInput: the file cannot be read or contains no certificate; or SSLKEYLOGFILE names a file
            that cannot be written
    """
    raw = b"" if ca is None else _read(ca, field)
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        if ca is None:
            raise
        raise _unusable_pem(field, ca, raw, "certificate", error) from error
    except OSError as error:
        log = os.environ.get(_KEY_LOG)
        if not log:
            raise
        rule = f"cannot be written ({str(error.strerror or error).lower()})"
        raise UnusableInput(_KEY_LOG, log, rule, "unset this variable") from error


def set_ciphers(context: ssl.SSLContext, ciphers: str, field: str = "ciphers") -> None:
    """Set the ciphers for TLS 1.2.

    Raises: UnusableInput: OpenSSL knows none of the ciphers
    """
    try:
        context.set_ciphers(ciphers)
    except (ssl.SSLError, ValueError) as error:  # ValueError: a character that no cipher list may contain
        rule = "is not a list of TLS 1.2 ciphers that OpenSSL knows"
        raise UnusableInput(field, ciphers, rule, "write a list that `openssl ciphers` accepts") from error


def pem_fault(raw: bytes, kind: PemKind) -> Fault | None:
    """Why a file is not a certificate, or not a private key, in PEM; None if no known cause applies."""
    if not raw.strip():
        return "is empty", f"write the {kind} into this file"
    return _other_format(raw, kind) or _other_block(raw, kind) or _broken_line(raw)


def _other_format(raw: bytes, kind: PemKind) -> Fault | None:
    if raw.startswith(_KEYSTORE):
        return "is a Java keystore, not PEM", "convert it: keytool -importkeystore, then openssl pkcs12"
    if _PKCS12.match(raw):
        return "is PKCS#12, not PEM", "convert it: openssl pkcs12 -in FILE -nodes -out FILE.pem"
    if _DER.match(raw):
        return "is DER, not PEM", _TO_PEM[kind]
    return encoding_fault(raw)


def _other_block(raw: bytes, kind: PemKind) -> Fault | None:
    labels = [found[1] for found in _BEGIN.finditer(raw)]
    if not labels:
        return None
    if not any(label.endswith(_LABELS[kind]) for label in labels):
        label = labels[0].decode().lower()
        return f"contains a {label}, but no {kind}", "name the right file"
    if kind == "private key" and (b"ENCRYPTED PRIVATE KEY" in labels or b"Proc-Type: 4,ENCRYPTED" in raw):
        return "is encrypted", "remove its passphrase, because a member starts unattended"
    return None


def _broken_line(raw: bytes) -> Fault | None:
    """Why OpenSSL finds no block: it looks for blocks only at the beginning of a line."""
    if b"\n" not in raw and b"\r" in raw:
        return "its lines end in CR without LF", "save it with LF or CR LF at the end of each line"
    for found in _BEGIN.finditer(raw):
        before = raw[raw.rfind(b"\n", 0, found.start()) + 1 : found.start()]
        line = raw.count(b"\n", 0, found.start()) + 1
        if _BOM in before:
            return f"line {line} begins with a byte-order mark", "save it as UTF-8 without BOM"
        if before:
            rule = f"line {line} has text before -----BEGIN"
            return rule, "move -----BEGIN to the beginning of a line"
    return None


def _read(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise UnusableInput(field, path, *read_fault(error)) from error


def _holds_certificates(path: Path) -> bool:
    """Whether OpenSSL finds a certificate in a file, regardless of the key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError:
        return False
    return True


def _unusable_pem(field: str, path: Path, raw: bytes, kind: PemKind, error: ssl.SSLError) -> UnusableInput:
    other = f"is not a PEM {kind} that OpenSSL can read ({_words(error)})", "name the right file"
    return UnusableInput(field, path, *(pem_fault(raw, kind) or other))


def _reason(error: ssl.SSLError) -> str:
    return getattr(error, "reason", None) or ""  # only OpenSSL's own errors have a reason


def _words(error: ssl.SSLError) -> str:
    return (_reason(error) or "PEM lib").lower().replace("_", " ")
