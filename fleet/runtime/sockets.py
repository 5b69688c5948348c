"""The listening sockets of one member. The supervisor keeps them open while children restart."""

from __future__ import annotations

import errno
import math
import os
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from fleet.config.settings import Limits, ListenerSettings, MemberSettings, Settings
from fleet.core.errors import StartError
from fleet.core.model import BrokerId, Endpoint
from fleet.runtime.ephemeral_ports import read_ephemeral_ports
from fleet.runtime.socket_options import keep_alive

UNIX_PATH_LIMIT_BYTES: Final = 107
"""Source: unix(7): sun_path has 108 bytes, including its terminating zero."""

FIRST_UNPRIVILEGED_PORT: Final = 1024
SPARE_FDS: Final = 64
BODY_FDS: Final = 130
"""For large bodies: a pipe, and two for each of `fleet.proxy.splice.MAX_SPLICED_BODIES`."""
SPARE_CONNECTIONS: Final = 256
"""How many connections above the limit may wait until they are known not to be probes of members."""

_MISSING_ADDRESS_ADVICE: Final = (
    "each identity needs an address of this machine: add it to an interface (`ip address add`), or route a "
    "prefix to this machine (`ip route add local PREFIX dev lo`)"
)


@dataclass(frozen=True, slots=True)
class DataSocket:
    """A listening socket of the data plane; ``broker_id`` is None for a bootstrap port."""

    listener: str
    broker_id: BrokerId | None
    socket: socket.socket


@dataclass(frozen=True, slots=True)
class Sockets:
    """All listening sockets of one member."""

    peer: socket.socket
    admin: socket.socket
    control: socket.socket
    data: tuple[DataSocket, ...]

    def close_data(self) -> None:
        """Close the sockets of the data plane in this process, to refuse new clients."""
        for each in self.data:
            each.socket.close()

    def close(self) -> None:
        self.close_data()
        for each in (self.peer, self.admin, self.control):
            each.close()


def open_all(settings: Settings, member: MemberSettings) -> Sockets:
    """Bind all sockets of the member, or none. Call it under the lock of the data directory.

    Raises:
        StartError: an address cannot be bound, or the limit of open files is too low. The text names the
            field and the fix.
    """
    listeners = () if member.witness else member.listeners
    identities = settings.identities.broker_ids()
    _raise_open_files(len(listeners) * (1 + len(identities)), member)
    if listeners:
        _check_connections(settings, member)
    limits = settings.limits
    with ExitStack() as undo:

        def bound(endpoint: Endpoint, field: str) -> socket.socket:
            return undo.enter_context(_bind(endpoint, f"members.{member.proxy_id}.{field}", limits))

        peer = bound(member.peer, "peer")
        admin = bound(member.admin, "admin")
        control = undo.enter_context(_bind_control(member, limits.listen_backlog))
        data = tuple(
            DataSocket(listener.name, broker_id, bound(endpoint, f"listeners.{listener.name}.{field}"))
            for listener in listeners
            for broker_id, endpoint, field in _ports(settings, listener)
        )
        undo.pop_all()
        return Sockets(peer, admin, control, data)


def listening_ports(settings: Settings, member: MemberSettings) -> frozenset[int]:
    """Every TCP port that a member listens on."""
    listeners = () if member.witness else member.listeners
    data = {endpoint.port for each in listeners for _, endpoint, _ in _ports(settings, each)}
    return frozenset({member.peer.port, member.admin.port, *data})


def _ports(settings: Settings, listener: ListenerSettings) -> Iterator[tuple[BrokerId | None, Endpoint, str]]:
    yield None, listener.bootstrap, "bind"
    field = "first_port" if listener.first_address is None else "first_address"
    for broker_id, endpoint in listener.bound(settings.identities):
        yield broker_id, endpoint, field


def _raise_open_files(listening: int, member: MemberSettings) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and listening + SPARE_FDS > hard:
        raise StartError(
            f"identities.count: the listeners of {member.proxy_id} need {listening} listening sockets, but "
            f"this process may open only {hard} files; raise the hard limit (LimitNOFILE=, ulimit -Hn), or "
            "configure fewer identities"
        )


def max_probe_connections(settings: Settings, member: MemberSettings) -> int:
    """How many connections above the limit one worker keeps for probes of other members.

    Each member keeps one connection and probes every listener. Its previous connections may still be open.
    """
    return SPARE_CONNECTIONS + 2 * len(settings.members) * (1 + len(member.listeners))


def connection_capacity(settings: Settings, member: MemberSettings) -> int:
    """How many clients one worker can serve, with two open files each, next to its other open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    listening = len(member.listeners) * (1 + len(settings.identities.broker_ids()))
    return max(0, soft - listening - SPARE_FDS - BODY_FDS - max_probe_connections(settings, member)) // 2


def connections_per_worker(settings: Settings, member: MemberSettings) -> int:
    """A worker's share of ``limits.max_connections``, rounded up; without that limit, its capacity."""
    limit = settings.limits.max_connections
    return connection_capacity(settings, member) if limit is None else math.ceil(limit / member.workers)


def _check_connections(settings: Settings, member: MemberSettings) -> None:
    share, room = connections_per_worker(settings, member), connection_capacity(settings, member)
    if share > room:
        raise StartError(
            f"limits.max_connections: each worker of {member.proxy_id} needs {share} connections, but its "
            f"limit of open files allows {room}; raise the hard limit (LimitNOFILE=, ulimit -Hn), or lower "
            "limits.max_connections"
        )


def _bind(endpoint: Endpoint, field: str, limits: Limits) -> socket.socket:
    sock: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
        keep_alive(sock.fileno(), limits.vanished_timeout_s)
        sock.listen(limits.listen_backlog)
    except OSError as error:
        if sock is not None:
            sock.close()
        is_missing = error.errno == errno.EADDRNOTAVAIL and field.endswith(".first_address")
        advice = _MISSING_ADDRESS_ADVICE if is_missing else bind_advice(error, endpoint.port)
        detail = f"cannot listen on {endpoint} ({str(error.strerror).lower()}); {advice}"
        raise StartError(f"{field}: {detail}") from error
    return sock


def bind_advice(error: OSError, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return "use an address of this machine, or a name that resolves to one"
    if error.errno == errno.EADDRINUSE:
        return _advice_for_taken_port(port)
    if error.errno == errno.EADDRNOTAVAIL:
        return "bind 0.0.0.0 or an address of this machine, and set `advertise` to the address for clients"
    if error.errno == errno.EACCES:
        if port < FIRST_UNPRIVILEGED_PORT:
            return "configure a port above 1023, because lower ports require a privilege"
        return "allow this port in the policy of SELinux or AppArmor, or configure another port"
    if error.errno == errno.EMFILE:
        return "raise the limit of open files (LimitNOFILE=, ulimit -n)"
    return "configure another address"


def _advice_for_taken_port(port: int) -> str:
    """The fix for a port in use. The socket with this port may also be an outgoing connection."""
    advice = (
        f"find the other socket with `ss -tanp 'sport = :{port}'` and end its process, or configure "
        "another port"
    )
    kernel = read_ephemeral_ports()
    exposed = () if kernel is None else kernel.exposed((port,))
    if kernel is None or not exposed:
        return advice
    return (
        f"{advice}; if the other socket is an outgoing connection, reserve the port, which is in the "
        f"ephemeral range {kernel} ({kernel.reserve_command(exposed)})"
    )


def _bind_control(member: MemberSettings, backlog: int) -> socket.socket:
    """The Unix socket between control and workers. Under the lock, an existing file of that name is stale."""
    field = f"members.{member.proxy_id}.data_dir"
    path = member.control_socket
    if len(os.fsencode(path)) > UNIX_PATH_LIMIT_BYTES:
        raise StartError(
            f"{field}: {path} is longer than a Unix socket path may be ({UNIX_PATH_LIMIT_BYTES} "
            "bytes); configure a directory with a shorter path"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        sock.setblocking(False)
        sock.bind(str(path))
        path.chmod(0o600)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise StartError(
            f"{field}: cannot create the socket {path} ({str(error.strerror).lower()}); "
            f"{_advice_for_path(error)}"
        ) from error
    return sock


def _advice_for_path(error: OSError) -> str:
    if error.errno in (errno.EADDRINUSE, errno.EISDIR, errno.EPERM):
        return "remove the file or folder at this path"
    return "check owner, mode and free space of its directory"
