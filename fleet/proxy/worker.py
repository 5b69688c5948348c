"""The data plane's process: sockets, the directory they are served by, and an orderly end."""

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
from fleet.proxy.dialer import Dialler
from fleet.proxy.host import Host, State
from fleet.proxy.limits import ConnectionLimiter
from fleet.proxy.quota import Quota
from fleet.proxy.session import Session
from fleet.proxy.sessions import Sessions
from fleet.proxy.sni import ServerNames
from fleet.proxy.splice import pipe
from fleet.proxy.tls_server import NamedClients, TlsServer
from fleet.proxy.tls_transport import TlsRoom
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
"""How long a starting worker lets clients wait for a directory that is newer than the file's."""
PHASE_SHARE: Final = 0.1
"""The part of ``drain_timeout_s`` for each of: having clients leave one after the other, waiting for a moment
when nothing is in flight, letting what is in flight answer. Control may have had half; goodbyes need some."""
NOTICE_S: Final = 0.25
"""How long other members get to learn of a move before clients are sent to ask them: one that is told the old
place once more comes back, and stays."""
MOVE_IS_NEWS_S = 600.0  # not Final: tests change it, and a compiler would write its value into the code
"""How long after a move, at least, clients are made to forget a coordinator's former address: above the
time-outs of sessions and sockets, so that whoever lost a coordinator has asked for it within."""
OLD_NEWS_S = 60.0  # not Final, as above
"""How often moves are looked for that are no news any more: a multiple of how often counters are told."""
LIBRDKAFKA_PATIENCE_S: Final = 1.0
"""How long connections of a librdkafka client wait for a moment when nothing is in flight: it comes soon, or
on a busy machine never. Until then the client may ask for Metadata at any time. For as long again a party
waits for its slowest connection, and forwards nothing new."""
GATHER_S: Final = 0.05
"""How long the first turn waits for identities that move a moment later, of the same clients."""
RETURN_S: Final = 1.0
"""How long clients may come back to where they were told to leave: some do so once, and meanwhile learn more.
A stopping worker listens for so long, and one that goes on then tells them again."""
BACK_S: Final = 10.0
"""How long after a move those that come back are told again: then whoever stays has no other way."""
LONGEST_RESPONSES: Final = 2
"""Of the longest responses that may be held, how many all connections of a worker may have at a time."""
FULL_BUFFERS: Final = 4
"""Of write buffers, as many as may be held at least for all clients of a worker that are behind."""
REQUEST_BUFFERS: Final = 32
"""Of write buffers, as many as requests in flight of all clients of a worker may take that have many."""
LONGEST_READ_BYTES: Final = 256 * 1024
"""Of a transport. Write buffers and responses count for as much at least: one client must not be too many."""
LINGER_SHARE: Final = 0.1
LINGER_LIMIT_S: Final = 5.0


class Worker(Host):
    """One worker of a member.

    Args:
        spec: what the supervisor says; its descriptors become this worker's.
        first_directory_s: how long clients wait for a directory that is newer than the file's.
    """

    def __init__(self, spec: ChildSpec, first_directory_s: float = FIRST_DIRECTORY_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._first_directory_s = first_directory_s
        self._spec = spec
        self._member = spec.member
        self._me = self._member.advertised(spec.settings)
        self._timing = spec.settings.timing
        self._limits = spec.settings.limits
        self.write_buffer_bytes = self._limits.write_buffer_bytes
        held_bytes = LONGEST_RESPONSES * max(self._limits.max_patched_response_bytes, LONGEST_READ_BYTES)
        self.responses = MemoryBudget(held_bytes, self._evict_response)
        backlog_bytes = FULL_BUFFERS * max(self.write_buffer_bytes, LONGEST_READ_BYTES)
        self.backlogs = Backlogs(backlog_bytes, self.responses, self._evict_reader)
        requests_bytes = REQUEST_BUFFERS * max(self.write_buffer_bytes, LONGEST_READ_BYTES)
        self.requests = MemoryBudget(requests_bytes, self._evict_requests)
        self.turns = TurnQueue(self._loop.call_soon)
        self.linger_s = min(LINGER_LIMIT_S, self._timing.drain_timeout_s * LINGER_SHARE)
        self._counters = Counters()
        self._log: TrafficLog | None = None
        self._dialled_for = 0
        self.sampling = Sampling()
        self.pipe = pipe()
        self.leaving = Deadlines(self.linger_s, BrokerConnection.abort)
        if spec.settings.events is not None:
            life = f"{spec.index}-{os.getpid()}-{wall_ms():x}"
            self._log = TrafficLog(life, self._counters.rows, time.monotonic())
            self.sampling.look_again()
        self._upstreams = Upstreams(spec.settings.bootstrap_servers)
        self._limiter = ConnectionLimiter(spec.settings, self._member, self._everyone)
        self._connections: dict[BrokerId, set[ClientConnection]] = {}
        self._servers: list[asyncio.Server | TlsServer] = []
        self._tls = listeners.servers(spec.settings, spec.proxy_id)
        self._tls_room = TlsRoom(self.linger_s)
        self._draining = False
        self._move_interval_s = self._member.workers / self._limits.moves_per_second
        self._next_move_s = 0.0
        self._moved_s: dict[BrokerId, float] = {}
        self._departures: Departures[ClientConnection] = Departures()
        self._next_departure: asyncio.TimerHandle | None = None
        self._sent_away: dict[BrokerId, dict[int, float]] = {}
        """Identity that has moved away → hash of a client's key → until when a librdkafka client that comes
        back writes nothing."""
        self._waiting: set[ClientConnection] = set()
        """Those that do."""
        self._news: deque[tuple[float, AddressSource, int]] = deque()
        """Of each directory and listener: when it came, and as which update."""
        self._waited_for: set[ClientConnection] = set()
        self._all_left = asyncio.Event()
        self._directory = Directory(members={self._me.proxy_id: self._me})
        self._sources = {
            each.name: AddressSource(
                self._directory, each.name, self._me.proxy_id, self._saw, self._counters.wire
            )
            for each in self._member.listeners
        }
        hello = Hello(spec.index, os.getpid())
        passed = None if self._log is None else partial(self._passed, self._log)
        self._control_channel = ControlChannel(
            spec.control_socket, hello, self.apply, self._told, self.count, passed
        )
        tls = broker_tls(spec.settings.upstream)
        context = None if tls is None else tls.get
        timeout_s, control = self._timing.upstream_connect_timeout_s, self._control_channel
        self._dialler = Dialler(
            self._upstreams, context, self._tls_room, timeout_s, control.lost, control.want
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then drain."""
        stored = ipc.read_directory(self._spec.folder / ipc.DIRECTORY_FILE)
        if stored is not None:
            self.apply(stored)
        following = asyncio.create_task(self._control_channel.run())
        sweeping = self._limiter.start()
        forgetting = PeriodicCallback(OLD_NEWS_S, self._forget_moves)
        telling = self._control_channel.tell_regularly()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._first_directory_s):
                    await self._control_channel.first_directory.wait()
            await self._listen()
            log.info(
                "serving %d ports, directory generation %d", len(self._servers), self._directory.generation
            )
            stopping = asyncio.create_task(stop.wait())
            ends: list[asyncio.Future[None]] = [
                following,
                sweeping.failed,
                forgetting.failed,
                *(each.failed for each in telling),
            ]
            waiting: list[asyncio.Future[Any]] = [*ends, stopping]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            for end in ends:
                if end.done():
                    end.result()  # none is done but by an error
            await self._drain_all()
        finally:
            self._control_channel.send_counters()
            following.cancel()
            for each in (forgetting, *telling):
                each.stop()
            self._limiter.stop()
            await asyncio.wait([following])
            self._dialler.stop()

    # ---- directories

    def apply(self, directory: Directory) -> None:
        """Serve by this directory from now on; let go of the clients whose identity has left this member."""
        before, me = self._directory, self._me.proxy_id
        if me not in directory.members:
            directory = replace(directory, members={**directory.members, me: self._me})
        self._directory = directory
        self._upstreams.commit(directory.brokers)
        self._dialler.look_again()
        now_s = self._loop.time()
        for source in self._sources.values():
            self._news.append((now_s, source, source.update(directory)))
        gone = [
            broker_id
            for broker_id in self._connections
            if me in before.advertised.get(broker_id, ())
            and me not in directory.advertised.get(broker_id, ())
        ]
        if gone:
            self._let_go(gone)
        for connection in [each for each in self._waiting if self._owns(each)]:
            self._end_waiting(connection)  # its client comes again, and is served

    def _forget_moves(self) -> None:
        """Regularly: with a timer of the loop for each directory each of its waits would have a limit."""
        before_s = self._loop.time() - MOVE_IS_NEWS_S
        old: dict[AddressSource, int] = {}
        while self._news and self._news[0][0] <= before_s:
            _, source, update = self._news.popleft()
            old[source] = update
        for source, update in old.items():
            source.forget_moves(update)
        now_s = self._loop.time()
        for broker_id, clients in list(self._sent_away.items()):
            if all(until_s <= now_s for until_s in clients.values()):
                del self._sent_away[broker_id]

    def _let_go(self, broker_ids: Collection[BrokerId]) -> None:
        """Have identities' clients leave one after the other: they must not all reconnect at once."""
        leaving: list[ClientConnection] = []
        for broker_id in broker_ids:
            served = self._connections[broker_id]
            log.info("identity %d has moved away: moving %d connections", broker_id, len(served))
            self._moved_s[broker_id] = self._loop.time()
            self._sent_away[broker_id] = {}
            leaving += served
        for connection in leaving:
            if connection.session.drops_moved:
                connection.session.watch(on=True)
        self._loop.call_later(NOTICE_S, self._queue, leaving)

    def _queue(self, leaving: Iterable[ClientConnection]) -> None:
        """Give connections their turn: by now the other members know where the identities are."""
        if not self._departures:
            self._next_move_s = max(self._next_move_s, self._loop.time() + GATHER_S)
        self._departures.add(filter(self._has_to_leave, leaving))
        self._depart_later()

    def _has_to_leave(self, connection: ClientConnection) -> bool:
        """Whether it does, and nothing has been done about it yet."""
        if connection.moving or connection.state is State.CLOSED or connection in self._waiting:
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
                    connection.session.watch(on=False)
        self._next_move_s += self._move_interval_s * len(leaving)
        self._send_away(leaving, self._timing.move_timeout_s, self._timing.move_timeout_s)
        self._depart_later()

    def _send_away(self, connections: list[ClientConnection], patience_s: float, answer_s: float) -> None:
        """Have connections leave, together where there are several."""
        soon_s = min(patience_s, LIBRDKAFKA_PATIENCE_S)
        together = [each for each in connections if not each.moving and each.party is None]
        if len(together) > 1:
            party = Party(together)
            self._loop.call_later(soon_s + min(answer_s, LIBRDKAFKA_PATIENCE_S), party.end)
        until_s = self._loop.time() + soon_s + self._timing.move_timeout_s
        for connection in connections:
            broker_id, session = connection.broker_id, connection.session
            if not session.drops_moved or session.coordinates:
                connection.move(patience_s, answer_s)
                continue
            if broker_id in self._sent_away:
                self._sent_away[broker_id].setdefault(hash(session.client_key), until_s)
            connection.move(soon_s, patience_s - soon_s + answer_s)

    def _owns(self, connection: ClientConnection) -> bool:
        broker_id = connection.broker_id
        return broker_id is None or self._me.proxy_id in self._directory.advertised.get(broker_id, ())

    def _saw(self, broker: Broker) -> None:
        """A response names it otherwise than the directory: control asks the cluster."""
        self._control_channel.saw([broker])

    def _told(self, reachable: Mapping[BrokerId, bool]) -> None:
        self._upstreams.told(reachable, time.monotonic())

    def count(self) -> WorkerCounters:
        """The counters as they are now."""
        return self._counters.snapshot(
            self._upstreams.up, self._directory.generation, self._directory.revision, self._draining
        )

    # ---- connections

    async def _listen(self) -> None:
        for each in self._spec.listeners:
            factory = self._factory(each.listener, each.broker_id)
            sock = socket.socket(fileno=each.fd)
            if each.listener in self._tls:
                self._servers.append(self._tls_server(sock, each.listener, factory))
            else:
                backlog = self._limits.listen_backlog
                self._servers.append(await self._loop.create_server(factory, sock=sock, backlog=backlog))

    def _tls_server(
        self, sock: socket.socket, listener: str, factory: Callable[[], asyncio.Protocol]
    ) -> TlsServer:
        serve = partial(
            TlsServer,
            sock,
            listener,
            refused=self._no_handshake,
            handshake_s=self._limits.first_request_timeout_s,
            room=self._tls_room,
        )
        context = self._tls[listener].get
        everywhere = [
            advertised
            for member in self._spec.settings.members.values()
            for advertised in member.advertised(self._spec.settings).listeners
            if advertised.name == listener
        ]
        if any(each.broker_host is not None for each in everywhere):
            names = ServerNames(everywhere, self._spec.settings.identities)
            named = NamedClients(context, names, partial(self._factory, listener))
            return serve(context=named.context, factory=named.protocol)
        return serve(context=context, factory=lambda _: factory())

    def _factory(self, listener: str, broker_id: BrokerId | None) -> Callable[[], ClientConnection]:
        key = BOOTSTRAP if broker_id is None else broker_id
        source = self._sources[listener]

        traffic: Traffic | None = None
        make_session: Callable[[str], Session] | None = None

        def connection() -> ClientConnection:
            nonlocal traffic, make_session
            if traffic is None or make_session is None:
                # Not before there is one: most of many thousand ports may never see any.
                traffic = self._counters.traffic(listener, key)
                make_session = Sessions(
                    source,
                    self._limits,
                    traffic.wire,
                    time.perf_counter,
                    self._counters.rewrote,
                    traffic.answered,
                ).make
            return ClientConnection(self, broker_id, traffic, listener, make_session)

        return connection

    def opened(self, connection: ClientConnection) -> None:
        connection.traffic.connections += 1
        connection.traffic.opened += 1
        key = BOOTSTRAP if connection.broker_id is None else connection.broker_id
        self._connections.setdefault(key, set()).add(connection)
        self._limiter.opened(connection)
        if self._draining:
            self._waited_for.add(connection)
            connection.drain(0.0)
        elif key in self._moved_s and self._loop.time() < self._moved_s[key] + BACK_S:
            if not self._owns(connection):
                connection.expect()
            self._loop.call_later(RETURN_S, self._move_again, connection)

    def came_back(self, connection: ClientConnection) -> None:
        """A client that drops connections at Metadata's word is not served where it was just sent away.

        That word is on its way, or it asks for it here, and what is in flight when it comes would run twice.
        """
        broker_id, session = connection.broker_id, connection.session
        assert broker_id is not None
        until_s = self._sent_away.get(broker_id, {}).get(hash(session.client_key), 0.0)
        now_s = self._loop.time()
        if session.drops_moved and now_s < until_s and not self._owns(connection):
            connection.wait()
            self._waiting.add(connection)
            # No longer: its Metadata request may be behind a Produce, and goes another way after that.
            self._loop.call_at(min(until_s, now_s + RETURN_S), self._end_waiting, connection)

    def _end_waiting(self, connection: ClientConnection) -> None:
        """It ends in order, and what its client has sent does not run: the client may have gone by now."""
        if connection in self._waiting:
            self._waiting.remove(connection)
            connection.drain(self._timing.move_timeout_s)

    def _move_again(self, connection: ClientConnection) -> None:
        if connection not in self._waiting and not connection.moving and not self._owns(connection):
            connection.move(self._timing.move_timeout_s, self._timing.move_timeout_s)

    def closed(self, connection: ClientConnection) -> None:
        connection.traffic.connections -= 1
        self._limiter.closed(connection)
        if connection.number:
            self._note(connection, connection.end)
        key = BOOTSTRAP if connection.broker_id is None else connection.broker_id
        served = self._connections[key]
        served.discard(connection)
        if not served:
            del self._connections[key]
        self._dialler.give_up(connection)
        self._waiting.discard(connection)
        self._waited_for.discard(connection)
        if not self._waited_for:
            self._all_left.set()

    def broker_gone(self, connection: ClientConnection) -> None:
        if connection.broker_id is not None:
            self._control_channel.lost(connection.broker_id)

    def refused(self, connection: ClientConnection, error: WireError | LimitExceeded) -> None:
        self._counters.refused(error, connection.describe_peers, time.monotonic())
        if self._log is not None and not self.sampling.reads:
            self.sampling.look_again()  # it was to be looked at, and counting goes on from there for ever

    def _no_handshake(self, peer: str, why: str) -> None:
        self._counters.refused(HandshakeFailed("client", why), peer, time.monotonic())

    def _evict_response(self, connection: ClientConnection, held_bytes: int) -> None:
        detail = (
            f"a response of {held_bytes} bytes is held for it, the most of its address, which has most, "
            f"and together they are above {self.responses.limit_bytes}; ask for less, or raise the limit"
        )
        # Later: it may be the one whose bytes are being looked at.
        self._loop.call_soon(connection.evict, LimitExceeded("max_patched_response_bytes", detail))

    def _evict_reader(self, connection: ClientConnection, held_bytes: int) -> None:
        in_responses = 2 * connection.session.held_bytes > held_bytes
        why = "of a response to it" if in_responses else "because it does not read"
        detail = (
            f"{held_bytes} bytes are held {why}, and for all clients of this worker that "
            f"are behind more than {self.backlogs.limit_bytes}"
        )
        limit: MemoryLimit = "max_patched_response_bytes" if in_responses else "write_buffer_bytes"
        connection.evict(LimitExceeded(limit, detail))

    def _evict_requests(self, connection: ClientConnection, held_bytes: int) -> None:
        detail = (
            f"{held_bytes // IN_FLIGHT_BYTES} of its requests are in flight, the most of its address, "
            f"which has the most of all, and together they take more than {self.requests.limit_bytes} bytes"
        )
        # At once: one turn of the event loop may read from hundreds of such clients.
        connection.evict(LimitExceeded("write_buffer_bytes", detail))

    def overdrawn(self, connection: ClientConnection, quota: Quota) -> None:
        self._limiter.overdrawn(connection, quota)

    def cut(self, connection: ClientConnection) -> None:
        where = "bootstrap" if connection.broker_id is None else connection.broker_id
        requests = connection.session.in_flight
        log.warning("a client of %s leaves with %d requests unanswered", where, requests)

    def sampled(self, connection: ClientConnection) -> None:
        connection.traffic.sampled(connection.session.client_id, connection.session.in_flight)
        self.sampling.look_again()

    def _note(self, connection: ClientConnection, end: ConnectionEnd | None) -> None:
        if self._log is None:
            return
        broker_id = connection.broker_id
        self._log.note(
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
    def _passed(traffic_log: TrafficLog) -> TrafficMessage:
        return traffic_log.take(time.monotonic(), wall_ms())

    # ---- brokers

    def dial(self, connection: ClientConnection) -> None:
        error = self._limiter.ask_for_broker(connection)
        if error is not None:
            connection.refuse(error)
            return
        self._dialled_for += 1
        connection.number = self._dialled_for
        connection.since_s = time.monotonic()
        self._note(connection, None)
        self._dialler.dial(connection)

    # ---- the end

    async def _drain_all(self) -> None:
        """Have all clients leave, and refuse them only then: whoever is refused is told of an error."""
        everyone = self._everyone()
        log.info("draining %d connections", len(everyone))
        phase_s = self._timing.drain_timeout_s * PHASE_SHARE
        interval_s = min(self._move_interval_s, phase_s / max(1, len(everyone)))
        if self._next_departure is not None:
            self._next_departure.cancel()
            self._next_departure = None
        self._departures = Departures()
        for connection in list(self._waiting):
            self._end_waiting(connection)
        parties = {each.session.client_key: each.party for each in everyone if each.party is not None}
        for connection in everyone:
            connection.session.watch(on=connection.session.drops_moved)
            party = parties.get(connection.session.client_key)
            # A connection that leaves by itself must not end a party early; other clients are in none.
            if party is not None and connection.session.drops_moved and not connection.moving:
                party.add(connection)
        self._departures.add(everyone)
        number = 0
        while together := self._departures.take():
            # Those that leave later have less patience, and all are gone in time.
            starts_s = number * interval_s
            number += len(together)
            self._loop.call_later(starts_s, self._send_away, together, 2 * phase_s - starts_s, phase_s)
        if everyone:
            await self._wait_for(everyone, 3 * phase_s)
            await asyncio.sleep(min(RETURN_S, phase_s))
        self._draining = True
        self._control_channel.send_counters()
        for server in self._servers:
            server.close()
        back = self._everyone()
        for connection in back:
            connection.drain(phase_s)
        await self._wait_for(back, self._timing.drain_timeout_s)

    def _everyone(self) -> list[ClientConnection]:
        return [connection for served in self._connections.values() for connection in served]

    async def _wait_for(self, leaving: Iterable[ClientConnection], limit_s: float) -> None:
        """Wait until these have gone, whoever has come back meanwhile."""
        self._waited_for = {each for each in leaving if each.state is not State.CLOSED}
        if self._waited_for:
            self._all_left.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._all_left.wait()


def wall_ms() -> int:
    return round(time.time() * 1000)
