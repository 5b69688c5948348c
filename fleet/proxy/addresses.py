"""The address that a client gets for each broker id: the directory, encoded once and looked up by id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fleet.core.directory import pick
from fleet.core.model import Broker, BrokerId, Directory, Endpoint, ProxyId, is_address
from fleet.proxy.wire.addresses import Address, Addresses
from fleet.proxy.wire.counters import WireCounters
from fleet.proxy.wire.primitives import classic_string, compact_string, pack_int32

NO_HOST = "no-directory.invalid"
"""Advertised as this member's host while the host is unknown; never resolves (RFC 6761)."""

MAX_CACHED_HEAD_BYTES: Final = 256 * 1024
"""The longest beginning of a response that is cached: one that lists about 5,000 brokers."""

OnBrokerSeen = Callable[[Broker], None]


class Head:
    """The bytes of a response from the end of its correlation id to its last address, and their new form."""

    __slots__ = ("original", "rewritten")

    def __init__(self, original: bytes, rewritten: bytes) -> None:
        self.original = original
        self.rewritten = rewritten


class AddressBook:
    """One directory, as the clients of one listener see it.

    Args:
        directory: immutable.
        listener: responses carry the addresses that members advertise for this listener.
        me: the member that is advertised for every broker that the directory does not know, if the member has
            a port for the broker.
        on_broker_seen: called with the real address of a broker that the directory does not know, or knows
            under another address; once for each address and book.
        counters: shared by all books of the worker.
        moves: broker id → number of the update that last changed the owner, for recent moves.

    ``heads`` maps the index of a layout to the newest beginning of a response that this book rewrote. All
    clients get the same addresses for the same brokers, and most clients request nothing else.
    """

    __slots__ = (
        "_counters",
        "_directory",
        "_encoded",
        "_is_cacheable",
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
        self._is_cacheable: bool | None = None
        self.heads: dict[int, Head] = {}
        self.moves = moves or {}

    @property
    def directory(self) -> Directory:
        return self._directory

    def client(self, client_key: bytes, known_moves: dict[BrokerId, int] | None = None) -> ClientAddresses:
        """Return the view of one client, valid for as long as this book is.

        Args:
            client_key: distinguishes clients when an identity has several owners.
            known_moves: broker id → the last move that was reported to the client. The connection owns the
                mapping and passes it to each of its books. None for a client that accepts every new address.
        """
        return ClientAddresses(self, client_key, known_moves)

    def lookup(self, broker_id: BrokerId, client_key: bytes) -> Address:
        """Return the address that a client gets for a broker id: never the broker's real address."""
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
        # No member has a port for the broker. A client that connects to port 0 fails at once and requests
        # Metadata again. With the real address the client would bypass the fleet.
        if self._counters is not None:
            self._counters.unserved += 1
        return self._encode(broker_id, Endpoint(self._my_host(), 0))

    def cache_head(self, index: int, original: bytes, rewritten: bytes) -> None:
        """Cache a rewritten head for the next client, unless owners differ from client to client."""
        if len(original) > MAX_CACHED_HEAD_BYTES:
            return
        if self._is_cacheable is None:
            self._is_cacheable = all(len(owners) < 2 for owners in self._directory.advertised.values())
        if self._is_cacheable:
            self.heads[index] = Head(original, rewritten)

    def is_served(self, broker_id: BrokerId) -> bool:
        """Whether any member has a port for the broker."""
        return any(member.serves(broker_id) for member in self._directory.members.values())

    def report_address(
        self, broker_id: BrokerId, host: str, port: int, rack: str | None, has_rack: bool
    ) -> None:
        """Report a real address in a response that differs from the directory's."""
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
        """Return the address that one member advertises for a broker id, encoded at its first use."""
        encoded = self._encoded.get((broker_id, owner))
        if encoded is None:
            member = self._directory.members.get(owner)
            endpoint = None if member is None else member.endpoint(self._listener, broker_id)
            if endpoint is None:
                return None
            # The cache has at most one entry for each port of a member, whatever ids a response carries.
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
        advertised = None if member is None else member.listener(self._listener)
        return NO_HOST if advertised is None else advertised.host


class ClientAddresses(Addresses):
    """An address book as one client sees it, with the owners that were chosen for this client."""

    __slots__ = ("_book", "_client_key", "_known_moves")

    def __init__(self, book: AddressBook, client_key: bytes, known_moves: dict[BrokerId, int] | None) -> None:
        super().__init__()
        self._book = book
        self._client_key = client_key
        self._known_moves = known_moves

    def __missing__(self, broker_id: BrokerId) -> Address:
        address = self._book.lookup(broker_id, self._client_key)
        if self._book.is_served(broker_id):
            self[broker_id] = address
        else:
            self.left_out += 1
        return address

    def has_unreported_move(self, broker_id: BrokerId) -> bool:
        known_moves, move = self._known_moves, self._book.moves.get(broker_id)
        if known_moves is None or move is None or known_moves.get(broker_id) == move:
            return False
        known_moves[broker_id] = move
        return True

    def report_address(
        self, broker_id: BrokerId, host: str, port: int, rack: str | None, has_rack: bool
    ) -> None:
        self._book.report_address(broker_id, host, port, rack, has_rack)


class AddressSource:
    """The newest address book of one listener, which its sessions share: one reference, swapped as a whole.

    Args: see ``AddressBook``.
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
        """Numbers the moves, because revisions restart with each control process, and workers do not."""
        self.book = self._make_book(directory)

    def update(self, directory: Directory) -> int:
        """Put the addresses of a new directory into every later response.

        Returns: the number of this update, for `forget_moves`.
        """
        self._updates += 1
        before = self.book.directory
        if before.generation:  # before the first generation every member advertises itself, so nothing moves
            moved = {
                broker_id: self._updates
                for broker_id, owners in directory.advertised.items()
                if before.advertised.get(broker_id, owners) != owners
            }
            self._moves = {**self._moves, **moved}
        self._publish(directory)
        return self._updates

    def forget_moves(self, update: int) -> None:
        """Drop every move up to an update: all clients know these moves by now."""
        left = {broker_id: move for broker_id, move in self._moves.items() if move > update}
        if left != self._moves:
            self._moves = left
            self._publish(self.book.directory)

    def _publish(self, directory: Directory) -> None:
        # An idle connection keeps the book of its last response, and never uses its heads again.
        self.book.heads.clear()
        self.book = self._make_book(directory)

    def _make_book(self, directory: Directory) -> AddressBook:
        return AddressBook(
            directory, self._listener, self._me, self._on_broker_seen, self._counters, self._moves
        )
