"""A DNS server for names of brokers, which can drop questions, and a member that uses the server."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

NO_ERROR, NO_SUCH_NAME = 0, 3
A, IN = 1, 1
TTL_S = 1
POINTER_TO_QUESTION = 0xC00C
"""The name in an answer: a pointer to the question, which follows the header."""
HEADER = struct.Struct(">HHHHHH")
ANSWER = struct.Struct(">HHHIH4s")
MOUNT = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'


class NameServer:
    """Answers questions for IPv4 addresses at a loopback address, on UDP port 53.

    Args:
        host: where it listens.
        addresses: of each name, in the order of the answer. A name with none is never answered.
    Source: RFC 1035, section 4
    """

    def __init__(self, host: str, addresses: Mapping[str, Sequence[str]]) -> None:
        self._host = host
        self._addresses = addresses
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._thread = threading.Thread(target=self._serve, name="name server", daemon=True)
        self.asked: Counter[str] = Counter()
        """The number of questions for each name."""

    def __enter__(self) -> NameServer:
        self._socket.bind((self._host, 53))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", (self._host, 53))
        self._thread.join()
        self._socket.close()

    def through(self, folder: Path) -> tuple[str, ...]:
        """The command that starts another command which resolves names here, for `LocalFleet.through`."""
        file = folder / "resolv.conf"
        file.write_text(f"nameserver {self._host}\n")
        return ("unshare", "-Urm", "bash", "-c", MOUNT, str(file))

    def _serve(self) -> None:
        query, asker = self._socket.recvfrom(512)
        while query:  # an empty query ends the server
            reply = self._reply(query)
            if reply is not None:
                self._socket.sendto(reply, asker)
            query, asker = self._socket.recvfrom(512)

    def _reply(self, query: bytes) -> bytes | None:
        query_id, *_ = HEADER.unpack_from(query)
        labels, pos = [], HEADER.size
        while size := query[pos]:
            labels.append(query[pos + 1 : pos + 1 + size].decode())
            pos += 1 + size
        kind, _ = struct.unpack_from(">HH", query, pos + 1)
        name = ".".join(labels)
        self.asked[name] += 1
        known = self._addresses.get(name)
        if known is not None and not known:
            return None
        found = [socket.inet_aton(each) for each in known or ()] if kind == A else []
        answers = [ANSWER.pack(POINTER_TO_QUESTION, A, IN, TTL_S, len(each), each) for each in found]
        code = NO_SUCH_NAME if known is None else NO_ERROR
        head = HEADER.pack(query_id, 0x8180 | code, 1, len(answers), 0, 0)
        return head + query[HEADER.size : pos + 5] + b"".join(answers)


class SilentPort:
    """An address at which connections are neither accepted nor refused: its queue is full.

    Args: at: host and port.
    """

    def __init__(self, at: tuple[str, int]) -> None:
        self._server = socket.create_server(at, backlog=0)
        self._waiting = [socket.socket() for _ in range(4)]
        for each in self._waiting:
            each.setblocking(False)
            each.connect_ex(at)

    def __enter__(self) -> SilentPort:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._server, *self._waiting):
            each.close()
