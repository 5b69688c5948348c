"""The shape of the file: the fields, their types and their bounds.

Every field is optional here. ``rules.py`` reports missing fields, so that one wrong field never hides other
mistakes.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import fields
from ipaddress import ip_address
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails, PydanticCustomError

from fleet.config.document import Document, Path, Value
from fleet.config.settings import (
    PROXY_ID,
    TRACES_PATH,
    BalanceSettings,
    ClientCertificates,
    EventsSettings,
    Limits,
    SaslMechanism,
    Timing,
    TlsVersion,
)
from fleet.core.model import BROKER_ID, Addressing, Endpoint
from fleet.core.weights import BalancedBy

_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?\.?")
_IPV6: Final = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*://")
"""As in Kafka's `listeners` and `advertised.listeners`."""
MAX_PORT: Final = 65535
EXAMPLE_PORT: Final = 9092
"""Kafka's default port, for fixes of addresses without a port."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MAX_TIMING_S: Final = 3600.0
MAX_IDENTITIES: Final = 20_000
MAX_BROKER_ID: Final = 2**31 - 1
MAX_WORKERS: Final = 64
WORKERS_PER_CPU: Final = "auto"
MIN_SPOOL_BYTES: Final = 1 << 20
_TOPIC_PREFIX: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}")
"""Source: Topic.java, LEGAL_CHARS and MAX_NAME_LENGTH (249). The limit leaves room for the rest of a name."""


def shape_error(rule: str, fix: str) -> PydanticCustomError:
    """An error that carries its own rule and fix."""
    return PydanticCustomError("fleet", "{rule}", {"rule": rule, "fix": fix})


def count_workers(value: object) -> object:
    """Replace ``auto`` by the number of CPUs that this process may use, and keep any other value."""
    return min(MAX_WORKERS, len(os.sched_getaffinity(0))) if value == WORKERS_PER_CPU else value


def parse_endpoint(value: object) -> Endpoint:
    """Read ``host:port`` or ``[v6 address]:port``.

    Raises:
        PydanticCustomError: the value is neither. The fix is a valid spelling if the value resembles one.
    """
    if isinstance(value, Endpoint):
        return value
    if not isinstance(value, str):
        is_port = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_PORT
        raise shape_error(
            "must be host:port", f'write it as "127.0.0.1:{value if is_port else EXAMPLE_PORT}"'
        )
    found = _read_endpoint(value)
    if isinstance(found, Endpoint):
        return found
    rule, fix = found
    suggestion = _suggest_endpoint(value)
    if "," in value:
        first = _suggest_endpoint(value.partition(",")[0]) or f"kafka-1:{EXAMPLE_PORT}"
        fix = f'write each address as a separate value, such as "{first}"'
        raise shape_error("is more than one address", fix)
    raise shape_error(rule, fix if suggestion is None else f'write it as "{suggestion}"')


def _read_endpoint(text: str) -> Endpoint | tuple[str, str]:
    """The endpoint; or the rule that the text breaks, and a fix for text that resembles no endpoint."""
    scheme = _SCHEME.match(text)
    if scheme:
        return f"must be host:port, without {scheme[0]}", f'write it as "kafka-1:{EXAMPLE_PORT}"'
    host, colon, port_text = text.rpartition(":")
    if not colon or not host or (_is_ipv6(text.strip("[]")) and not _is_ipv6(host.strip("[]"))):
        return "must be host:port", f'write it as "127.0.0.1:{EXAMPLE_PORT}"'
    if not re.fullmatch(r"[0-9]{1,9}", port_text):
        return "port must be a number", "write digits after the last colon"
    if not 1 <= int(port_text) <= MAX_PORT:
        return "port must be 1..65535", "use a port from 1 to 65535"
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not _is_ipv6(host):
            rule = "only an IPv6 address may be in brackets"
            return rule, f'write it as "[::1]:{port_text}", or as a name'
    elif _is_ipv6(host.strip("[]")):
        return "an IPv6 address must be in brackets", f'write it as "[{host}]:{port_text}"'
    elif not _HOST.fullmatch(host):
        return (
            "host must be a name or an address",
            "use letters, digits, dots and dashes, with a letter or digit at both ends",
        )
    return Endpoint(host, int(port_text))


def _is_ipv6(text: str) -> bool:
    if not _IPV6.fullmatch(text):
        return False
    try:
        return ip_address(text).version == 6
    except ValueError:
        return False


def _suggest_endpoint(text: str) -> str | None:
    """The valid endpoint that a wrong text resembles; None if it resembles none."""
    bare = _SCHEME.sub("", text.strip().strip("'\""), count=1)
    bare = re.sub(r"(:[0-9]+)[/?#].*$", r"\1", bare).rstrip("/").rpartition("@")[2]
    host, _, port_text = bare.rpartition(":")
    inside = bare.strip("[]")
    candidates = (
        bare,
        f"[{host.strip('[]')}]:{port_text}",
        f"{host.strip('[]')}:{port_text}",
        f"[{inside}]:{EXAMPLE_PORT}",
        f"{inside}:{EXAMPLE_PORT}",
    )
    return next((each for each in candidates if isinstance(_read_endpoint(each), Endpoint)), None)


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise shape_error("must be text", "put it in quotes")
    if not _NAME.fullmatch(value):
        raise shape_error(
            "must be 1 to 63 letters, digits, dots, dashes or underscores",
            "start with a letter or a digit, and remove all other characters",
        )
    return value


def _topic_prefix(value: object) -> str:
    if not isinstance(value, str):
        raise shape_error("must be text", "put it in quotes")
    if not _TOPIC_PREFIX.fullmatch(value):
        raise shape_error(
            "must be 1 to 200 letters, digits, dots, dashes or underscores",
            "use the characters that Kafka allows in topic names",
        )
    return value


def check_name(value: str) -> tuple[str, str] | None:
    """Rule and fix for a key that is not a valid name; None if the key is valid."""
    try:
        _name(value)
    except PydanticCustomError as error:
        return error.message(), str((error.context or {})["fix"])
    return None


def _member_path(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise shape_error("must be the path of a file", "put it in quotes")
    if re.search(r"[{}]", value.replace(PROXY_ID, "")):
        raise shape_error(f"braces may contain only {PROXY_ID}", f"write {PROXY_ID}, or ${{NAME}}")
    return value


def _collector(value: object) -> str:
    if not isinstance(value, str):
        raise shape_error("must be text", "put it in quotes")
    fix = "write it as http://127.0.0.1:4318"
    try:
        url = urlsplit(value)
        right = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        right = False
    if not right or re.search(r"[^!-~]", value):
        raise shape_error("must be the URL of a collector", fix)
    if url.query or url.fragment or url.path.rstrip("/").endswith(TRACES_PATH):
        raise shape_error(f"must be the URL without {TRACES_PATH} and without a query", fix)
    return value


def _broker_host(value: object) -> str:
    if not isinstance(value, str):
        raise shape_error("must be text", "put it in quotes")
    host = value.replace(BROKER_ID, "1", 1).replace(PROXY_ID, "p")
    if BROKER_ID not in value or not _HOST.fullmatch(host):
        rule = f"must be a host name that contains {BROKER_ID} once"
        raise shape_error(rule, f"write broker-{BROKER_ID}.{PROXY_ID}.kafka.example")
    return value


def _first_address(value: object) -> str:
    rule, fix = "must be an IP address", "write an address of this machine, such as 10.0.5.11 or fd00:5::11"
    try:
        address = ip_address(value if isinstance(value, str) else "")
    except ValueError:
        raise shape_error(rule, fix) from None
    if address.is_unspecified or address.is_multicast or "%" in str(address):
        raise shape_error("must be the address of one host, without a zone", fix)
    return str(address)


def _broker_ids(value: object) -> object:
    if not isinstance(value, dict):
        raise shape_error("must be a map of broker id to port offset", "write {1001: 0, 2001: 1}")
    pairs: dict[int, int] = {}
    for key, offset in value.items():
        if not re.fullmatch(r"[0-9]{1,10}", key) or int(key) > MAX_BROKER_ID:
            raise shape_error(
                f"broker id {key!r} must be 0..{MAX_BROKER_ID}", "use the node.id of the broker"
            )
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= 65534:
            raise shape_error(
                f"offset of broker {key} must be 0..65534", "count from first_port: 0, 1, 2 ..."
            )
        pairs[int(key)] = offset
    return pairs


HostPort = Annotated[Endpoint, BeforeValidator(parse_endpoint)]
Name = Annotated[str, BeforeValidator(_name)]
MemberPath = Annotated[str, BeforeValidator(_member_path)]
Collector = Annotated[str, BeforeValidator(_collector)]
TopicPrefix = Annotated[str, BeforeValidator(_topic_prefix)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Shape(BaseModel):
    """Base of all shapes: unknown fields and implicit conversions are mistakes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ListenerShape(Shape):
    bind: HostPort | None = None
    first_port: Port | None = None
    advertise: HostPort | None = None
    advertise_first_port: Port | None = None
    addressing: Addressing = "identity_ports"
    broker_host: Annotated[str, BeforeValidator(_broker_host)] | None = None
    first_address: Annotated[str, BeforeValidator(_first_address)] | None = None
    advertise_first_address: Annotated[str, BeforeValidator(_first_address)] | None = None


class MemberShape(Shape):
    rack: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    voter: bool | None = None
    witness: bool = False
    peer: HostPort | None = None
    admin: HostPort | None = None
    data_dir: Annotated[str, Field(min_length=1)] | None = None
    workers: Annotated[int, BeforeValidator(count_workers), Field(ge=1, le=MAX_WORKERS)] = 1
    listeners: dict[str, Any] | None = None
    """Each listener is validated separately, as a ``ListenerShape``."""


class IdentitiesShape(Shape):
    first_id: Annotated[int, Field(ge=0, le=MAX_BROKER_ID)] | None = None
    count: Annotated[int, Field(ge=1, le=MAX_IDENTITIES)] | None = None
    ids: Annotated[dict[int, int], BeforeValidator(_broker_ids), Field(min_length=1)] | None = None


class PeerTlsShape(Shape):
    ca: MemberPath = "certs/ca.pem"
    certificate: MemberPath = f"certs/{PROXY_ID}.crt"
    key: MemberPath = f"certs/{PROXY_ID}.key"


class ListenerTlsShape(Shape):
    certificate: MemberPath | None = None
    key: MemberPath | None = None
    client_ca: MemberPath | None = None
    client_certificates: ClientCertificates = "none"
    min_version: TlsVersion = "1.2"
    ciphers: Annotated[str, Field(min_length=1)] | None = None
    probe_certificate: MemberPath | None = None
    probe_key: MemberPath | None = None


class AdminShape(Shape):
    tls: dict[str, Any] | None = None
    tokens: Any = None
    """Validated outside this module, where errors do not show the value: the value may be a token."""
    open_to_read: bool = False


class AdminTlsShape(Shape):
    ca: Annotated[str, Field(min_length=1)] | None = "certs/ca.pem"
    certificate: MemberPath = f"certs/{PROXY_ID}.crt"
    key: MemberPath = f"certs/{PROXY_ID}.key"


class TokensShape(Shape):
    read: Any = None
    write: Any = None


FilePath = Annotated[str, Field(min_length=1)]


class UpstreamTlsShape(Shape):
    ca: FilePath | None = None
    certificate: FilePath | None = None
    key: FilePath | None = None
    check_hostname: bool = True


class SaslShape(Shape):
    mechanism: SaslMechanism | None = None
    username: Annotated[str, Field(min_length=1)] | None = None
    password: Any = None
    """Validated in ``secrets.py``, which shows neither the password nor the token in errors."""
    token: Any = None


class UpstreamShape(Shape):
    tls: dict[str, Any] | None = None
    sasl: dict[str, Any] | None = None


_EVENTS: Final = EventsSettings()
_BALANCE: Final = BalanceSettings()


class EventsShape(Shape):
    topic_prefix: TopicPrefix = _EVENTS.topic_prefix
    replication_factor: Annotated[int, Field(ge=1, le=2**15 - 1)] | None = _EVENTS.replication_factor
    spool_bytes: Annotated[int, Field(ge=MIN_SPOOL_BYTES, le=2**40)] = _EVENTS.spool_bytes


class TracingShape(Shape):
    endpoint: Collector | None = None
    headers: Any = None
    """Validated outside this module, where errors do not show the value: the value may be a token."""


class BalanceShape(Shape):
    by: BalancedBy = _BALANCE.by
    min_gain: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = _BALANCE.min_gain
    every_s: Annotated[float, Field(ge=1, le=7 * 86_400, allow_inf_nan=False)] = _BALANCE.every_s


class FleetShape(Shape):
    fleet: Name | None = None
    bootstrap_servers: Annotated[list[HostPort], Field(min_length=1)] | None = None
    identities: dict[str, Any] | None = None
    timing: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    peer_tls: dict[str, Any] | None = None
    listener_tls: dict[str, Any] | None = None
    """Each section is validated separately, as a ``ListenerTlsShape``."""
    admin: dict[str, Any] | None = None
    upstream: dict[str, Any] | None = None
    events: dict[str, Any] | None = None
    tracing: dict[str, Any] | None = None
    balance: dict[str, Any] | None = None
    members: dict[str, Any] | None = None


_SECONDS: Any = Annotated[float, Field(gt=0, le=MAX_TIMING_S, allow_inf_nan=False)]
_BYTES: Any = Annotated[int, Field(ge=4096, le=2**31 - 1)]
_RATE: Any = Annotated[int, Field(ge=1, le=1_000_000)]
_BYTE_RATE: Any = Annotated[int, Field(ge=65_536, le=2**40)]
_CONNECTIONS: Any = Annotated[int, Field(ge=1, le=1_000_000)]
_BACKLOG: Any = Annotated[int, Field(ge=1, le=65_535)]
_TYPE_BY_SUFFIX: Final = {
    "_s": _SECONDS,
    "_bytes": _BYTES,
    "_bytes_per_second": _BYTE_RATE | None,
    "_per_second": _RATE,
    "_connections": _CONNECTIONS | None,
    "_per_source": _CONNECTIONS | None,
    "_backlog": _BACKLOG,
}
"""The type of a field by the end of its name; the first match counts."""


def _shape_of(settings: type[Timing] | type[Limits]) -> type[Shape]:
    """A shape with the fields of a dataclass, so that the two cannot drift apart."""
    definitions: dict[str, Any] = {
        item.name: (
            next(kind for unit, kind in _TYPE_BY_SUFFIX.items() if item.name.endswith(unit)),
            item.default,
        )
        for item in fields(settings)
    }
    return create_model(f"{settings.__name__}Shape", __base__=Shape, **definitions)


TimingShape: Final = _shape_of(Timing)
LimitsShape: Final = _shape_of(Limits)

_TYPE_RULES: Final = {
    "int_type": ("must be a whole number", "write digits without quotes"),
    "int_from_float": ("must be a whole number", "remove the fraction"),
    "float_type": ("must be a number of seconds", "write a number such as 0.5, without quotes"),
    "finite_number": ("must be finite", "write a number such as 0.5"),
    "bool_type": ("must be true or false", "write true or false, without quotes"),
    "string_type": ("must be text", "put it in quotes"),
    "string_too_short": ("must not be empty", "write a value, or remove the field"),
    "dict_type": ("must be a map", "write `name: value` lines below it"),
    "model_type": ("must be a map", "write `name: value` lines below it"),
    "list_type": ("must be a list", "write [kafka-1:9092, kafka-2:9092], or one `- kafka-1:9092` line each"),
    "literal_error": ("is not an allowed value", "see docs/configuration.md"),
    "too_short": ("must not be empty", "write at least one entry"),
}


def _explain(error: ErrorDetails, known: tuple[str, ...]) -> tuple[str, str]:
    context = error.get("ctx", {})
    if error["type"] == "fleet":
        return str(context["rule"]), str(context["fix"])
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
        fix = f"did you mean {close[0]}?" if close else f"use one of: {', '.join(known)}"
        return "is not a known setting", fix
    for bound, sign in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
        if bound in context:
            return f"must be {sign} {context[bound]:.12g}", f"use a value {sign} {context[bound]:.12g}"
    return _TYPE_RULES.get(error["type"], (error["msg"].lower(), "see docs/configuration.md"))


ShapeT = TypeVar("ShapeT", bound=Shape)


def check_shape(
    shape: type[ShapeT], value: Value, path: Path, document: Document
) -> tuple[ShapeT, frozenset[str]]:
    """Validate one map of the file and report the mistakes in it.

    Returns: the shape without its wrong fields, and the names of the wrong fields
    """
    if not isinstance(value, dict):
        document.report(path, value, *_TYPE_RULES["dict_type"])
        return shape(), frozenset(shape.model_fields)
    try:
        return shape.model_validate(value), frozenset()
    except ValidationError as error:
        wrong = frozenset(str(each["loc"][0]) for each in error.errors() if each["loc"])
        for each in error.errors():
            where = (*path, *(str(part) for part in each["loc"]))
            shown = None if each["type"] == "extra_forbidden" else each["input"]
            document.report(where, shown, *_explain(each, tuple(shape.model_fields)))
    right = {key: inner for key, inner in value.items() if key not in wrong}
    return shape.model_validate(right), wrong
