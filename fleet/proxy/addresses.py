"""Which address a client is given for a broker id: the directory, encoded once and looked up by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fleet.core.directory import pick
from fleet.core.model import Broker, BrokerId, Directory, Endpoint, ProxyId, is_address
from fleet.proxy.wire.addresses import Address, Addresses
from fleet.proxy.wire.counters import WireCounters
from fleet.proxy.wire.primitives import classic_string, compact_string, pack_int32

NO_HOST = "no-directory.invalid"
"""Given out for my own host while I do not know it; never resolves (RFC 6761)."""

KEPT_HEAD_BYTES: Final = 256 * 1024
"""The longest beginning of a response that is kept: of some 5,000 brokers."""

OnBrokerSeen = Callable[[Broker], None]


class Head:
    """A response from behind its correlation id up to its last address; and what takes the place of that."""

    __slots__ = ("found", "rewritten")

    def __init__(self, found: bytes, rewritten: bytes) -> None:
        self.found = found
        self.rewritten = rewritten


class AddressBook:
    """One directory, as seen by the clients of one listener.

    Args:
        directory: immutable.
        listener: responses carry the addresses that members advertise for this listener.
        me: stands for every broker that the directory does not know, if it has a port for it.
        on_broker_seen: called with the real address of a broker that the directory does not know, or knows by
            another address; once for each address and book, so a new directory asks again.
        counters: shared by the worker.
        moves: of identities that have lately got another address: the number of that update.

    ``heads`` are the newest beginnings of responses that were rewritten by this book, by an index of their
    layout: all clients are told the same of the same brokers, and most ask for nothing else.
    """

    __slots__ = (
        "_alike",
        "_counters",
        "_directory",
        "_encoded",
        "_listener",
        "_me",
        "_on_broker_seen",
        "_reported",
        "heads",
        "moves",
    )

    def __init__(
        self,
        directory: Directory,
        listener: str,
        me: ProxyId,
        on_broker_seen: OnBrokerSeen | None = None,
        counters: WireCounters | None = None,
        moves: Mapping[BrokerId, int] | None = None,
    ) -> None:
        self._directory = directory
        self._listener = listener
        self._me = me
        self._on_broker_seen = on_broker_seen
        self._counters = counters
        self._encoded: dict[tuple[BrokerId, ProxyId], Address] = {}
        self._reported: dict[BrokerId, tuple[str, int]] = {}
        self._alike: bool | None = None
        self.heads: dict[int, Head] = {}
        self.moves = moves or {}

    @property
    def directory(self) -> Directory:
        return self._directory

    def client(self, client_key: bytes, told: dict[BrokerId, int] | None = None) -> ClientAddresses:
        """The view of one client, good for as long as this book is.

        Args:
            client_key: what tells clients apart where an identity has several owners.
            told: of the identities that it was asked about: the last move that it was told of; kept by the
                connection, for all its books. None where the client takes addresses as they come.
        """
        return ClientAddresses(self, client_key, told)

    def lookup(self, broker_id: BrokerId, client_key: bytes) -> Address:
        """What a client is given for a broker id: never the broker's real address."""
        owners = self._directory.advertised.get(broker_id)
        if owners:
            first = owners[0] if len(owners) == 1 else pick(owners, client_key)
            for owner in (first, *owners):
                address = self._address(broker_id, owner)
                if address is not None:
                    return address
        address = self._address(broker_id, self._me)
        if address is not None:
            return address
        for proxy_id in sorted(self._directory.members):
            if proxy_id not in self._directory.suspects:
                address = self._address(broker_id, proxy_id)
                if address is not None:
                    return address
        # Nobody has a port for it. A client that dials port 0 fails at once and asks again; the real address
        # would take it around the fleet.
        if self._counters is not None:
            self._counters.unserved += 1
        return self._encode(broker_id, Endpoint(self._my_host(), 0))

    def keep(self, index: int, found: bytes, rewritten: bytes) -> None:
        """Have the next client that gets such a response get the same, where clients are not told apart."""
        if len(found) > KEPT_HEAD_BYTES:
            return
        if self._alike is None:
            self._alike = all(len(owners) < 2 for owners in self._directory.advertised.values())
        if self._alike:
            self.heads[index] = Head(found, rewritten)

    def is_served(self, broker_id: BrokerId) -> bool:
        """Whether any member has a port for it."""
        return any(member.serves(broker_id) for member in self._directory.members.values())

    def saw(self, broker_id: BrokerId, host: str, port: int, rack: str | None, has_rack: bool) -> None:
        """A response carries a real address that is not the directory's."""
        if self._on_broker_seen is None or self._reported.get(broker_id) == (host, port):
            return
        if not self.is_served(broker_id) or not is_address(host, port):
            return
        known = self._directory.brokers.get(broker_id)
        if not has_rack and known is not None:
            rack = known.rack
        self._reported[broker_id] = (host, port)
        self._on_broker_seen(Broker(broker_id, host, port, rack))

    def _address(self, broker_id: BrokerId, owner: ProxyId) -> Address | None:
        """What one member advertises for a broker id, encoded at its first use."""
        encoded = self._encoded.get((broker_id, owner))
        if encoded is None:
            member = self._directory.members.get(owner)
            endpoint = None if member is None else member.endpoint(self._listener, broker_id)
            if endpoint is None:
                return None
            # Grows no further than members have ports, whatever ids a response carries.
            encoded = self._encoded[(broker_id, owner)] = self._encode(broker_id, endpoint)
        return encoded

    def _encode(self, broker_id: BrokerId, endpoint: Endpoint) -> Address:
        broker = self._directory.brokers.get(broker_id)
        return Address(
            compact=compact_string(endpoint.host) + pack_int32(endpoint.port),
            classic=classic_string(endpoint.host) + pack_int32(endpoint.port),
            real_compact=b"" if broker is None else compact_string(broker.host) + pack_int32(broker.port),
            real_classic=b"" if broker is None else classic_string(broker.host) + pack_int32(broker.port),
        )

    def _my_host(self) -> str:
        member = self._directory.members.get(self._me)
        if member is not None:
            for advertised in member.listeners:
                if advertised.name == self._listener:
                    return advertised.host
        return NO_HOST


class ClientAddresses(Addresses):
    """An address book as one client sees it, with the owners that were picked for that client."""

    __slots__ = ("_book", "_client_key", "_told")

    def __init__(self, book: AddressBook, client_key: bytes, told: dict[BrokerId, int] | None) -> None:
        super().__init__()
        self._book = book
        self._client_key = client_key
        self._told = told

    def __missing__(self, broker_id: BrokerId) -> Address:
        address = self._book.lookup(broker_id, self._client_key)
        if self._book.is_served(broker_id):
            self[broker_id] = address
        else:
            self.left_out += 1
        return address

    def moved_since_asked(self, broker_id: BrokerId) -> bool:
        told, move = self._told, self._book.moves.get(broker_id)
        if told is None or move is None or told.get(broker_id) == move:
            return False
        told[broker_id] = move
        return True

    def saw(self, broker_id: BrokerId, host: str, port: int, rack: str | None, has_rack: bool) -> None:
        self._book.saw(broker_id, host, port, rack, has_rack)


class AddressSource:
    """Where the sessions of one listener find the newest address book: one reference, swapped as a whole.

    Args: as of ``AddressBook``.
    """

    __slots__ = ("_counters", "_listener", "_me", "_moves", "_on_broker_seen", "_updates", "book")

    def __init__(
        self,
        directory: Directory,
        listener: str,
        me: ProxyId,
        on_broker_seen: OnBrokerSeen | None = None,
        counters: WireCounters | None = None,
    ) -> None:
        self._listener = listener
        self._me = me
        self._on_broker_seen = on_broker_seen
        self._counters = counters
        self._moves: Mapping[BrokerId, int] = {}
        self._updates = 0
        """Moves are numbered by these: revisions begin anew with each control process, and workers go on."""
        self.book = self._made(directory)

    def update(self, directory: Directory) -> int:
        """Let every response from now on carry the addresses of that directory.

        Returns: the number of this update, for `forget_moves`.
        """
        self._updates += 1
        before = self.book.directory
        if before.generation:  # up to then every member names itself, and nobody has a client to lose
            moved = {
                broker_id: self._updates
                for broker_id, owners in directory.advertised.items()
                if before.advertised.get(broker_id, owners) != owners
            }
            self._moves = {**self._moves, **moved}
        self._publish(directory)
        return self._updates

    def forget_moves(self, update: int) -> None:
        """Take every move up to an update for known to all clients."""
        left = {broker_id: move for broker_id, move in self._moves.items() if move > update}
        if left != self._moves:
            self._moves = left
            self._publish(self.book.directory)

    def _publish(self, directory: Directory) -> None:
        # An idle connection holds on to the book that it was last answered by, and asks it nothing any more.
        self.book.heads.clear()
        self.book = self._made(directory)

    def _made(self, directory: Directory) -> AddressBook:
        return AddressBook(
            directory, self._listener, self._me, self._on_broker_seen, self._counters, self._moves
        )
