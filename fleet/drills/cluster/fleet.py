"""A fleet whose members all run on this machine, for the demo and the tests.

    with LocalFleet(folder, kafka.endpoints, proxies=3) as fleet:       # all members are ready
        fleet.bootstrap()                       # for a client's bootstrap.servers
        killed_at_s = fleet.kill(fleet.leader())
        fleet.await_settled({1, 2, 3}, fleet.running)

Start members from the main thread (see `fleet.drills.cluster.spawn`). Other methods may run in any thread.
"""

from __future__ import annotations

import http.client
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from fleet.admin.documents import OWNERSHIP, OwnershipDocument
from fleet.config import CONTROL_SOCKET, PRIVATE_FOLDER, Settings, bootstrap_endpoints, identity_owners
from fleet.config.file import load
from fleet.core.errors import AdminError, DemoError
from fleet.core.model import BROKER_ID, Addressing, BrokerId, Endpoint, IdentitySpace, ProxyId
from fleet.drills.cluster.ports import free_ports
from fleet.drills.cluster.spawn import end, signal_trees, spawn_module, tail
from fleet.drills.workload.waiting import pauses_s
from fleet.tls import issuing
from fleet.tls.access import access_to

LISTENER = "external"
READY_LIMIT_S = 40.0
CERTIFICATE_DAYS = 7
_ANSWER_LIMIT_S = 2.0
_RACKS = "abc"
_TOKENS = {"read": {"file": "read-token"}, "write": {"file": "write-token"}}
_SOCKET_PATH_BYTES = 107


class LocalFleet:
    """Members p1 … pN of one fleet. Each member is a `fleet node` in a session of its own.

    Args:
        folder: has fleet.yaml, the members' data and their logs.
        bootstrap_servers: the real brokers.
        proxies: number of members.
        identities: the broker ids that get a port.
        host: address that the members bind and advertise.
        addressing: ``identity_ports``, or one loopback address for each member and identity: ``addresses``
            or ``shared``.
        workers: number of worker processes of each member.
        racks: whether members have the racks a, b, c, a, …, as the brokers of `KafkaCluster` do.
        timing: values that differ from the defaults of `fleet.config.Timing`.
        peer_tls: whether links between members use TLS, with certificates that are made here.
        listener_tls: the TLS section of the first listener; None for plaintext.
        more_listeners: the TLS sections of additional listeners, by name.
        admin_tokens: whether the admin addresses use TLS and require tokens, which are made here.
        limits, events, tracing, balance, upstream: the sections of these names; None to leave one out.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap_servers: Sequence[Endpoint],
        proxies: int = 3,
        *,
        identities: IdentitySpace = IdentitySpace(first_id=1, count=8),  # noqa: B008 (frozen)
        host: str = "127.0.0.1",
        addressing: Addressing = "identity_ports",
        workers: int = 1,
        racks: bool = True,
        timing: Mapping[str, float] | None = None,
        peer_tls: bool = False,
        listener_tls: Mapping[str, object] | None = None,
        more_listeners: Mapping[str, Mapping[str, object]] | None = None,
        limits: Mapping[str, object] | None = None,
        admin_tokens: bool = False,
        events: Mapping[str, object] | None = None,
        tracing: Mapping[str, object] | None = None,
        balance: Mapping[str, object] | None = None,
        upstream: Mapping[str, object] | None = None,
    ) -> None:
        self._folder = folder.resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        self.config = self._folder / "fleet.yaml"
        self.data = _data_folder(self._folder, proxies)
        span = 1 + max(identities.offset(broker_id) or 0 for broker_id in identities.broker_ids())
        secured = dict(more_listeners or {})
        if listener_tls is not None:
            secured[LISTENER] = listener_tls
        listeners = (LISTENER, *(more_listeners or ()))
        ports = iter(free_ports(proxies * (2 + len(listeners) * (span + 1)), (host,)))
        members = {}
        for index in range(proxies):
            peer, admin = next(ports), next(ports)
            firsts = {name: [next(ports) for _ in range(span + 1)][:2] for name in listeners}
            members[f"p{index + 1}"] = {
                **({"rack": _RACKS[index % 3]} if racks else {}),
                "peer": f"127.0.0.1:{peer}",
                "admin": f"127.0.0.1:{admin}",
                "data_dir": str(self.data / f"p{index + 1}"),
                "workers": workers,
                "listeners": {
                    name: _listener(addressing, Endpoint(host, bootstrap), first_port, index)
                    for name, (bootstrap, first_port) in firsts.items()
                },
            }
        document = {
            "fleet": "demo",
            "bootstrap_servers": [str(endpoint) for endpoint in bootstrap_servers],
            "identities": _identities(identities),
            **({"timing": dict(timing)} if timing else {}),
            **({"peer_tls": {}} if peer_tls else {}),
            **(
                {"listener_tls": {name: dict(section) for name, section in secured.items()}}
                if secured
                else {}
            ),
            **({} if limits is None else {"limits": dict(limits)}),
            **({"admin": {"tls": {}, "tokens": _TOKENS}} if admin_tokens else {}),
            **({} if events is None else {"events": dict(events)}),
            **({} if tracing is None else {"tracing": dict(tracing)}),
            **({} if balance is None else {"balance": dict(balance)}),
            **({} if upstream is None else {"upstream": dict(upstream)}),
            "members": members,
        }
        self.config.write_text(yaml.safe_dump(document, sort_keys=False))
        self.settings: Settings = load(self.config, {})
        self.certificates = self._folder / "certs"
        if peer_tls or admin_tokens:
            made = (self.members, self.certificates, CERTIFICATE_DAYS, datetime.now(UTC))
            issuing.make("demo", *made, issuing.member_hosts(self.settings))
        if admin_tokens:
            for place in _TOKENS.values():
                file = self._folder / place["file"]
                file.touch(mode=0o600)
                file.write_text(secrets.token_hex(32))
        self.access = access_to(self.settings, {})
        self.processes: dict[ProxyId, subprocess.Popen[bytes]] = {}
        self.own_config: dict[ProxyId, Path] = {}
        self.through: dict[ProxyId, Sequence[str]] = {}
        """By member, the command that starts it; see `spawn_module`."""
        self.environment: dict[ProxyId, Mapping[str, str]] = {}
        """By member, additional environment variables; see `spawn_module`."""

    @property
    def members(self) -> tuple[ProxyId, ...]:
        return tuple(self.settings.members)

    @property
    def running(self) -> tuple[ProxyId, ...]:
        """The members whose supervisor is running, in the order of their ids. Frozen members are included."""
        live = {proxy_id for proxy_id, process in self.processes.items() if process.poll() is None}
        return tuple(proxy_id for proxy_id in self.members if proxy_id in live)

    @property
    def logs(self) -> Path:
        return self._folder / "logs"

    def log(self, proxy_id: ProxyId) -> Path:
        return self.logs / f"{proxy_id}.log"

    # ---------------------------------------------------------------------------------------- addresses

    def bootstrap_endpoint(self, proxy_id: ProxyId) -> Endpoint:
        """The bootstrap address of one member."""
        return bootstrap_endpoints(self.settings)[proxy_id]

    def bootstrap(self, proxy_ids: Iterable[ProxyId] | None = None) -> str:
        """The bootstrap addresses of some members, or of all, as a value of `bootstrap.servers`."""
        return ",".join(
            str(self.bootstrap_endpoint(each)) for each in (self.members if proxy_ids is None else proxy_ids)
        )

    def owner_of(self, endpoint: Endpoint) -> ProxyId | None:
        """The member that an advertised address belongs to; None for an unknown address."""
        return identity_owners(self.settings).get(endpoint)

    # ------------------------------------------------------------------------------------- start and stop

    def dial_through(self, proxy_id: ProxyId, peer: ProxyId, via: Endpoint) -> None:
        """Give one member a configuration file of its own, with another address for one of its peers.

        Tests put a network that they can break in between. The file takes effect at the member's next start.
        Of two members, the member with the greater id dials.
        """
        document = self._own_document(proxy_id)
        document["members"][peer]["peer"] = str(via)
        self.configure(proxy_id, document)

    def reach_brokers_at(self, proxy_id: ProxyId, bootstrap_servers: Sequence[Endpoint]) -> None:
        """Give one member a configuration file of its own, with other addresses of the real brokers.

        The file takes effect at the member's next start. The member then connects to the addresses that the
        brokers advertise on that listener.
        """
        document = self._own_document(proxy_id)
        document["bootstrap_servers"] = [str(endpoint) for endpoint in bootstrap_servers]
        self.configure(proxy_id, document)

    def _own_document(self, proxy_id: ProxyId) -> Any:
        return yaml.safe_load(self.own_config.get(proxy_id, self.config).read_text())

    def configure(self, proxy_id: ProxyId, document: Any) -> None:
        self.own_config[proxy_id] = self._folder / f"fleet-{proxy_id}.yaml"
        self.own_config[proxy_id].write_text(yaml.safe_dump(document, sort_keys=False))

    def start(self, *proxy_ids: ProxyId) -> None:
        """Start members that are not running, by default all of them, without waiting for them."""
        for proxy_id in proxy_ids or self.members:
            running = self.processes.get(proxy_id)
            if running is not None and running.poll() is None:
                raise DemoError(f"{proxy_id} is already running")
            config = self.own_config.get(proxy_id, self.config)
            arguments = ("node", "--config", str(config), "--node", proxy_id)
            through = self.through.get(proxy_id, ())
            self.processes[proxy_id] = spawn_module(
                "fleet",
                *arguments,
                log=self.log(proxy_id),
                through=through,
                env=self.environment.get(proxy_id),
            )

    def kill(self, *proxy_ids: ProxyId) -> float:
        """Send SIGKILL to the whole process trees of members, all at once.

        Returns: the monotonic time before the signals, in seconds.
        """
        killed_at_s = signal_trees([self.processes[each] for each in proxy_ids], signal.SIGKILL)
        for proxy_id in proxy_ids:
            self.processes[proxy_id].wait()
        return killed_at_s

    def terminate(self, proxy_id: ProxyId) -> None:
        """Send SIGTERM to a member's supervisor, without waiting for its end."""
        self.processes[proxy_id].terminate()

    def stop(self, proxy_id: ProxyId, limit_s: float = 45.0) -> int:
        """Send SIGTERM to a member's supervisor, and wait for its end.

        Returns: the exit code.
        Raises:  DemoError: the supervisor did not end in time.
        """
        process = self.processes[proxy_id]
        process.terminate()
        try:
            return process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise DemoError(
                f"{proxy_id} did not end within {limit_s:.0f} s; see {self.log(proxy_id)}"
            ) from None

    def freeze(self, proxy_id: ProxyId) -> float:
        """Send SIGSTOP to a member's whole process tree. Returns: the monotonic time before the signals."""
        return signal_trees([self.processes[proxy_id]], signal.SIGSTOP)

    def thaw(self, proxy_id: ProxyId) -> float:
        """Send SIGCONT to a member's whole process tree. Returns: the monotonic time before the signals."""
        return signal_trees([self.processes[proxy_id]], signal.SIGCONT)

    def pid(self, proxy_id: ProxyId) -> int:
        """Process id of a member's supervisor."""
        return self.processes[proxy_id].pid

    def close(self) -> None:
        """Kill every member. Data and logs stay."""
        end(list(self.processes.values()), patience_s=0.0)
        self.processes.clear()

    def remove_data(self) -> None:
        """Remove the members' data, but not their logs. Call it after `close`."""
        shutil.rmtree(self.data, ignore_errors=True)

    # -------------------------------------------------------------------------------------------- queries

    def get(self, proxy_id: ProxyId, path: str, limit_s: float = _ANSWER_LIMIT_S) -> tuple[int, bytes]:
        """GET a path of a member's admin address. Returns: status, body. Raises: AdminError: no answer."""
        admin = self.settings.member(proxy_id).admin
        address, access = (admin.host, admin.port), self.access
        connection = (
            http.client.HTTPConnection(*address, timeout=limit_s)
            if access.tls is None
            else http.client.HTTPSConnection(*address, timeout=limit_s, context=access.tls)
        )
        try:
            connection.request("GET", path, headers=access.headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise AdminError(f"{proxy_id} did not answer {path}: {error!r}") from error
        finally:
            connection.close()

    def ownership(self, proxy_id: ProxyId, limit_s: float = _ANSWER_LIMIT_S) -> OwnershipDocument:
        """One member's view of the fleet. Raises: AdminError: there is no answer, or an invalid one."""
        status, body = self.get(proxy_id, "/ownership", limit_s)
        if status != 200:
            raise AdminError(f"{proxy_id} answered {status} to /ownership: {body!r:.200}")
        try:
            return OWNERSHIP.decode(body)
        except ValueError as error:
            raise AdminError(f"{proxy_id}: /ownership is not a document of this version") from error

    def owners(self, proxy_id: ProxyId = "p1") -> dict[BrokerId, ProxyId]:
        """The first committed owner of each identity, as one member knows them. Raises: AdminError."""
        return {each.broker_id: each.committed[0] for each in self.ownership(proxy_id).identities}

    def try_ownership(self, proxy_id: ProxyId, limit_s: float = _ANSWER_LIMIT_S) -> OwnershipDocument | None:
        """One member's view of the fleet; None if the member does not answer."""
        try:
            return self.ownership(proxy_id, limit_s)
        except AdminError:
            return None

    def leader(self) -> ProxyId | None:
        """The running member that reports the role leader, in the newest term; None if no member does."""
        documents = [document for each in self.running if (document := self.try_ownership(each)) is not None]
        leading = [document for document in documents if document.role == "leader"]
        return max(leading, key=lambda document: document.term).proxy_id if leading else None

    # ---------------------------------------------------------------------------------------------- waits

    def wait_until(self, condition: Callable[[], bool], what: str, limit_s: float = READY_LIMIT_S) -> None:
        """Wait for a condition. Raises: DemoError: the time is over, or a member ended meanwhile."""
        deadline_s = time.monotonic() + limit_s
        expected, pauses = self.running, pauses_s()
        while not condition():
            for proxy_id in expected:
                code = self.processes[proxy_id].poll()
                if code is not None:
                    log = self.log(proxy_id)
                    raise DemoError(f"{proxy_id} ended with code {code}; see {log}:\n{tail(log)}")
            if time.monotonic() > deadline_s:
                raise DemoError(f"{what}: not within {limit_s:.0f} s; see the logs in {self.logs}")
            time.sleep(next(pauses))

    def is_ready(self, proxy_id: ProxyId) -> bool:
        """Whether a member's /readyz answers 200."""
        try:
            return self.get(proxy_id, "/readyz")[0] == 200
        except AdminError:
            return False

    def await_ready(self, *proxy_ids: ProxyId, limit_s: float = READY_LIMIT_S) -> None:
        """Wait until members are ready: by default all that are running."""
        for proxy_id in proxy_ids or self.running:
            self.wait_until(partial(self.is_ready, proxy_id), f"{proxy_id} ready", limit_s)

    def is_settled(self, broker_ids: AbstractSet[BrokerId], among: Sequence[ProxyId]) -> bool:
        """Whether members agree on one generation, and share all identities evenly.

        Args:
            broker_ids: the identities.
            among: the members to query, which must own all identities.
        """
        documents = [self.try_ownership(proxy_id) for proxy_id in among]
        if len({document.generation if document else None for document in documents}) != 1:
            return False
        for document in documents:
            if document is None or not document.quorum.present:
                return False
            owned = {each.broker_id: each for each in document.identities}
            if not broker_ids <= owned.keys():
                return False
            if any(each.committed != each.advertised for each in owned.values()):
                return False
            loads = dict.fromkeys(among, 0)
            for owner in (owner for each in owned.values() for owner in each.committed):
                if owner not in loads:
                    return False
                loads[owner] += 1
            if max(loads.values()) - min(loads.values()) > 1:
                return False
        return True

    def await_settled(
        self,
        broker_ids: AbstractSet[BrokerId],
        among: Sequence[ProxyId] | None = None,
        limit_s: float = READY_LIMIT_S,
    ) -> None:
        """Wait for `is_settled`, by default among all running members."""
        owners = tuple(self.running if among is None else among)
        what = f"identities {sorted(broker_ids)} owned evenly by {', '.join(owners)}"
        self.wait_until(lambda: self.is_settled(broker_ids, owners), what, limit_s)

    # ------------------------------------------------------------------------------- as a context manager

    def __enter__(self) -> LocalFleet:
        try:
            self.start()
            self.await_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _listener(addressing: Addressing, bind: Endpoint, first_port: int, index: int) -> dict[str, object]:
    """The section of a listener of one member."""
    if addressing == "addresses":
        return {"bind": str(bind), "addressing": addressing, "first_address": f"127.88.{index + 1}.1"}
    if addressing == "shared":  # a host of its own for each identity, which needs no name server
        own = {"bind": f"0.0.0.0:{bind.port}", "advertise": str(bind)}
        return {**own, "addressing": addressing, "broker_host": f"127.88.{index + 1}.{BROKER_ID}"}
    return {"bind": str(bind), "first_port": first_port}


def _data_folder(folder: Path, proxies: int) -> Path:
    """The folder of the members' data: below `folder`, or elsewhere if its path is too long for sockets."""
    longest = folder / "data" / f"p{proxies}" / PRIVATE_FOLDER / CONTROL_SOCKET
    if len(os.fsencode(longest)) <= _SOCKET_PATH_BYTES:
        return folder / "data"
    elsewhere = folder / "data-is-in"
    if not elsewhere.exists():
        elsewhere.write_text(tempfile.mkdtemp(prefix="fleet-"))
    return Path(elsewhere.read_text())


def _identities(space: IdentitySpace) -> dict[str, object]:
    if space.explicit:
        return {"ids": dict(space.explicit)}
    return {"first_id": space.first_id, "count": space.count}
