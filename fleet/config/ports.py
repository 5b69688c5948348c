"""The ports of a fleet: collisions of sockets and of advertised addresses, and the ports that are free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from fleet.config.document import Document, Path
from fleet.config.partial import Draft, ListenerDraft, MemberDraft
from fleet.config.schema import MAX_PORT
from fleet.config.settings import is_loopback, is_wildcard
from fleet.core.model import IdentitySpace, ProxyId, address_at


@dataclass(frozen=True, slots=True)
class Span:
    """The ports from ``first`` to ``last`` that one field takes on a host.

    Args:
        addresses: number of IP addresses, ``host`` and those above it.
        machine: which members share sockets; empty for advertised addresses.
        label: the kind of port, for errors.
        path, shown: the field and its value, for errors.
    """

    host: str
    first: int
    last: int
    proxy_id: ProxyId
    machine: str
    label: str
    path: Path
    shown: str | int
    addresses: int = 1

    @property
    def name(self) -> str:
        return f"{self.label} of {self.proxy_id}"


def offsets(identities: IdentitySpace) -> tuple[tuple[int, int], ...]:
    """Port offsets of the identities, as (first, last) of each range without gaps."""
    if not identities.explicit:
        return ((0, identities.count - 1),)
    runs: list[tuple[int, int]] = []
    for offset in sorted({offset for _, offset in identities.explicit}):
        if runs and runs[-1][1] == offset - 1:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return tuple(runs)


class FreePorts:
    """Ports that the configuration does not use, for the fixes that its errors suggest.

    A configuration with such a port breaks no other rule. No two fixes suggest the same port. No fix suggests
    a port that the file has, on any host.
    """

    def __init__(self, draft: Draft) -> None:
        self._identities = draft.identity_space()
        self._taken = [
            (span.first, span.last) for member in draft.members for span in _bound(member, self._identities)
        ]

    def take(self, lowest: int, count: int = 1) -> int:
        """Take ``count`` free ports in a row. Returns the first of them, which is ``lowest`` or above."""
        first = lowest
        while first + count - 1 <= MAX_PORT:
            last = first + count - 1
            beyond = max((high for low, high in self._taken if low <= last and first <= high), default=0)
            if not beyond:
                break
            first = beyond + 1
        self._taken.append((first, first + count - 1))
        return first

    def take_identities(self, lowest: int) -> int:
        """Take as many free ports in a row as the identities need. Returns the first of them."""
        runs = () if self._identities is None else offsets(self._identities)
        return self.take(lowest, 1 + max((last for _, last in runs), default=0))

    def keep(self, port: int) -> int:
        """The same port if the file has it at most once, else take a free port above it."""
        return port if sum(low <= port <= high for low, high in self._taken) <= 1 else self.take(port + 1)


def _host(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host.lower()


def _machine(member: MemberDraft) -> str:
    """A name for the machine of a member: the host of its peer links, or "this machine" for loopback."""
    peer = member.shape.peer
    return "this machine" if peer is None or is_loopback(peer.host) else _host(peer.host)


def _bound(member: MemberDraft, identities: IdentitySpace | None) -> Iterator[Span]:
    machine = _machine(member)
    for field, label in (("peer", "peer port"), ("admin", "admin port")):
        endpoint = getattr(member.shape, field)
        if endpoint is not None:
            path = (*member.path, field)
            host, port = _host(endpoint.host), endpoint.port
            yield Span(host, port, port, member.proxy_id, machine, label, path, str(endpoint))
    for listener in member.listeners:
        bind, first = listener.shape.bind, listener.shape.first_port
        if bind is None:
            continue
        host, owner = _host(bind.host), (member.proxy_id, machine)
        label = f"bootstrap port of listener {listener.name}"
        yield Span(host, bind.port, bind.port, *owner, label, (*listener.path, "bind"), str(bind))
        if listener.first_address is not None and not is_wildcard(bind.host):
            yield from _address_spans(listener, listener.first_address, "", bind.port, owner, identities)
        if first is None or identities is None or listener.shape.addressing != "identity_ports":
            continue
        label, path = f"identity ports of listener {listener.name}", (*listener.path, "first_port")
        for low, high in offsets(identities):
            yield Span(host, first + low, first + high, *owner, label, path, first)


def _address_spans(
    listener: ListenerDraft,
    first_address: str,
    prefix: str,
    port: int,
    owner: tuple[ProxyId, str],
    identities: IdentitySpace | None,
) -> Iterator[Span]:
    """The IP addresses of the identities. Addresses that do not exist are another rule's."""
    label, field = f"range of {prefix}identity addresses of listener {listener.name}", "first_address"
    if prefix and listener.shape.advertise_first_address is not None:
        field = "advertise_first_address"
    for low, high in () if identities is None else offsets(identities):
        try:
            host = address_at(first_address, low)
        except ValueError:
            continue
        yield Span(
            host, port, port, *owner, label, (*listener.path, field), first_address, addresses=high - low + 1
        )


def _advertised_spans(member: MemberDraft, identities: IdentitySpace | None) -> Iterator[Span]:
    for listener in member.listeners:
        advertise, first = listener.advertise, listener.advertise_first_port
        first_address = listener.shape.advertise_first_address or listener.first_address
        if listener.first_address is not None and first_address is not None and advertise is not None:
            owner = (member.proxy_id, "")
            yield from _address_spans(
                listener, first_address, "advertised ", advertise.port, owner, identities
            )
        if advertise is None or first is None or identities is None:
            continue
        field = "advertise_first_port" if listener.shape.advertise_first_port is not None else "advertise"
        if listener.shape.advertise is None and listener.shape.advertise_first_port is None:
            field = "first_port"
        label = f"advertised identity ports of listener {listener.name}"
        path, host = (*listener.path, field), _host(advertise.host)
        for low, high in offsets(identities):
            yield Span(host, first + low, first + high, member.proxy_id, "", label, path, first)


def _share_host(left: Span, right: Span) -> bool:
    if left.machine != right.machine:
        return False
    if left.host == right.host or is_wildcard(left.host) or is_wildcard(right.host):
        return True
    if left.addresses == right.addresses == 1:
        return False
    try:
        first, other = ip_address(left.host), ip_address(right.host)
    except ValueError:
        return False
    distance = int(other) - int(first)
    return first.version == other.version and -right.addresses < distance < left.addresses


def _collisions(spans: list[Span]) -> Iterator[tuple[Span, Span]]:
    """Pairs of spans that share a port, each pair once and in the order of the file."""
    place = {id(span): index for index, span in enumerate(spans)}
    open_spans: list[Span] = []
    for span in sorted(spans, key=lambda each: each.first):
        open_spans = [each for each in open_spans if each.last >= span.first]
        for each in open_spans:
            if _share_host(each, span):
                yield (each, span) if place[id(each)] < place[id(span)] else (span, each)
        open_spans.append(span)


def _report_collisions(spans: list[Span], document: Document, fix: str) -> None:
    reported: set[tuple[Path, Path]] = set()
    for earlier, later in _collisions(spans):
        if (earlier.path, later.path) in reported:
            continue
        reported.add((earlier.path, later.path))
        low, high = max(earlier.first, later.first), min(earlier.last, later.last)
        ports = f"port {low}" if low == high else f"ports {low}-{high}"
        verb = "overlaps" if later.first == later.last else "overlap"
        rule = f"{later.label} {verb} the {earlier.name} at {ports}"
        document.report(later.path, later.shown, rule, fix)


def _check_range(listener: ListenerDraft, identities: IdentitySpace, document: Document) -> None:
    last = max(high for _, high in offsets(identities))
    fix = f"start at {65535 - last} or below" if last < 65535 else "configure fewer identities"
    if listener.shape.first_port is not None and listener.shape.first_port + last > 65535:
        rule = (
            f"the last identity port would be {listener.shape.first_port + last}; the highest port is 65535"
        )
        document.report((*listener.path, "first_port"), listener.shape.first_port, rule, fix)
    first = listener.advertise_first_port
    if first is None or (listener.advertise == listener.shape.bind and first == listener.shape.first_port):
        return
    field = "advertise_first_port" if listener.shape.advertise_first_port is not None else "advertise"
    if first < 1 or first + last > 65535:
        rule = f"advertised identity ports would be {first}-{first + last}; ports must be 1..65535"
        fix = "set advertise_first_port to the port that clients dial for the first identity"
        document.report((*listener.path, field), first, rule, fix)


def _check_upstream(draft: Draft, document: Document) -> None:
    own = {
        (_host(endpoint.host), endpoint.port): f"listener {listener.name} of {member.proxy_id}"
        for member in draft.members
        for listener in member.listeners
        for endpoint in (listener.shape.bind, listener.advertise)
        if endpoint is not None
    }
    for index, server in enumerate(draft.top.bootstrap_servers or ()):
        found = own.get((_host(server.host), server.port))
        if found:
            rule = f"is the address of {found}, so the fleet would proxy itself"
            fix = "use the address of a real broker"
            document.report(("bootstrap_servers", str(index)), str(server), rule, fix)


def check_ports(draft: Draft, document: Document) -> None:
    """Report ports above 65535, sockets that collide, and addresses that two members advertise."""
    identities = draft.identity_space()
    bound = [span for member in draft.members for span in _bound(member, identities)]
    _report_collisions(bound, document, "choose ports that no other field in this file uses")
    advertised = [span for member in draft.members for span in _advertised_spans(member, identities)]
    fix = "advertise a different address for each member"
    if not _have_collisions(bound):
        _report_collisions(advertised, document, fix)
    if identities is not None:
        for member in draft.members:
            for listener in member.listeners:
                _check_range(listener, identities, document)
    _check_upstream(draft, document)


def _have_collisions(bound: list[Span]) -> bool:
    """Whether sockets collide. Their default advertised addresses then collide too: report them once."""
    return next(_collisions(bound), None) is not None
