"""Replaces the addresses in responses.

Most responses are patched in place. Some must be collected first. A response with records before its
addresses is patched at its end while it passes (see ``streaming_patch``). A response with many tagged fields
is scanned in several turns of the event loop.

A long response that must be collected is patched in slices, one in each turn of the event loop. The size
field comes first, so the slices are walked twice: first to compute the size, and then, if anything is
replaced, to write them. So only the response itself is held in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import error as struct_error
from typing import Final

from fleet.core.errors import OversizeFrame, TruncatedFrame
from fleet.core.model import BrokerId
from fleet.proxy.addresses import AddressBook, AddressSource
from fleet.proxy.streaming_patch import Stream, Write
from fleet.proxy.wire import tail
from fleet.proxy.wire.addresses import Addresses, Layout, Parts, Slices, Streamed
from fleet.proxy.wire.counters import WireCounters
from fleet.proxy.wire.primitives import MAX_INT32, OUT_OF_BYTES, pack_int32, read_int32
from fleet.proxy.wire.requests import API_KEYS, LAYOUTS
from fleet.proxy.wire.scan import FieldBudget

METADATA: Final = 3
DESCRIBE_CLUSTER: Final = 60
CACHEABLE_LAYOUTS: Final = frozenset(
    index for index, api_key in enumerate(API_KEYS) if api_key in (METADATA, DESCRIBE_CLUSTER)
)
"""Layouts that begin with the list of all brokers, the same for all clients, and have no other addresses."""

MAX_HEAD_BYTES: Final = 4 * 1024 * 1024
"""The longest part with addresses of a Metadata, FindCoordinator or DescribeCluster response."""

JOIN_BELOW_BYTES: Final = 16 * 1024
"""Segments of a collected response below this size are joined when written; larger ones are written alone."""

AT_ONCE_BYTES = 32 * 1024  # not Final: tests change it, and a compiler would write its value into the code
"""Bytes of one read up to which collected responses are patched at once, which takes a millisecond."""
PIECE_BYTES: Final = 64 * 1024
"""Bytes of a held response that are written in one turn. After a piece the client may ask for a pause."""

# Shared by all rewriters that have not rewritten yet. Most never look up an address, thanks to cached heads.
_NO_ADDRESSES: Final = Addresses()
_NOTHING_COLLECTED: Final = bytearray()


class Rewriter:
    """Rewrites the responses of one connection.

    Args: see ``fleet.proxy.session.Session``.

    ``is_busy`` is whether a response has arrived in part and needs more work. ``is_working`` is whether the
    response needs `work` before more of it is presented. Once the rewriter is not busy, ``left_bytes`` is the
    rest of the response, which passes unchanged. ``client_key`` identifies the client.
    """

    __slots__ = (
        "_addresses",
        "_budget",
        "_clock",
        "_collected",
        "_index",
        "_known_moves",
        "_max_bytes",
        "_next_attempt_bytes",
        "_observe",
        "_sliced",
        "_source",
        "_stream",
        "book",
        "client_key",
        "counters",
        "is_busy",
        "is_working",
        "left_bytes",
    )

    _index: int
    """Index of the layout of the response that has arrived in part."""
    _next_attempt_bytes: int
    """Bytes of the response that must have arrived before the next attempt to patch it."""

    def __init__(
        self,
        source: AddressSource,
        max_bytes: int,
        counters: WireCounters,
        client_key: bytes,
        clock: Callable[[], float] | None,
        observe: Callable[[float], None] | None,
    ) -> None:
        self._source = source
        self._max_bytes = max_bytes
        self.counters = counters
        self._clock = clock
        self._observe = observe
        self.book: AddressBook | None = None
        self._addresses: Addresses = _NO_ADDRESSES
        self._collected = _NOTHING_COLLECTED
        self._stream: Stream | None = None
        self._known_moves: dict[BrokerId, int] | None = None
        self._sliced: SlicedPatch | None = None
        self._budget: FieldBudget | None = None
        """None until the first response that is scanned."""
        self.client_key = client_key
        self.is_busy = False
        self.is_working = False
        self.left_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Memory that is held for a response, or will be before the next attempt to patch it."""
        if not self._collected:
            return 0
        layout = LAYOUTS[self._index]
        if isinstance(layout, Layout) and layout.whole:
            return 4 + int(read_int32(self._collected)[0])
        return self._next_attempt_bytes

    @property
    def remembers_coordinators(self) -> bool:
        return self._known_moves is not None

    def remember_coordinators(self) -> None:
        """Note that the client keeps a coordinator's address, and needs a report when the address changes."""
        if self._known_moves is None:
            self._known_moves = {}

    def rewrite(self, index: int, data: bytes, run: int, pos: int, after: int, end: int, write: Write) -> int:
        """Patch the response at ``pos``, as far as it has arrived, or begin to collect it.

        Args:    index: into LAYOUTS; run: start of the bytes that are not written yet; after: end of the
                 response; end: end of the bytes that have arrived.
        Returns: the new start of the bytes that are not written yet.
        Raises:  WireError: the response cannot be made safe.
        """
        head = self._source.book.heads.get(index)
        if head is not None:
            stop, mark = min(after, end), pos + 8 + len(head.original)
            if mark <= stop and _has_prefix_at(data, pos + 8, mark, head.original):
                if pos > run:
                    self._write_before(memoryview(data), run, pos, write)
                try:
                    size = (after - mark + 4 + len(head.rewritten)).to_bytes(4, "big", signed=True)
                except OverflowError:
                    known = LAYOUTS[index]
                    assert known is not None
                    raise _oversize_error(known.name, after - pos) from None
                small = stop - mark < JOIN_BELOW_BYTES  # then a copy is as cheap as a view
                rest = data[mark:stop] if small else memoryview(data)[mark:stop]
                write(b"".join((size, data[pos + 4 : pos + 8], head.rewritten, rest)))
                self.counters.rewritten[API_KEYS[index]] += 1
                return stop
        view = memoryview(data)
        layout = LAYOUTS[index]
        assert layout is not None
        if isinstance(layout, Streamed):
            self._index = index
            if self._budget is None:
                self._budget = FieldBudget()
            stream = Stream(layout, after - pos, self._rewrite_tail, self._budget)
            run = stream.receive(view, run, pos, end, write)
            if stream.left_bytes:
                self._stream = stream
                self.is_busy = True
                self.is_working = stream.is_paused
            return run
        complete = after <= end
        # Measured from the beginning of the read, which may bring many responses, each of them short.
        in_slices = layout.slices is not None and after > AT_ONCE_BYTES
        if layout.whole:
            self._check_size(layout, after - pos)
        frame = view[pos : after if complete else end]
        parts = None
        is_held = in_slices if complete else layout.whole
        if not is_held:
            parts = self._patch(index, layout, frame, after - pos, complete)
        if parts is not None and not parts:
            return run
        self._write_before(view, run, pos, write)
        if parts is None:
            self._collected = bytearray(frame)
            self._index = index
            self._next_attempt_bytes = 2 * len(frame)
            self.is_busy = True
            if complete:
                self._begin_slices()
        else:
            write(b"".join(parts))
        return pos + len(frame)

    def _check_size(self, layout: Layout, frame_bytes: int) -> None:
        """Check the size of a response that must be held.

        Raises: OversizeFrame: the response is above the limit, or too long to be patched without slices.
        """
        limit_bytes = self._max_bytes
        if layout.slices is None and limit_bytes > AT_ONCE_BYTES:
            limit_bytes = AT_ONCE_BYTES
        if frame_bytes > limit_bytes:
            detail = f"{layout.name} response of {frame_bytes} bytes is above {limit_bytes}"
            if layout.slices is not None:
                detail += "; request less at once, or raise limits.max_patched_response_bytes"
            raise OversizeFrame("broker", detail)

    def _write_before(self, view: memoryview, run: int, pos: int, write: Write) -> None:
        """Write the bytes before a response that changes."""
        if pos > run:
            # A view keeps the whole read in memory, but a write buffer counts only the view's own bytes.
            before = view[run:pos]
            write(bytes(before) if len(before) < JOIN_BELOW_BYTES else before)

    def continue_response(self, view: memoryview, start: int, end: int, write: Write) -> int:
        """Take more of the response that has arrived in part.

        Returns: the end of the bytes taken from ``view``.
        Raises:  WireError: the response cannot be made safe.
        """
        stream = self._stream
        if stream is None:
            return self._collect(view, start, end, write)
        after = start + stream.left_bytes
        taken = stream.receive(view, start, start, end, write)
        self.is_working = stream.is_paused
        if not stream.left_bytes:
            self._stream = None
            self.is_busy = False
            self.left_bytes = after - taken
        return taken

    def _collect(self, view: memoryview, start: int, end: int, write: Write) -> int:
        """Add bytes to the collected response, and write the response once it can be patched."""
        collected = self._collected
        frame_bytes: int = 4 + read_int32(collected)[0]
        taken = min(end, start + frame_bytes - len(collected))
        collected += view[start:taken]
        complete = len(collected) == frame_bytes
        layout = LAYOUTS[self._index]
        assert isinstance(layout, Layout)
        if complete and layout.whole and frame_bytes > AT_ONCE_BYTES:
            self._begin_slices()
            return taken
        # Each attempt starts at the front, so the sizes of attempts double: single bytes cost no more then.
        if not complete and (layout.whole or len(collected) < self._next_attempt_bytes):
            return taken
        parts = self._patch(self._index, layout, memoryview(collected), frame_bytes, complete)
        if parts is None:
            if len(collected) > MAX_HEAD_BYTES:
                detail = f"{layout.name}: addresses do not end within {len(collected)} bytes"
                raise OversizeFrame("broker", detail)
            self._next_attempt_bytes = 2 * len(collected)
            return taken
        self.drop()
        self.left_bytes = frame_bytes - len(collected)
        _write_owned(parts or [memoryview(collected)], write)
        return taken

    def _begin_slices(self) -> None:
        """Let `work` patch a response that is complete."""
        layout = LAYOUTS[self._index]
        assert isinstance(layout, Layout)
        self._take_newest_book()
        self._sliced = SlicedPatch(layout, memoryview(self._collected), self._addresses)
        self.is_working = True

    def work(self, write: Write) -> None:
        """Take a step: patch or write a slice of the held response, or let a paused stream continue.

        Raises: WireError: the response cannot be made safe.
        """
        sliced = self._sliced
        if sliced is None:
            assert self._budget is not None
            self._budget.renew()
            self.is_working = False
            return
        began_s = self._clock() if self._clock is not None else 0.0
        if sliced.step(write):
            if self._clock is not None:
                sliced.spent_s += self._clock() - began_s
            return
        if sliced.has_replacements:
            self._count_rewritten(self._index, began_s - sliced.spent_s)
        self.drop()
        self.left_bytes = 0

    def drop(self) -> None:
        """Release the response that is held."""
        self._sliced = None
        self.is_working = False
        self._collected = _NOTHING_COLLECTED
        self.is_busy = False

    def _patch(
        self, index: int, layout: Layout, frame: memoryview, frame_bytes: int, complete: bool
    ) -> Parts | None:
        """Rewrite one response, as far as it has arrived.

        Args:    frame: the response from its size field on; frame_bytes: its length with the size field.
        Returns: the segments to send for ``frame``; empty if nothing changes; None if more bytes are needed.
        Raises:  WireError: the response cannot be made safe.
        """
        began_s = self._clock() if self._clock is not None else 0.0
        book = self._take_newest_book()
        parts: Parts = [b""]
        left_out = self._addresses.left_out
        try:
            mark = layout.patch(frame, self._addresses, parts)
        except OUT_OF_BYTES:
            if complete:
                detail = f"{layout.name} response of {frame_bytes} bytes ends inside a field"
                raise TruncatedFrame("broker", detail) from None
            return None
        if len(parts) == 1:
            return []
        # The head of a response with a skipped broker is not cached: in the next response the broker at the
        # same place may have a real address.
        if index in CACHEABLE_LAYOUTS and self._addresses.left_out == left_out:
            book.cache_head(index, frame[8:mark].tobytes(), b"".join(parts)[4:])
        try:
            parts[0] = pack_int32(frame_bytes - mark + sum(map(len, parts)))
        except struct_error:
            raise _oversize_error(layout.name, frame_bytes) from None
        if mark < len(frame):
            parts.append(frame[mark:])
        self._count_rewritten(index, began_s)
        return parts

    def _rewrite_tail(self, original: memoryview) -> bytes | None:
        """Rewrite the tail of the response that is passing; see ``wire.tail.rewrite``."""
        layout = LAYOUTS[self._index]
        assert isinstance(layout, Streamed)
        began_s = self._clock() if self._clock is not None else 0.0
        self._take_newest_book()
        try:
            rewritten = tail.rewrite(original, layout, self._addresses)
        except OUT_OF_BYTES:
            detail = f"{layout.name} response: tail of {len(original)} bytes ends inside a field"
            raise TruncatedFrame("broker", detail) from None
        if rewritten is not None:
            self._count_rewritten(self._index, began_s)
        return rewritten

    def _take_newest_book(self) -> AddressBook:
        """Switch to the newest book, which then serves the whole response."""
        book = self._source.book
        if book is not self.book:
            self.book = book
            self._addresses = book.client(self.client_key, self._known_moves)
        return book

    def _count_rewritten(self, index: int, began_s: float) -> None:
        """Count a rewritten response, and observe the time since `began_s`."""
        self.counters.rewritten[API_KEYS[index]] += 1
        if self._clock is not None and self._observe is not None:
            self._observe(self._clock() - began_s)


class SlicedPatch:
    """A collected response that is patched slice by slice.

    Args:    layout: one with slices; frame: the whole response, from its size field on; addresses: to write.

    ``has_replacements`` is whether anything was replaced so far. The caller keeps its time in ``spent_s``.
    """

    __slots__ = (
        "_addresses",
        "_frame",
        "_layout",
        "_measures",
        "_parts",
        "_pieces",
        "_size",
        "_slices",
        "has_replacements",
        "spent_s",
    )

    def __init__(self, layout: Layout, frame: memoryview, addresses: Addresses) -> None:
        self._layout = layout
        self._frame = frame
        self._addresses = addresses
        self._parts: Parts = []
        self._pieces: deque[bytes | memoryview] = deque()
        """Pieces to write."""
        self._size = 0
        self._slices: Slices | None = self._walk()
        self._measures = True
        self.has_replacements = False
        self.spent_s = 0.0

    def step(self, write: Write) -> bool:
        """Patch a slice, or write a few pieces.

        Returns: whether there is more to do.
        Raises:  TruncatedFrame, MalformedFrame, OversizeFrame: see ``wire.addresses.Slices``.
        """
        if self._slices is not None and not self._pieces:
            self._take_slice(self._slices)
        written_bytes = 0
        while self._pieces and written_bytes < PIECE_BYTES:
            # A view would keep the whole response in memory for as long as the client does not read it.
            piece = bytes(self._pieces.popleft())
            write(piece)
            written_bytes += len(piece)
        return bool(self._pieces) or self._slices is not None

    def _walk(self) -> Slices:
        slices = self._layout.slices
        assert slices is not None
        return slices(self._frame, self._addresses, self._parts)

    def _take_slice(self, slices: Slices) -> None:
        """Take the next slice."""
        parts = self._parts
        ended = False
        try:
            next(slices)
        except StopIteration as end:
            ended = True
            parts.append(self._frame[end.value :])
        except OUT_OF_BYTES:
            detail = f"{self._layout.name} response of {len(self._frame)} bytes ends inside a field"
            raise TruncatedFrame("broker", detail) from None
        if self._measures:
            self.has_replacements = self.has_replacements or len(parts) > 1
            self._size += sum(map(len, parts))
            if self._size > MAX_INT32:
                raise _oversize_error(self._layout.name, len(self._frame))
            parts.clear()
            if ended:
                self._measures = False
                self._slices = self._walk() if self.has_replacements else None
                if self.has_replacements:
                    self._pieces.append(pack_int32(self._size))
                else:
                    self._queue_pieces(self._frame)
            return
        passes = parts.pop()
        if len(passes) < JOIN_BELOW_BYTES:
            self._pieces.append(b"".join((*parts, passes)))
        else:
            self._pieces.append(b"".join(parts))
            self._queue_pieces(memoryview(passes))
        parts.clear()
        if ended:
            self._slices = None

    def _queue_pieces(self, view: memoryview) -> None:
        """Queue a view in pieces that are written one after the other."""
        for begin in range(0, len(view), PIECE_BYTES):
            self._pieces.append(view[begin : begin + PIECE_BYTES])


def _oversize_error(name: str, frame_bytes: int) -> OversizeFrame:
    """Return the error for a response above int32: new hosts may make a response 18 times as long."""
    detail = f"{name} response of {frame_bytes} bytes is above int32 with the fleet's addresses"
    return OversizeFrame("broker", f"{detail}; request less at once, or advertise shorter host names")


def _has_prefix_at(data: bytes, pos: int, mark: int, original: bytes) -> bool:
    """Whether the bytes between two positions equal ``found``; comparing a small copy beats a method call."""
    if mark - pos < JOIN_BELOW_BYTES:
        return data[pos:mark] == original
    return data.startswith(original, pos)


def _write_owned(parts: Parts, write: Write) -> None:
    """Write the segments of a collected response: small ones joined, large ones (records) alone."""
    small: Parts = []
    for part in parts:
        if len(part) < JOIN_BELOW_BYTES:
            small.append(part)
            continue
        if small:
            write(b"".join(small))
            small = []
        write(part)
    if small:
        write(b"".join(small))
