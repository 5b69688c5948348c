"""Fair sharing of a limited number of connections, so that no source takes the places of all others.

With a plain limit, one stranger could keep all others out. Here a new connection always gets a place, and the
source with the most connections loses its oldest one.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

T = TypeVar("T")

_HOST_BITS = 64


class Crowd(Generic[T]):
    """Visitors grouped by source, in order of arrival.

    Args:
        limit: the number of places.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._source_of: dict[T, str] = {}
        self._by_source: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._source_of)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._source_of))

    def __contains__(self, visitor: T) -> bool:
        return visitor in self._source_of

    def add(self, visitor: T, source: str) -> T | None:
        """Add a visitor.

        Returns: the visitor to evict above the limit (the oldest of the largest source); otherwise None
        """
        self._source_of[visitor] = source
        self._by_source.setdefault(source, {})[visitor] = None
        if len(self) <= self._limit:
            return None
        displaced = next(iter(self._by_source[self._largest_source()]))
        self.discard(displaced)
        return displaced

    def discard(self, visitor: T) -> None:
        """Free the place of a visitor, if it has one."""
        source = self._source_of.pop(visitor, None)
        if source is None:
            return
        visitors = self._by_source[source]
        del visitors[visitor]
        if not visitors:
            del self._by_source[source]

    def has_place_for(self, source: str) -> bool:
        """Whether a place is free, or the largest source has more places than ``source`` would have."""
        if len(self) < self._limit:
            return True
        own = len(self._by_source.get(source, ()))
        return own + 1 < len(self._by_source[self._largest_source()])

    def _largest_source(self) -> str:
        return max(self._by_source, key=lambda source: len(self._by_source[source]))


def source_of(address: object) -> str:
    """The source of an address: the IPv4 address, or the IPv6 /64 network, which one host can fill.

    Args:    address: the address as ``socket.accept`` returns it; the address of a Unix socket has no host
    """
    if not isinstance(address, tuple):
        return ""
    host = str(address[0])
    try:
        found = ip_address(host)
    except ValueError:
        return host
    if not isinstance(found, IPv6Address):
        return host
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Address(int(found) >> _HOST_BITS << _HOST_BITS))
