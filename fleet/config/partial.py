"""A draft of the settings: each section with its defaults, before the rules between fields are checked.

A field that is missing or wrong is None or its default, so that one mistake never hides the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Final, TypeVar

from fleet.config.document import Document, Path, Value
from fleet.config.schema import (
    AdminShape,
    AdminTlsShape,
    BalanceShape,
    EventsShape,
    FleetShape,
    IdentitiesShape,
    LimitsShape,
    ListenerShape,
    ListenerTlsShape,
    MemberShape,
    PeerTlsShape,
    SaslShape,
    TimingShape,
    TokensShape,
    TracingShape,
    UpstreamShape,
    UpstreamTlsShape,
    check_name,
    check_shape,
)
from fleet.config.secrets import Secret, parse_secret
from fleet.config.settings import (
    LISTENER_TLS_FILES,
    PROXY_ID,
    AdminSettings,
    AdminTlsSettings,
    BalanceSettings,
    EventsSettings,
    Limits,
    ListenerSettings,
    ListenerTlsSettings,
    MemberSettings,
    PeerTlsSettings,
    SaslSettings,
    Settings,
    Timing,
    TokenSettings,
    TracingSettings,
    UpstreamSettings,
    UpstreamTlsSettings,
    is_wildcard,
)
from fleet.core.model import Endpoint, IdentitySpace, ProxyId

DEFAULT_VOTERS = 3
_SASL_EXAMPLES: Final = {
    "mechanism": "mechanism: SCRAM-SHA-512",
    "username": "username: NAME",
    "password": "password: {file: PATH}",
    "token": "token: {file: PATH}",
}
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""Source: RFC 9110, token."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListenerDraft:
    """A listener of one member. ``wrong_fields`` are present but wrong."""

    name: str
    path: Path
    shape: ListenerShape
    proxy_id: ProxyId
    wrong_fields: frozenset[str]

    @property
    def broker_host(self) -> str | None:
        """The host of an identity, mostly with the placeholder of the broker id.

        None if identities have no names. A ``shared`` listener may have the advertised host for all of them.
        """
        shape = self.shape
        if shape.addressing == "shared" and shape.broker_host is None:
            return None if self.advertise is None else self.advertise.host
        if shape.addressing not in ("sni", "shared") or shape.broker_host is None:
            return None
        return shape.broker_host.replace(PROXY_ID, self.proxy_id)

    @property
    def first_address(self) -> str | None:
        """The bound address of the first identity; None with other kinds of addressing."""
        return self.shape.first_address if self.shape.addressing == "addresses" else None

    @property
    def advertise(self) -> Endpoint | None:
        """The advertised bootstrap address: ``advertise``, or ``bind`` if ``bind`` is not a wildcard."""
        if self.shape.advertise is not None:
            return self.shape.advertise
        bind = self.shape.bind
        return None if bind is None or is_wildcard(bind.host) else bind

    @property
    def advertise_first_port(self) -> int | None:
        """The first advertised identity port.

        Without a value in the file, ``first_port`` plus the difference of the ports of ``advertise`` and
        ``bind``.
        """
        if self.shape.advertise_first_port is not None:
            return self.shape.advertise_first_port
        if self.shape.first_port is None or self.shape.bind is None or self.advertise is None:
            return None
        return self.shape.first_port + self.advertise.port - self.shape.bind.port

    def settings(self) -> ListenerSettings:
        bind, advertise = _require(self.shape.bind), _require(self.advertise)
        has_one_port = self.shape.addressing != "identity_ports"
        return ListenerSettings(
            name=self.name,
            bind_host=bind.host,
            bootstrap_port=bind.port,
            first_port=bind.port if has_one_port else _require(self.shape.first_port),
            advertised_host=advertise.host,
            advertised_bootstrap_port=advertise.port,
            advertised_first_port=advertise.port if has_one_port else _require(self.advertise_first_port),
            broker_host=self.broker_host,
            first_address=self.first_address,
            is_shared=self.shape.addressing == "shared",
            advertised_first_address=self.shape.advertise_first_address or self.first_address,
        )


@dataclass(frozen=True, slots=True)
class MemberDraft:
    """A member, with its paths made absolute."""

    proxy_id: ProxyId
    path: Path
    shape: MemberShape
    voter: bool
    data_dir: FilePath | None
    listeners: tuple[ListenerDraft, ...]
    wrong_fields: frozenset[str]
    """Fields that are present but wrong: no rule reports them as missing."""

    def settings(self) -> MemberSettings:
        return MemberSettings(
            proxy_id=self.proxy_id,
            rack=self.shape.rack,
            voter=self.voter,
            witness=self.shape.witness,
            peer=_require(self.shape.peer),
            admin=_require(self.shape.admin),
            data_dir=_require(self.data_dir),
            workers=0 if self.shape.witness else self.shape.workers,
            listeners=tuple(listener.settings() for listener in self.listeners),
        )


@dataclass(frozen=True, slots=True)
class ListenerTlsDraft:
    """TLS of the listeners of one name. ``wrong_fields`` are present but wrong."""

    name: str
    path: Path
    shape: ListenerTlsShape
    lines: Mapping[str, int]
    wrong_fields: frozenset[str]

    def settings(self, base: FilePath) -> ListenerTlsSettings:
        values = self.shape.model_dump()
        for field in LISTENER_TLS_FILES:
            if values[field] is not None:
                values[field] = FilePath(os.path.normpath(base / values[field]))
        return ListenerTlsSettings(**values, lines=self.lines)


@dataclass(frozen=True, slots=True)
class Draft:
    """All sections of a file; ``base`` is the folder that relative paths start from."""

    top: FleetShape
    identities: IdentitiesShape
    timing: Timing
    limits: Limits
    peer_tls: PeerTlsSettings | None
    listener_tls: tuple[ListenerTlsDraft, ...]
    admin: AdminSettings
    upstream: UpstreamSettings
    events: EventsSettings | None
    tracing: TracingSettings | None
    balance: BalanceSettings
    members: tuple[MemberDraft, ...]
    base: FilePath
    wrong_fields: frozenset[str]
    wrong_timing: frozenset[str]
    """Fields of ``timing`` that are wrong: no rule is checked against the default in their place."""

    def identity_space(self) -> IdentitySpace | None:
        shape = self.identities
        if shape.ids is not None:
            return IdentitySpace(explicit=tuple(sorted(shape.ids.items())))
        if shape.first_id is None or shape.count is None:
            return None
        return IdentitySpace(first_id=shape.first_id, count=shape.count)

    def settings(self, source: str) -> Settings:
        """The settings. Call this only for a draft without problems."""
        return Settings(
            fleet=_require(self.top.fleet),
            bootstrap_servers=tuple(_require(self.top.bootstrap_servers)),
            identities=_require(self.identity_space()),
            members={member.proxy_id: member.settings() for member in self.members},
            timing=self.timing,
            limits=self.limits,
            peer_tls=self.peer_tls,
            listener_tls={each.name: each.settings(self.base) for each in self.listener_tls},
            admin=self.admin,
            upstream=self.upstream,
            events=self.events,
            tracing=self.tracing,
            balance=self.balance,
            source=source,
        )


def _require(value: T | None) -> T:
    """A value that the rules have checked to be present."""
    if value is None:
        raise AssertionError("settings were built from a draft that has problems")
    return value


def _listener(name: str, value: Value, path: Path, proxy_id: ProxyId, document: Document) -> ListenerDraft:
    problem = check_name(name)
    if problem:
        document.report(path, None, f"listener name {problem[0]}", problem[1])
    shape, wrong = check_shape(ListenerShape, value, path, document)
    return ListenerDraft(name, path, shape, proxy_id, wrong)


def _member(proxy_id: str, value: Value, place: int, base: FilePath, document: Document) -> MemberDraft:
    path = ("members", proxy_id)
    problem = check_name(proxy_id)
    if problem:
        document.report(path, None, f"member id {problem[0]}", problem[1])
    shape, wrong = check_shape(MemberShape, value, path, document)
    data_dir = None
    if shape.data_dir is not None:
        data_dir = FilePath(os.path.normpath(base / shape.data_dir))
    voter = shape.voter if shape.voter is not None else shape.witness or place < DEFAULT_VOTERS
    listeners = tuple(
        _listener(name, inner, (*path, "listeners", name), proxy_id, document)
        for name, inner in (shape.listeners or {}).items()
    )
    return MemberDraft(proxy_id, path, shape, voter, data_dir, listeners, wrong)


def _peer_tls(top: FleetShape, base: FilePath, document: Document) -> PeerTlsSettings | None:
    path = ("peer_tls",)
    if path not in document.lines:
        return None
    # A section without a value turns TLS on, with all its defaults: an operator who writes it means TLS.
    shape, _ = check_shape(PeerTlsShape, {} if top.peer_tls is None else top.peer_tls, path, document)
    paths = {name: FilePath(os.path.normpath(base / value)) for name, value in shape.model_dump().items()}
    return PeerTlsSettings(**paths, lines={name: document.line((*path, name)) for name in paths})


def _listener_tls(name: str, value: Value, document: Document) -> ListenerTlsDraft:
    path = ("listener_tls", name)
    shape, wrong = check_shape(ListenerTlsShape, value, path, document)
    lines = {field: document.line((*path, field)) for field in ListenerTlsShape.model_fields}
    return ListenerTlsDraft(name, path, shape, lines, wrong)


def _admin(top: FleetShape, base: FilePath, document: Document) -> AdminSettings:
    shape, _ = check_shape(AdminShape, top.admin or {}, ("admin",), document)
    tls, tokens = _admin_tls(shape, base, document), _tokens(shape, base, document)
    return AdminSettings(tls, tokens, shape.open_to_read)


def _admin_tls(admin: AdminShape, base: FilePath, document: Document) -> AdminTlsSettings | None:
    path = ("admin", "tls")
    if path not in document.lines:
        return None
    # A section without a value has all its defaults, as `peer_tls` has.
    shape, _ = check_shape(AdminTlsShape, {} if admin.tls is None else admin.tls, path, document)
    return AdminTlsSettings(
        ca=None if shape.ca is None else FilePath(os.path.normpath(base / shape.ca)),
        certificate=FilePath(os.path.normpath(base / shape.certificate)),
        key=FilePath(os.path.normpath(base / shape.key)),
        lines={name: document.line((*path, name)) for name in AdminTlsShape.model_fields},
    )


def _tokens(admin: AdminShape, base: FilePath, document: Document) -> TokenSettings | None:
    path = ("admin", "tokens")
    if path not in document.lines:
        return None
    fix = "write {read: {file: PATH}, write: {file: PATH}}"
    if not isinstance(admin.tokens, dict):
        document.report(path, None, "must be a map with both tokens", fix)
        return None
    check_shape(TokensShape, admin.tokens, path, document)
    found: list[Secret] = []
    for name in TokensShape.model_fields:
        if name not in admin.tokens:
            document.report((*path, name), None, "is required", fix)
        elif (token := parse_secret(admin.tokens[name], (*path, name), base, document)) is not None:
            found.append(token)
    return TokenSettings(*found) if len(found) == len(TokensShape.model_fields) else None


def _upstream(top: FleetShape, base: FilePath, document: Document) -> UpstreamSettings:
    path = ("upstream",)
    shape, wrong = check_shape(UpstreamShape, top.upstream or {}, path, document)
    tls = sasl = None
    if (*path, "tls") in document.lines and "tls" not in wrong:
        # A section without a value has all its defaults, as `peer_tls` has.
        tls = _upstream_tls(shape.tls or {}, (*path, "tls"), base, document)
    if (*path, "sasl") in document.lines and "sasl" not in wrong:
        sasl = _sasl(shape.sasl or {}, (*path, "sasl"), base, document)
    return UpstreamSettings(tls, sasl)


def _upstream_tls(value: Value, path: Path, base: FilePath, document: Document) -> UpstreamTlsSettings:
    shape, wrong = check_shape(UpstreamTlsShape, value, path, document)
    for field, other in (("certificate", "key"), ("key", "certificate")):
        if getattr(shape, field) is not None and getattr(shape, other) is None and other not in wrong:
            fix = f"add `{other}: FILE.pem`"
            document.report((*path, field), getattr(shape, field), f"requires `{other}`", fix)
    paths = {
        field: None if file is None else FilePath(os.path.normpath(base / file))
        for field, file in (("ca", shape.ca), ("certificate", shape.certificate), ("key", shape.key))
    }
    lines = {field: document.line((*path, field)) for field in paths}
    return UpstreamTlsSettings(**paths, check_hostname=shape.check_hostname, lines=lines)


def _sasl(value: Value, path: Path, base: FilePath, document: Document) -> SaslSettings | None:
    shape, _ = check_shape(SaslShape, value, path, document)
    uses_token = shape.mechanism == "OAUTHBEARER"
    required = ("mechanism", "token") if uses_token else ("mechanism", "username", "password")
    for field in SaslShape.model_fields:
        is_present = (*path, field) in document.lines
        if field in required and not is_present:
            document.report((*path, field), None, "is required", f"add `{_SASL_EXAMPLES[field]}`")
        elif is_present and field not in required and shape.mechanism is not None:
            rule = f"is not used by {shape.mechanism}"
            document.report((*path, field), None, rule, f"remove `{field}:`")
    field = required[-1]
    found = None
    if (*path, field) in document.lines:
        found = parse_secret(getattr(shape, field), (*path, field), base, document)
    if shape.mechanism is None or found is None:
        return None
    return SaslSettings(shape.mechanism, shape.username, found)


def _events(top: FleetShape, document: Document) -> EventsSettings | None:
    path = ("events",)
    if path not in document.lines:
        return None
    # A section without a value has all its defaults, as `peer_tls` has.
    shape, _ = check_shape(EventsShape, {} if top.events is None else top.events, path, document)
    return EventsSettings(**shape.model_dump())


def _tracing(top: FleetShape, base: FilePath, document: Document) -> TracingSettings | None:
    path = ("tracing",)
    if path not in document.lines:
        return None
    written = {} if top.tracing is None else top.tracing
    if "@" in str(written.get("endpoint", "")):
        rule, fix = "must not contain a user name or a password", "remove them and use `headers:`"
        document.report((*path, "endpoint"), None, rule, fix)
        return None
    shape, wrong = check_shape(TracingShape, written, path, document)
    if shape.endpoint is None and "endpoint" not in wrong:
        fix = "add `endpoint: http://127.0.0.1:4318`"
        document.report((*path, "endpoint"), None, "is required", fix)
    headers = _headers(shape.headers, (*path, "headers"), base, document)
    if shape.endpoint is None:
        return None
    return TracingSettings(shape.endpoint, headers, document.line(path))


def _headers(value: Value, path: Path, base: FilePath, document: Document) -> dict[str, Secret]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        fix = "write {Authorization: {file: PATH}}"
        rule = "must be a map from the name of a header to the place of its value"
        document.report(path, None, rule, fix)
        return {}
    found = {}
    for name, where in value.items():
        if not _HEADER.fullmatch(name):
            fix = "use letters, digits and dashes"
            document.report((*path, name), None, "is not a valid header name", fix)
        header = parse_secret(where, (*path, name), base, document)
        if header is not None:
            found[name] = header
    return found


def build_draft(document: Document, base: FilePath) -> Draft:
    """Validate the shape of the whole file, section by section, and fill in the defaults.

    Args:
        base: the directory that relative paths start from; absolute.
    """
    top, wrong = check_shape(FleetShape, document.data, (), document)
    identities, wrong_identities = check_shape(
        IdentitiesShape, {} if top.identities is None else top.identities, ("identities",), document
    )
    timing, wrong_timing = check_shape(TimingShape, top.timing or {}, ("timing",), document)
    limits, _ = check_shape(LimitsShape, top.limits or {}, ("limits",), document)
    balance, _ = check_shape(BalanceShape, top.balance or {}, ("balance",), document)
    members = tuple(
        _member(proxy_id, value, place, base, document)
        for place, (proxy_id, value) in enumerate((top.members or {}).items())
    )
    if wrong_identities:
        wrong |= {"identities"}
    return Draft(
        top=top,
        identities=identities,
        timing=Timing(**timing.model_dump()),
        limits=Limits(**limits.model_dump()),
        peer_tls=_peer_tls(top, base, document),
        listener_tls=tuple(
            _listener_tls(name, value, document) for name, value in (top.listener_tls or {}).items()
        ),
        admin=_admin(top, base, document),
        upstream=_upstream(top, base, document),
        events=_events(top, document),
        tracing=None if "tracing" in wrong else _tracing(top, base, document),
        balance=BalanceSettings(**balance.model_dump()),
        members=members,
        base=base,
        wrong_fields=wrong,
        wrong_timing=wrong_timing,
    )
