"""The worker of the data plane: its sockets, its directory, and its orderly end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fleet.core.errors import HandshakeFailed, LimitExceeded, MemoryLimit, WireError
from fleet.core.model import Broker, BrokerId, Directory
from fleet.core.traffic import ConnectionEnd
from fleet.proxy.addresses import AddressSource
from fleet.proxy.broker_connection import BrokerConnection
from fleet.proxy.brokers import Upstreams
from fleet.proxy.budget import IN_FLIGHT_BYTES, Backlogs, MemoryBudget
from fleet.proxy.connection import ClientConnection
from fleet.proxy.control_channel import ControlChannel
from fleet.proxy.counters import Counters
from fleet.proxy.deadlines import Deadlines
from fleet.proxy.departures import Departures, Party
from fleet.proxy.dialer import Dialer
from fleet.proxy.host import Host, State
from fleet.proxy.limits import ConnectionLimiter
from fleet.proxy.quota import Quota
from fleet.proxy.routed_connection import RoutedConnection
from fleet.proxy.session import Session
from fleet.proxy.sessions import SessionFactory
from fleet.proxy.shared_listeners import SharedListeners
from fleet.proxy.sni import ServerNames
from fleet.proxy.splice import create_pipe
from fleet.proxy.tls_server import NamedClients, TlsServer
from fleet.proxy.tls_transport import SharedTls
from fleet.proxy.traffic import Sampling, Traffic, TrafficLog
from fleet.proxy.turns import TurnQueue
from fleet.runtime import ipc
from fleet.runtime.child import ChildSpec
from fleet.runtime.ipc import BOOTSTRAP, ConnectionRow, Hello, TrafficMessage, WorkerCounters
from fleet.runtime.ticker import PeriodicCallback
from fleet.tls import listeners
from fleet.tls.brokers import broker_tls

log = logging.getLogger(__name__)

FIRST_DIRECTORY_S: Final = 0.5
"""How long a starting worker lets clients wait for a newer directory than the file's."""
DRAIN_PHASE_SHARE: Final = 0.1
"""Share of ``drain_timeout_s`` for each of three phases: clients leave one after the other; connections wait
for a moment when nothing is in flight; requests in flight are answered. Control may have used half of the
time, and goodbyes need some."""
MOVE_NOTICE_S: Final = 0.25
"""How long other members get to learn of a move before clients are sent to them. A client that gets the old
address once more comes back, and stays."""
MOVE_RETENTION_S = 600.0  # not Final: tests change it, and a compiler would write its value into the code
"""The shortest time after a move in which clients are made to forget a coordinator's old address. It exceeds
the time-outs of sessions and sockets, so every client that lost its coordinator looks for it within this
time."""
FORGET_MOVES_INTERVAL_S = 60.0  # not Final, as above
"""The interval at which old moves are forgotten: a multiple of the interval of counters."""
LIBRDKAFKA_IDLE_WAIT_S: Final = 1.0
"""How long connections of a librdkafka client wait for a moment when nothing is in flight. The moment comes
soon, or never on a busy machine, and meanwhile the client may request Metadata at any time. A party then
waits as long again for its slowest connection, and forwards nothing new."""
FIRST_MOVE_DELAY_S: Final = 0.05
"""How long the first turn of departures waits for other identities of the same clients to move."""
CLIENT_RETURN_S: Final = 1.0
"""How long clients may come back after they were sent away: some do so once, and learn the new address
meanwhile. A stopping worker listens for this long. A running worker sends them away again after this time."""
MOVE_AGAIN_WINDOW_S: Final = 10.0
"""How long after a move returning clients are sent away again; later ones have no alternative."""
HELD_LONGEST_RESPONSES: Final = 2
"""How many responses of the greatest allowed size all connections of a worker may hold at a time."""
BACKLOG_WRITE_BUFFERS: Final = 4
"""Memory for all clients of a worker that are behind, in write buffers; a lower bound of the limit."""
REQUEST_WRITE_BUFFERS: Final = 32
"""Memory for the requests in flight of all clients of a worker that have many, in write buffers."""
LONGEST_READ_BYTES: Final = 256 * 1024
"""The longest read of a transport. Limits count each buffer and response as at least this long, so that one
client alone never exceeds them."""
LINGER_SHARE: Final = 0.1
LINGER_LIMIT_S: Final = 5.0


class Worker(Host):
    """One worker of a member.

    Args:
        spec: the supervisor's specification; the worker takes over its file descriptors.
        first_directory_s: how long clients wait for a newer directory than the file's.
    """

    def __init__(self, spec: ChildSpec, first_directory_s: float = FIRST_DIRECTORY_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._first_directory_s = first_directory_s
        self._spec = spec
        self._member = spec.member
        self._me = self._member.to_member(spec.settings)
        self._timing = spec.settings.timing
        self._limits = spec.settings.limits
        self.write_buffer_bytes = self._limits.write_buffer_bytes
        held_bytes = HELD_LONGEST_RESPONSES * max(self._limits.max_patched_response_bytes, LONGEST_READ_BYTES)
        self.responses = MemoryBudget(held_bytes, self._evict_response)
        backlog_bytes = BACKLOG_WRITE_BUFFERS * max(self.write_buffer_bytes, LONGEST_READ_BYTES)
        self.backlogs = Backlogs(backlog_bytes, self.responses, self._evict_reader)
        requests_bytes = REQUEST_WRITE_BUFFERS * max(self.write_buffer_bytes, LONGEST_READ_BYTES)
        self.requests = MemoryBudget(requests_bytes, self._evict_requests)
        self.turns = TurnQueue(self._loop.call_soon)
        self.linger_s = min(LINGER_LIMIT_S, self._timing.drain_timeout_s * LINGER_SHARE)
        self._counters = Counters()
        self.traffic_log: TrafficLog | None = None
        self._dial_count = 0
        self.sampling = Sampling()
        self.pipe = create_pipe()
        self.leaving = Deadlines(self.linger_s, BrokerConnection.abort)
        if spec.settings.events is not None:
            life = f"{spec.index}-{os.getpid()}-{wall_ms():x}"
            self.traffic_log = TrafficLog(life, self._counters.rows, time.monotonic())
            self.sampling.schedule_next()
        self.upstreams = Upstreams(spec.settings.bootstrap_servers)
        self.limiter = ConnectionLimiter(spec.settings, self._member, self._all_connections)
        self.connections: dict[BrokerId, set[ClientConnection]] = {}
        self.servers: list[asyncio.Server | TlsServer] = []
        self._tls = listeners.servers(spec.settings, spec.proxy_id)
        self.shared_tls = SharedTls(self.linger_s)
        self.is_draining = False
        self._move_interval_s = self._member.workers / self._limits.moves_per_second
        self._next_move_s = 0.0
        self._moved_s: dict[BrokerId, float] = {}
        self._departures: Departures[ClientConnection] = Departures()
        self._next_departure: asyncio.TimerHandle | None = None
        self._withheld_until_s: dict[BrokerId, dict[int, float]] = {}
        """Identity that has moved away → hash of a client's key → until when Produce of a returning
        librdkafka client is withheld."""
        self._withheld: set[ClientConnection] = set()
        """The connections whose Produce is withheld."""
        self._recent_moves: deque[tuple[float, AddressSource, int]] = deque()
        """For each directory and listener: its time of arrival, the source, and the number of the update."""
        self._leaving_connections: set[ClientConnection] = set()
        self._all_left = asyncio.Event()
        self._directory = Directory(members={self._me.proxy_id: self._me})
        self.sources = {
            each.name: AddressSource(
                self._directory, each.name, self._me.proxy_id, self._report_broker, self._counters.wire
            )
            for each in self._member.listeners
        }
        hello = Hello(spec.index, os.getpid())
        take_traffic = None if self.traffic_log is None else partial(self._take_traffic, self.traffic_log)
        self.control_channel = ControlChannel(
            spec.control_socket, hello, self.apply, self._note_reachable, self.snapshot, take_traffic
        )
        tls = broker_tls(spec.settings.upstream)
        context = None if tls is None else tls.get
        timeout_s, control = self._timing.upstream_connect_timeout_s, self.control_channel
        shared = frozenset(each.name for each in self._member.listeners if each.is_shared)
        self.shared = SharedListeners(shared, self._me.proxy_id, self.upstreams, context, timeout_s)
        self.dialer = Dialer(
            self.upstreams,
            context,
            self.shared_tls,
            timeout_s,
            control.report_lost_broker,
            control.report_unknown_broker,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then drain."""
        stored = ipc.read_directory(self._spec.folder / ipc.DIRECTORY_FILE)
        if stored is not None:
            self.apply(stored)
        following = asyncio.create_task(self.control_channel.run())
        sweeping = self.limiter.start()
        forgetting = PeriodicCallback(FORGET_MOVES_INTERVAL_S, self._forget_moves)
        reporting = self.control_channel.start_reporting()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._first_directory_s):
                    await self.control_channel.first_directory.wait()
            await self._listen()
            log.info("serving: ports=%d generation=%d", len(self.servers), self._directory.generation)
            stopping = asyncio.create_task(stop.wait())
            ends: list[asyncio.Future[None]] = [
                following,
                sweeping.failed,
                forgetting.failed,
                *(each.failed for each in reporting),
            ]
            waiting: list[asyncio.Future[Any]] = [*ends, stopping]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            for end in ends:
                if end.done():
                    end.result()  # each of them only ends with an error
            await self._drain_all()
        finally:
            self.control_channel.send_counters()
            following.cancel()
            for each in (forgetting, *reporting):
                each.stop()
            self.limiter.stop()
            await asyncio.wait([following])
            self.dialer.stop()
            self.shared.stop()

    # ---- directories

    def apply(self, directory: Directory) -> None:
        """Switch to a new directory, and send away the clients whose identity has left this member."""
        before, me = self._directory, self._me.proxy_id
        if me not in directory.members:
            directory = replace(directory, members={**directory.members, me: self._me})
        self._directory = directory
        self.upstreams.commit(directory.brokers)
        self.shared.apply(directory)
        self.dialer.retry_unknown()
        now_s = self._loop.time()
        for source in self.sources.values():
            self._recent_moves.append((now_s, source, source.update(directory)))
        lost_ids = [
            broker_id
            for broker_id in self.connections
            if me in before.advertised.get(broker_id, ())
            and me not in directory.advertised.get(broker_id, ())
        ]
        if lost_ids:
            self._move_away(lost_ids)
        for connection in [each for each in self._withheld if self._owns(each)]:
            self._end_withholding(connection)  # the client connects again, and is served

    def _forget_moves(self) -> None:
        """Forget old moves. With a loop timer for each directory, all waits of the loop would be limited."""
        before_s = self._loop.time() - MOVE_RETENTION_S
        old: dict[AddressSource, int] = {}
        while self._recent_moves and self._recent_moves[0][0] <= before_s:
            _, source, update = self._recent_moves.popleft()
            old[source] = update
        for source, update in old.items():
            source.forget_moves(update)
        now_s = self._loop.time()
        for broker_id, clients in list(self._withheld_until_s.items()):
            if all(until_s <= now_s for until_s in clients.values()):
                del self._withheld_until_s[broker_id]

    def _move_away(self, broker_ids: Collection[BrokerId]) -> None:
        """Let the clients of identities leave one by one, so that they do not all reconnect at once."""
        leaving: list[ClientConnection] = []
        for broker_id in broker_ids:
            served = self.connections[broker_id]
            log.info(
                "identity has moved to another member, moving its connections: identity=%d connections=%d",
                broker_id,
                len(served),
            )
            self._moved_s[broker_id] = self._loop.time()
            self._withheld_until_s[broker_id] = {}
            leaving += served
        for connection in leaving:
            if connection.session.drops_moved:
                connection.session.watch_fetches(on=True)
        self._loop.call_later(MOVE_NOTICE_S, self._queue, leaving)

    def _queue(self, leaving: Iterable[ClientConnection]) -> None:
        """Queue connections for their turn to leave; by now the other members know the new owners."""
        if not self._departures:
            self._next_move_s = max(self._next_move_s, self._loop.time() + FIRST_MOVE_DELAY_S)
        self._departures.add(filter(self._has_to_leave, leaving))
        self._depart_later()

    def _has_to_leave(self, connection: ClientConnection) -> bool:
        """Whether a connection has to leave, and has not been sent away yet."""
        if connection.is_moving or connection.state is State.CLOSED or connection in self._withheld:
            return False
        return not self._owns(connection)

    def _depart_later(self) -> None:
        if self._departures and self._next_departure is None:
            self._next_departure = self._loop.call_at(self._next_move_s, self._depart)

    def _depart(self) -> None:
        self._next_departure = None
        leaving: list[ClientConnection] = []
        while self._departures and not leaving:
            for connection in self._departures.take():
                if self._has_to_leave(connection):
                    leaving.append(connection)
                else:
                    connection.session.watch_fetches(on=False)
        self._next_move_s += self._move_interval_s * len(leaving)
        self._send_away(leaving, self._timing.move_timeout_s, self._timing.move_timeout_s)
        self._depart_later()

    def _send_away(self, connections: list[ClientConnection], idle_wait_s: float, answer_s: float) -> None:
        """Send connections away; several of them leave together."""
        soon_s = min(idle_wait_s, LIBRDKAFKA_IDLE_WAIT_S)
        together = [each for each in connections if not each.is_moving and each.party is None]
        if len(together) > 1:
            party = Party(together)
            self._loop.call_later(soon_s + min(answer_s, LIBRDKAFKA_IDLE_WAIT_S), party.end)
        until_s = self._loop.time() + soon_s + self._timing.move_timeout_s
        for connection in connections:
            broker_id, session = connection.broker_id, connection.session
            if not session.drops_moved or session.is_group_member:
                connection.move(idle_wait_s, answer_s)
                continue
            if broker_id in self._withheld_until_s:
                self._withheld_until_s[broker_id].setdefault(hash(session.client_key), until_s)
            connection.move(soon_s, idle_wait_s - soon_s + answer_s)

    def _owns(self, connection: ClientConnection) -> bool:
        broker_id = connection.broker_id
        if broker_id is None or self.shared.is_common(connection.listener):
            return True
        return self._me.proxy_id in self._directory.advertised.get(broker_id, ())

    def _report_broker(self, broker: Broker) -> None:
        """Report a broker with another address in a response than in the directory; control checks it."""
        self.control_channel.report_brokers([broker])

    def _note_reachable(
        self, reachable: Mapping[BrokerId, bool], api_versions: Mapping[BrokerId, str]
    ) -> None:
        self.upstreams.note_reachable(reachable, time.monotonic())
        self.shared.note_versions(api_versions)

    def snapshot(self) -> WorkerCounters:
        """Return the counters as they are now."""
        return self._counters.snapshot(
            self.upstreams.up, self._directory.generation, self._directory.revision, self.is_draining
        )

    # ---- connections

    async def _listen(self) -> None:
        for each in self._spec.listeners:
            factory = self.protocol_factory(each.listener, each.broker_id)
            sock = socket.socket(fileno=each.fd)
            if each.listener in self._tls:
                self.servers.append(self._tls_server(sock, each.listener, factory))
            else:
                backlog = self._limits.listen_backlog
                self.servers.append(await self._loop.create_server(factory, sock=sock, backlog=backlog))

    def _tls_server(
        self, sock: socket.socket, listener: str, factory: Callable[[], asyncio.Protocol]
    ) -> TlsServer:
        serve = partial(
            TlsServer,
            sock,
            listener,
            refused=self._handshake_failed,
            handshake_s=self._limits.first_request_timeout_s,
            shared=self.shared_tls,
        )
        context = self._tls[listener].get
        everywhere = [
            advertised
            for member in self._spec.settings.members.values()
            for advertised in member.to_member(self._spec.settings).listeners
            if advertised.name == listener
        ]
        if listener not in self.shared and any(each.broker_host is not None for each in everywhere):
            names = ServerNames(everywhere, self._spec.settings.identities)
            named = NamedClients(context, names, partial(self.protocol_factory, listener))
            return serve(context=named.context, factory=named.protocol)
        return serve(context=context, factory=lambda _: factory())

    def protocol_factory(self, listener: str, broker_id: BrokerId | None) -> Callable[[], ClientConnection]:
        key = BOOTSTRAP if broker_id is None else broker_id
        traffic: Traffic | None = None
        make_session: Callable[[str], Session] | None = None

        def connection() -> ClientConnection:
            nonlocal traffic, make_session
            if traffic is None or make_session is None:
                # Created with the first connection: most of many thousand ports may never have any.
                traffic = self._counters.traffic(listener, key)
                make_session = self._session_factory(listener, traffic).make
            return ClientConnection(self, broker_id, traffic, listener, make_session)

        return self._routed_factory(listener) if listener in self.shared else connection

    def _routed_factory(self, listener: str) -> Callable[[], RoutedConnection]:
        traffic = self._counters.traffic(listener, BOOTSTRAP)
        sessions = self._session_factory(listener, traffic)

        def connection() -> RoutedConnection:
            return RoutedConnection(self, traffic, listener, sessions.make, self.shared.router(listener))

        return connection

    def _session_factory(self, listener: str, traffic: Traffic) -> SessionFactory:
        return SessionFactory(
            self.sources[listener],
            self._limits,
            traffic.wire,
            time.perf_counter,
            self._counters.note_rewrite,
            traffic.answered,
        )

    def opened(self, connection: ClientConnection) -> None:
        connection.traffic.connections += 1
        connection.traffic.opened += 1
        key = BOOTSTRAP if connection.broker_id is None else connection.broker_id
        self.connections.setdefault(key, set()).add(connection)
        self.limiter.opened(connection)
        if self.is_draining:
            self._leaving_connections.add(connection)
            connection.drain(0.0)
        else:
            self._check_returned(connection, key)

    def _check_returned(self, connection: ClientConnection, key: BrokerId) -> None:
        """Send a connection away again if its identity has just moved to another member."""
        if key in self._moved_s and self._loop.time() < self._moved_s[key] + MOVE_AGAIN_WINDOW_S:
            if not self._owns(connection):
                connection.mark_returned()
            self._loop.call_later(CLIENT_RETURN_S, self._move_again, connection)

    def identify(self, connection: RoutedConnection, broker_id: BrokerId) -> None:
        """Count a connection of a shared port as one of a broker."""
        was_unknown = connection.broker_id is None
        self._forget(connection)
        connection.traffic.connections -= 1
        connection.broker_id = broker_id
        connection.traffic = traffic = self._counters.traffic(connection.listener, broker_id)
        traffic.connections += 1
        connection.session.count_into(traffic.wire, traffic.answered)
        self.connections.setdefault(broker_id, set()).add(connection)
        if was_unknown:
            self._check_returned(connection, broker_id)

    def look_up(self, connection: RoutedConnection) -> None:
        self.shared.look_up(connection)

    def gather(self, connection: RoutedConnection) -> None:
        error = self.limiter.ask_for_broker(connection)
        if error is None:
            self.shared.gather(connection)
        else:
            connection.refuse(error)

    def redial(self, connection: RoutedConnection) -> None:
        # In a later turn: the dialer may just have connected another broker for this client.
        self._loop.call_soon(self._redial, connection)

    def _redial(self, connection: RoutedConnection) -> None:
        if connection.state is State.DIALING:
            self.dialer.dial(connection)

    def client_returned(self, connection: ClientConnection) -> None:
        """Withhold Produce of a returning client that was just sent away, and that drops connections.

        Metadata with the new address is in transit, or the client requests it here. When it arrives the
        client drops the connection, and requests in flight would run twice.
        """
        broker_id, session = connection.broker_id, connection.session
        assert broker_id is not None
        until_s = self._withheld_until_s.get(broker_id, {}).get(hash(session.client_key), 0.0)
        now_s = self._loop.time()
        if session.drops_moved and now_s < until_s and not self._owns(connection):
            connection.withhold_produce()
            self._withheld.add(connection)
            # Not for longer: the client's Metadata request may be behind a Produce. Once the connection ends,
            # the client sends Metadata to another member.
            self._loop.call_at(min(until_s, now_s + CLIENT_RETURN_S), self._end_withholding, connection)

    def _end_withholding(self, connection: ClientConnection) -> None:
        """Drain a withheld connection. Its requests never run, because its client may have left by now."""
        if connection in self._withheld:
            self._withheld.remove(connection)
            connection.drain(self._timing.move_timeout_s)

    def _move_again(self, connection: ClientConnection) -> None:
        if connection not in self._withheld and not connection.is_moving and not self._owns(connection):
            connection.move(self._timing.move_timeout_s, self._timing.move_timeout_s)

    def closed(self, connection: ClientConnection) -> None:
        connection.traffic.connections -= 1
        self.limiter.closed(connection)
        if connection.number:
            self._note_connection(connection, connection.end)
        self._forget(connection)
        self.dialer.give_up(connection)
        self._withheld.discard(connection)
        self._leaving_connections.discard(connection)
        if not self._leaving_connections:
            self._all_left.set()

    def _forget(self, connection: ClientConnection) -> None:
        """Remove a connection from those of its broker."""
        key = BOOTSTRAP if connection.broker_id is None else connection.broker_id
        served = self.connections[key]
        served.discard(connection)
        if not served:
            del self.connections[key]

    def broker_closed(self, connection: ClientConnection) -> None:
        if connection.broker_id is not None:
            self.control_channel.report_lost_broker(connection.broker_id)

    def refused(self, connection: ClientConnection, error: WireError | LimitExceeded) -> None:
        self._counters.refused(error, describe_peers(connection), time.monotonic())
        if self.traffic_log is not None and not self.sampling.reads:
            self.sampling.schedule_next()  # this read was due for sampling: choose the next one

    def _handshake_failed(self, peer: str, why: str) -> None:
        self._counters.refused(HandshakeFailed("client", why), peer, time.monotonic())

    def _evict_response(self, connection: ClientConnection, held_bytes: int) -> None:
        detail = (
            f"responses held for all clients exceed {self.responses.limit_bytes} bytes, and this client's "
            f"response of {held_bytes} bytes is the largest of its address; request less, or raise the limit"
        )
        # In a later turn: this connection's bytes may be in processing now.
        self._loop.call_soon(connection.evict, LimitExceeded("max_patched_response_bytes", detail))

    def _evict_reader(self, connection: ClientConnection, held_bytes: int) -> None:
        in_responses = 2 * connection.session.held_bytes > held_bytes
        why = "for a response" if in_responses else "because it does not read"
        detail = (
            f"{held_bytes} bytes are held for this client {why}, and more than {self.backlogs.limit_bytes} "
            "bytes for all slow clients of this worker"
        )
        limit: MemoryLimit = "max_patched_response_bytes" if in_responses else "write_buffer_bytes"
        connection.evict(LimitExceeded(limit, detail))

    def _evict_requests(self, connection: ClientConnection, held_bytes: int) -> None:
        detail = (
            f"requests in flight of all clients exceed {self.requests.limit_bytes} bytes, and this client's "
            f"{held_bytes // IN_FLIGHT_BYTES} requests are the most of its address"
        )
        # In this turn: one turn of the event loop may read from hundreds of such clients.
        connection.evict(LimitExceeded("write_buffer_bytes", detail))

    def overdrawn(self, connection: ClientConnection, quota: Quota) -> None:
        self.limiter.overdrawn(connection, quota)

    def cut(self, connection: ClientConnection) -> None:
        where = "bootstrap" if connection.broker_id is None else connection.broker_id
        requests = connection.session.in_flight
        log.warning("closing a client with requests unanswered: broker=%s requests=%d", where, requests)

    def sampled(self, connection: ClientConnection) -> None:
        connection.traffic.sampled(connection.session.client_id, connection.session.in_flight)
        self.sampling.schedule_next()

    def _note_connection(self, connection: ClientConnection, end: ConnectionEnd | None) -> None:
        if self.traffic_log is None:
            return
        broker_id = connection.broker_id
        self.traffic_log.note(
            ConnectionRow(
                connection.number,
                wall_ms(),
                connection.listener,
                BOOTSTRAP if broker_id is None else broker_id,
                self._owns(connection),
                connection.peer,
                connection.session.client_id,
                end,
                0.0 if end is None else time.monotonic() - connection.since_s,
            )
        )

    @staticmethod
    def _take_traffic(traffic_log: TrafficLog) -> TrafficMessage:
        return traffic_log.take(time.monotonic(), wall_ms())

    # ---- brokers

    def dial(self, connection: ClientConnection) -> None:
        error = self.limiter.ask_for_broker(connection)
        if error is not None:
            connection.refuse(error)
            return
        self._dial_count += 1
        connection.number = self._dial_count
        connection.since_s = time.monotonic()
        self._note_connection(connection, None)
        self.dialer.dial(connection)

    # ---- the end

    async def _drain_all(self) -> None:
        """Let all clients leave, and only then stop listening: a refused client reports an error."""
        connections = self._all_connections()
        log.info("draining: connections=%d", len(connections))
        phase_s = self._timing.drain_timeout_s * DRAIN_PHASE_SHARE
        interval_s = min(self._move_interval_s, phase_s / max(1, len(connections)))
        if self._next_departure is not None:
            self._next_departure.cancel()
            self._next_departure = None
        self._departures = Departures()
        for connection in list(self._withheld):
            self._end_withholding(connection)
        parties = {each.session.client_key: each.party for each in connections if each.party is not None}
        for connection in connections:
            connection.session.watch_fetches(on=connection.session.drops_moved)
            party = parties.get(connection.session.client_key)
            # A connection that leaves by itself must not end a party early; other clients have no party.
            if party is not None and connection.session.drops_moved and not connection.is_moving:
                party.add(connection)
        self._departures.add(connections)
        number = 0
        while together := self._departures.take():
            # Connections that leave later wait less, so that all have left in time.
            starts_s = number * interval_s
            number += len(together)
            self._loop.call_later(starts_s, self._send_away, together, 2 * phase_s - starts_s, phase_s)
        if connections:
            await self._wait_for(connections, 3 * phase_s)
            await asyncio.sleep(min(CLIENT_RETURN_S, phase_s))
        self.is_draining = True
        self.control_channel.send_counters()
        for server in self.servers:
            server.close()
        returned = self._all_connections()
        for connection in returned:
            connection.drain(phase_s)
        await self._wait_for(returned, self._timing.drain_timeout_s)

    def _all_connections(self) -> list[ClientConnection]:
        return [connection for served in self.connections.values() for connection in served]

    async def _wait_for(self, leaving: Iterable[ClientConnection], limit_s: float) -> None:
        """Wait until these connections are closed, regardless of new ones, up to a limit."""
        self._leaving_connections = {each for each in leaving if each.state is not State.CLOSED}
        if self._leaving_connections:
            self._all_left.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._all_left.wait()


def describe_peers(connection: ClientConnection) -> str:
    """The addresses of the client and of the broker, as far as they are known."""
    broker = None if connection.broker is None else connection.broker.transport.get_extra_info("peername")
    return connection.peer if broker is None else f"{connection.peer} to {broker[0]}:{broker[1]}"


def wall_ms() -> int:
    return round(time.time() * 1000)
