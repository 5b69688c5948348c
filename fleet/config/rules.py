"""The rules between fields: required fields, the order of periods, and collisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

from fleet.config.document import Document, Path
from fleet.config.partial import Draft, ListenerDraft, MemberDraft
from fleet.config.ports import FreePorts, check_ports
from fleet.config.settings import (
    CONTROL_SOCKET,
    PRIVATE_FOLDER,
    PROXY_ID,
    Timing,
    is_address,
    is_loopback,
    is_wildcard,
)
from fleet.core.model import BROKER_ID, Addressing, ProxyId, address_at

MAX_VOTERS: Final = 9
MAX_SOCKET_PATH_BYTES: Final = 107
"""Source: unix(7): sun_path has 108 bytes, including its terminating zero."""
MIN_FIRST_REQUEST_HEARTBEATS: Final = 3
"""Members keep connections to each other's workers open and send a request at every heartbeat."""

_FIX_TOP: Final = {
    "fleet": "add the name of the fleet, such as `fleet: demo`",
    "bootstrap_servers": "add addresses of brokers, such as `bootstrap_servers: [kafka-1:9092]`",
    "identities": "add the range of broker ids, such as `identities: {first_id: 1, count: 16}`",
    "members": "list at least one member below `members:`",
}
_FIX_MEMBER: Final = {
    "peer": "add `peer: 127.0.0.1:{peer}`, the address that the other members dial",
    "admin": "add `admin: 127.0.0.1:{admin}`, the address of metrics and `fleet status`",
    "data_dir": "add `data_dir: ./data/{id}`",
}
_REQUIRED_BY_ADDRESSING: Final[Mapping[Addressing, str]] = {
    "shared": "bind",
    "identity_ports": "first_port",
    "sni": "broker_host",
    "addresses": "first_address",
}
_FIELDS_BY_ADDRESSING: Final[Mapping[Addressing, tuple[tuple[str, ...], str]]] = {
    "identity_ports": (("first_port", "advertise_first_port"), "remove this line"),
    "sni": (("broker_host",), "remove this line, or add `addressing: sni` and `listener_tls:`"),
    "addresses": (
        ("first_address", "advertise_first_address"),
        "remove this line, or add `addressing: addresses`",
    ),
}
"""The fields that only one kind of addressing uses, and the fix if they are present with another kind."""
_FIRST_PORTS: Final = {"peer": 7101, "admin": 7201}
_FIRST_BIND_PORT: Final = 9100


@dataclass(frozen=True, slots=True)
class Order:
    """``factor * low`` must be at most ``high``, or below ``high`` if ``strict``.

    Args:
        low, high: fields of ``Timing``.
        reason: why, for the error.
    """

    low: str
    high: str
    reason: str
    factor: int = 1
    strict: bool = False

    def holds(self, timing: Timing) -> bool:
        low, high = self.factor * getattr(timing, self.low), getattr(timing, self.high)
        return bool(low < high if self.strict else low <= high * (1 + 1e-9))

    @property
    def rule(self) -> str:
        times = f"{self.factor} x {self.low}" if self.factor > 1 else self.low
        return f"{times} must be {'below' if self.strict else 'at most'} {self.high} ({self.reason})"


ORDERS: Final = (
    Order("heartbeat_s", "suspect_after_s", "otherwise one late heartbeat makes a suspect", factor=3),
    Order("heartbeat_s", "freeze_timeout_s", "otherwise a child process that is busy is killed", factor=3),
    Order("probe_timeout_s", "suspect_after_s", "a probe must be able to fail in that time", strict=True),
    Order("probe_timeout_s", "probe_interval_s", "otherwise probes pile up"),
    Order("suspect_after_s", "control_grace_s", "a control process that restarts is not a dead member"),
    Order("suspect_after_s", "grace_s", "a cold start must not mark members down", strict=True),
    Order(
        "suspect_after_s", "overlay_ttl_s", "otherwise a suspicion expires before it is confirmed", factor=3
    ),
    Order("append_entries_s", "election_min_s", "otherwise one late message starts an election", factor=3),
    Order("append_entries_s", "leader_fallback_s", "otherwise one late answer unseats a leader", factor=3),
    Order("election_min_s", "election_max_s", "candidates draw a random timeout between them", strict=True),
    Order("election_max_s", "leader_fallback_s", "otherwise a leader steps down before it can be replaced"),
    Order("move_timeout_s", "drain_timeout_s", "identities are handed over within the drain"),
)


def _check_top(draft: Draft, document: Document) -> None:
    for field, fix in _FIX_TOP.items():
        if not getattr(draft.top, field) and field not in draft.wrong_fields:
            document.report((field,), None, "is required", fix)
    servers = draft.top.bootstrap_servers or []
    for index, server in enumerate(servers):
        path = ("bootstrap_servers", str(index))
        if server in servers[:index]:
            document.report(path, str(server), "is listed twice", "list each broker once")
        if is_wildcard(server.host):
            rule, fix = "is a wildcard, which members cannot dial", "use the address of a broker"
            document.report(path, str(server), rule, fix)


def _check_identities(draft: Draft, document: Document) -> None:
    shape, path = draft.identities, ("identities",)
    if not draft.top.identities or "identities" in draft.wrong_fields:
        return
    if shape.ids is not None:
        if shape.first_id is not None or shape.count is not None:
            rule = "must have either ids, or first_id and count"
            document.report(path, None, rule, "remove one of the two")
        by_offset: dict[int, int] = {}
        taken = set(shape.ids.values())
        for broker_id, offset in shape.ids.items():
            first = by_offset.setdefault(offset, broker_id)
            if first != broker_id:
                rule = f"broker {first} already has port offset {offset}"
                free = next(each for each in count() if each not in taken)
                taken.add(free)
                document.report((*path, "ids", str(broker_id)), offset, rule, f"use {free}")
        return
    for field in ("first_id", "count"):
        if getattr(shape, field) is None:
            fix = "write {first_id: 1, count: 16}, or a map {ids: {1001: 0}}"
            document.report((*path, field), None, "is required", fix)
    if shape.first_id is not None and shape.count is not None and shape.first_id + shape.count > 2**31:
        rule = "the last broker id must be at most 2147483647"
        document.report((*path, "count"), shape.count, rule, "lower count or first_id")


def _check_timing(draft: Draft, document: Document) -> None:
    for order in ORDERS:
        if order.holds(draft.timing) or draft.wrong_timing & {order.low, order.high}:
            continue
        section = draft.top.timing or {}
        at = order.low if order.low in section else order.high
        high = getattr(draft.timing, order.high)
        low = getattr(draft.timing, order.low)
        fix = f"lower {order.low} ({low:g}) or raise {order.high} ({high:g})"
        document.report(("timing", at), getattr(draft.timing, at), order.rule, fix)


def _check_limits(draft: Draft, document: Document) -> None:
    limit_s, heartbeat_s = draft.limits.first_request_timeout_s, draft.timing.heartbeat_s
    if limit_s < MIN_FIRST_REQUEST_HEARTBEATS * heartbeat_s:
        rule = (
            f"must be at least {MIN_FIRST_REQUEST_HEARTBEATS} x timing.heartbeat_s "
            "(otherwise the members' own connections are closed)"
        )
        fix = f"raise first_request_timeout_s or lower timing.heartbeat_s ({heartbeat_s:g})"
        document.report(("limits", "first_request_timeout_s"), limit_s, rule, fix)


def _check_balance(draft: Draft, document: Document) -> None:
    if draft.balance.by == "weights" and draft.events is None and "events" not in draft.wrong_fields:
        rule, fix = "weights are read from a topic of `events:`", "add `events: {}`"
        document.report(("balance", "by"), draft.balance.by, rule, fix)


def _check_admin(draft: Draft, document: Document) -> None:
    settings = draft.admin
    if settings.open_to_read if settings.tokens is None else settings.tls is not None:
        return
    for member in draft.members:
        admin = member.shape.admin
        if admin is not None and not is_loopback(admin.host):
            rule = f"members.{member.proxy_id}.admin ({admin}) is not loopback, so "
            if settings.tokens is not None:
                rule += "tokens would cross the network unencrypted"
                fix = "add `tls: {}` to `admin:`, or use loopback"
            else:
                rule += "anyone who can reach it could read where the brokers are"
                fix = "add tokens and `tls: {}`, use loopback, or write `open_to_read: true`"
            document.report(("admin", "tokens"), None, rule, fix)
            return


def _voters_fix(voters: list[MemberDraft]) -> str:
    """The fix for one voter too many: a witness must vote, so that another member gives up its vote."""
    others = [each.proxy_id for each in voters if not each.shape.witness]
    if voters[MAX_VOTERS].shape.witness and others:
        return f"write `voter: false` for {others[-1]}"
    return "remove this member" if voters[MAX_VOTERS].shape.witness else "write `voter: false`"


def _check_voters(draft: Draft, document: Document) -> None:
    voters = [member for member in draft.members if member.voter]
    if draft.members and not voters:
        fix = "set `voter: true` on 1, 3 or 5 members"
        document.report(("members",), None, "at least one member must vote", fix)
    if len(voters) > MAX_VOTERS:
        at = (*voters[MAX_VOTERS].path, "voter")
        rule = f"at most {MAX_VOTERS} members may vote, not {len(voters)}"
        document.report(at, True, rule, _voters_fix(voters))
    for member in draft.members:
        if member.shape.witness and not member.voter:
            document.report((*member.path, "voter"), False, "a witness must vote", "remove this line")
    if draft.members and all(member.shape.witness for member in draft.members):
        rule = "at least one member must carry traffic"
        fix = "remove `witness: true` from one member and add listeners to it"
        document.report(("members",), None, rule, fix)


def _check_peer(member: MemberDraft, secured: bool, document: Document, free: FreePorts) -> None:
    peer, path = member.shape.peer, (*member.path, "peer")
    if peer is None:
        return
    if is_wildcard(peer.host):
        rule, fix = "is a wildcard, which members cannot dial", "use a name or an address of this member"
        if not secured:
            fix = f"use 127.0.0.1:{free.keep(peer.port)}, or add `peer_tls:` and {fix}"
        document.report(path, str(peer), rule, fix)
    elif not secured and not is_loopback(peer.host):
        rule = "host must be loopback without `peer_tls:`, because member links are not authenticated"
        document.report(path, str(peer), rule, f"add `peer_tls:`, or use 127.0.0.1:{free.keep(peer.port)}")


def _check_member(member: MemberDraft, draft: Draft, document: Document, free: FreePorts) -> None:
    shape, path = member.shape, member.path
    for field, fix in _FIX_MEMBER.items():
        if getattr(shape, field) is None and field not in member.wrong_fields:
            ports = {field: free.take(_FIRST_PORTS[field])} if field in _FIRST_PORTS else {}
            document.report((*path, field), None, "is required", fix.format(id=member.proxy_id, **ports))
    if shape.witness and shape.listeners:
        rule = "a witness has no data plane"
        document.report((*path, "listeners"), None, rule, "remove the listeners or `witness: true`")
    if not shape.witness and not shape.listeners and "listeners" not in member.wrong_fields:
        fix = _listeners_fix(draft, free)
        document.report((*path, "listeners"), None, "at least one listener is required", fix)
    if member.data_dir is not None:
        socket_path = member.data_dir / PRIVATE_FOLDER / CONTROL_SOCKET
        size = len(str(socket_path).encode(errors="surrogateescape"))
        if size > MAX_SOCKET_PATH_BYTES:
            rule = f"{socket_path} has {size} bytes, but a Unix socket may have {MAX_SOCKET_PATH_BYTES}"
            document.report((*path, "data_dir"), shape.data_dir, rule, "use a shorter path")
    _check_listeners(member, document, free)


def _listeners_fix(draft: Draft, free: FreePorts) -> str:
    """The fix for a member without listeners: all members must have the same listeners."""
    others = next(((each.proxy_id, each.listeners) for each in draft.members if each.listeners), None)
    if others is not None:
        proxy_id, listeners = others
        if len(listeners) > 1 or listeners[0].shape.addressing != "identity_ports":
            return f"add the listeners of {proxy_id}, with the addresses of this member"
    name = "external" if others is None else others[1][0].name
    first = free.take_identities(_FIRST_BIND_PORT + 1)
    return (
        f"add one, such as `{name}: {{bind: 127.0.0.1:{free.take(_FIRST_BIND_PORT)}, first_port: {first}}}`"
    )


def _check_required(listener: ListenerDraft, document: Document, free: FreePorts) -> None:
    shape = listener.shape
    required = {"bind", _REQUIRED_BY_ADDRESSING[shape.addressing]}
    for field in sorted(required if "addressing" not in listener.wrong_fields else {"bind"}):
        if getattr(shape, field) is not None or field in listener.wrong_fields:
            continue
        if field == "bind":
            fix = f"add `bind: 127.0.0.1:{free.take(_FIRST_BIND_PORT)}` to the listener"
        elif field == "first_port":
            fix = f"add `first_port: {free.take_identities(_FIRST_BIND_PORT + 1)}` to the listener"
        elif field == "first_address":
            fix = "add `first_address: 10.0.5.11` with the address of the first identity on this machine"
        else:
            fix = f"add `broker_host: broker-{BROKER_ID}.{PROXY_ID}.kafka.example` to the listener"
        document.report((*listener.path, field), None, "is required", fix)


def _check_listeners(member: MemberDraft, document: Document, free: FreePorts) -> None:
    for listener in member.listeners:
        shape = listener.shape
        _check_required(listener, document, free)
        if (
            shape.bind is not None
            and listener.advertise is None
            and "advertise" not in _field_names(listener.path, document)
        ):
            document.report(
                (*listener.path, "bind"),
                str(shape.bind),
                "is a wildcard, which clients cannot dial",
                f"add `advertise: NAME:{shape.bind.port}` with a name that clients can resolve",
            )
        if shape.advertise is not None and is_wildcard(shape.advertise.host):
            rule = "is a wildcard, which clients cannot dial"
            fix = "use a name or an address that clients can reach"
            document.report((*listener.path, "advertise"), str(shape.advertise), rule, fix)


def _check_fields_of_other_kinds(listener: ListenerDraft, document: Document) -> None:
    """Report the fields of a listener that belong to another kind of addressing."""
    shape = listener.shape
    for kind, (fields, fix) in _FIELDS_BY_ADDRESSING.items():
        for field in fields:
            value = getattr(shape, field)
            if value is None or kind == shape.addressing:
                continue
            if kind == "sni" and shape.addressing == "shared":
                continue  # names keep the clients' connections apart
            rule = f"requires `addressing: {kind}`"
            if kind == "identity_ports":
                rule = f"is not used with `addressing: {shape.addressing}`: all identities share one port"
            document.report((*listener.path, field), value, rule, fix)


def _check_addresses(draft: Draft, document: Document) -> None:
    """Report what prevents one IP address for each identity."""
    identities = draft.identity_space()
    for member in draft.members:
        for listener in member.listeners:
            shape, path = listener.shape, listener.path
            if listener.first_address is None:
                continue
            if shape.bind is not None and is_wildcard(shape.bind.host):
                rule = "is a wildcard, which has the addresses of all identities, too"
                fix = f"use another address of this machine, such as `127.0.0.1:{shape.bind.port}`"
                document.report((*path, "bind"), str(shape.bind), rule, fix)
            for field in ("first_address", "advertise_first_address"):
                first = getattr(shape, field)
                if first is None or identities is None:
                    continue
                last_offset = max((offset for _, offset in identities.offsets()), default=0)
                try:
                    address_at(first, last_offset)
                except ValueError:
                    rule = f"there are no {last_offset} addresses above this one"
                    document.report((*path, field), first, rule, "use a lower address")


def _check_addressing(draft: Draft, document: Document) -> None:
    secured = {each.name for each in draft.listener_tls}
    hosts: dict[tuple[str, int], ProxyId] = {}
    for member in draft.members:
        for listener in member.listeners:
            shape, path = listener.shape, listener.path
            if "addressing" not in listener.wrong_fields:
                _check_fields_of_other_kinds(listener, document)
            if shape.addressing != "sni":
                continue
            if listener.name not in secured:
                fix = f"add `listener_tls: {{{listener.name}: {{certificate: FILE.pem, key: FILE.pem}}}}`"
                document.report((*path, "addressing"), "sni", "requires TLS", fix)
            advertise = listener.advertise
            if advertise is not None and is_address(advertise.host):
                at = (*path, "bind" if shape.advertise is None else "advertise")
                fix = f"write `advertise: NAME:{advertise.port}`"
                rule = "must be a host name: clients send no SNI for an IP address"
                document.report(at, str(advertise), rule, fix)
            if advertise is not None and listener.broker_host is not None:
                first = hosts.setdefault((listener.broker_host, advertise.port), member.proxy_id)
                if first != member.proxy_id:
                    rule = (
                        f"{first} advertises the same name and port, so clients cannot address one of the two"
                    )
                    fix = f"add {PROXY_ID} to the name"
                    document.report((*path, "broker_host"), shape.broker_host, rule, fix)


def _field_names(path: Path, document: Document) -> frozenset[str]:
    return frozenset(line[-1] for line in document.lines if line[:-1] == path and line)


def _check_same_listeners(draft: Draft, document: Document) -> None:
    carriers = [member for member in draft.members if not member.shape.witness and member.listeners]
    if not carriers:
        return
    first = carriers[0]
    names = {listener.name for listener in first.listeners}
    for member in carriers[1:]:
        own = {listener.name for listener in member.listeners}
        if own != names:
            differ = ", ".join(sorted(own ^ names))
            rule = f"must be the same on all members, but {first.proxy_id} and this member differ in {differ}"
            fix = "add each listener to each member, under the same name"
            document.report((*member.path, "listeners"), None, rule, fix)


def _check_listener_tls(draft: Draft, document: Document) -> None:
    names = sorted({listener.name for member in draft.members for listener in member.listeners})
    for each in draft.listener_tls:
        shape = each.shape
        if names and each.name not in names:
            fix = f"use the name of a listener: {', '.join(names)}"
            document.report(each.path, None, "no member has a listener of this name", fix)
        needed = {"certificate": "", "key": ""}
        if shape.client_certificates != "none":
            needed["client_ca"] = f" with `client_certificates: {shape.client_certificates}`"
        if shape.client_certificates == "required":
            needed["probe_certificate"] = needed["probe_key"] = (
                " with `client_certificates: required`, because members probe each other as clients"
            )
        for field, other in (("probe_certificate", "probe_key"), ("probe_key", "probe_certificate")):
            if getattr(shape, field) is not None:
                needed.setdefault(other, f" with {field}")
        for field, where in needed.items():
            if getattr(shape, field) is None and field not in each.wrong_fields:
                document.report((*each.path, field), None, f"is required{where}", f"add `{field}: FILE.pem`")
        for field in ("client_ca", "probe_certificate", "probe_key"):
            if getattr(shape, field) is not None and shape.client_certificates == "none":
                rule = "is not used with `client_certificates: none`"
                fix = "remove this line, or add `client_certificates: allowed` and `client_ca: FILE.pem`"
                document.report((*each.path, field), getattr(shape, field), rule, fix)


def _check_data_dirs(draft: Draft, document: Document) -> None:
    seen: dict[object, MemberDraft] = {}
    for member in draft.members:
        if member.data_dir is None:
            continue
        first = seen.setdefault(member.data_dir, member)
        if first is not member:
            rule = f"is already the directory of {first.proxy_id}"
            fix = f"use {member.shape.data_dir}/{member.proxy_id}"
            document.report((*member.path, "data_dir"), member.shape.data_dir, rule, fix)


def check_rules(draft: Draft, document: Document) -> None:
    """Report every broken rule between the fields of a file."""
    checks: Iterable[Callable[[Draft, Document], None]] = (
        _check_top,
        _check_identities,
        _check_timing,
        _check_limits,
        _check_balance,
        _check_admin,
        _check_voters,
        _check_same_listeners,
        _check_listener_tls,
        _check_addressing,
        _check_addresses,
        _check_data_dirs,
        check_ports,
    )
    for check in checks:
        check(draft, document)
    free = FreePorts(draft)
    for member in draft.members:
        _check_member(member, draft, document, free)
        _check_peer(member, draft.peer_tls is not None, document, free)
