"""Takes the connections of one TLS listener.

A loop of our own: asyncio's server tells nobody of a handshake that failed, does not count those that never
end, and keeps the certificates that it was started with.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from fleet.core.foreign_protocols import NotTls, in_place_of_tls
from fleet.core.model import BrokerId
from fleet.proxy.sni import ServerNames
from fleet.proxy.tls_transport import SharedTls, TlsTransport
from fleet.tls.peers import explain

log = logging.getLogger(__name__)

MAX_HANDSHAKES: Final = 1000
"""Of one port at a time; with more, the oldest one is given up."""
ACCEPT_PAUSE_S: Final = 0.1


class TlsServer:
    """Meets the clients of one listening socket; none waits for the handshake of another.

    Args:
        sock: listens; closed by ``close``.
        listener: its name, for what is said of clients.
        context: how a client that comes now is met; raises OSError.
        factory: of the protocol that is given a client once its handshake is done.
        refused: told of each client whose handshake failed, and why.
        handshake_s: how long a handshake may take.
        room: of the worker.
    """

    def __init__(
        self,
        sock: socket.socket,
        listener: str,
        context: Callable[[], ssl.SSLContext],
        factory: Callable[[ssl.SSLObject], asyncio.Protocol],
        refused: Callable[[str, str], None],
        handshake_s: float,
        shared: SharedTls,
    ) -> None:
        self._sock = sock
        self._listener = listener
        self._context = context
        self._factory = factory
        self._refused = refused
        self._handshake_s = handshake_s
        self._shared = shared
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept nobody any more; handshakes that have begun go on."""
        self._accepting.cancel()
        self._sock.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._sock)
            except ConnectionAbortedError:  # it has gone again
                continue
            except OSError as error:  # no file descriptor is left, for one
                log.warning("nothing can be accepted: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self._handshakes) >= MAX_HANDSHAKES:
                next(iter(self._handshakes)).cancel()
            task = loop.create_task(self._let_in(sock, f"{address[0]}:{address[1]}"))
            self._handshakes[task] = None
            task.add_done_callback(self._handshakes.pop)

    async def _let_in(self, sock: socket.socket, peer: str) -> None:
        try:
            transport = TlsTransport(self._shared, self._context(), self._factory)
            async with asyncio.timeout(self._handshake_s):
                await asyncio.get_running_loop().connect_accepted_socket(lambda: transport, sock)
                await transport.handshake()
        except TimeoutError:
            self._refused(peer, f"no handshake within {self._handshake_s:g} s")
            sock.close()
        except NotTls as error:
            self._refused(peer, in_place_of_tls(error, self._listener))
            sock.close()
        except OSError as error:
            self._refused(peer, explain(error))
            sock.close()
        except asyncio.CancelledError:
            self._refused(peer, f"more than {MAX_HANDSHAKES} handshakes at a time")
            sock.close()
            raise


class NamedClients:
    """Has clients of one port served as the server names say that they give.

    Args:
        context: as of ``TlsServer``.
        names: which identities they are for.
        factory: makes the factory of an identity's protocols, or of bootstrap's.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        names: ServerNames,
        factory: Callable[[BrokerId | None], Callable[[], asyncio.Protocol]],
    ) -> None:
        self._context = context
        self._names = names
        self._factory = factory
        self._identities: WeakKeyDictionary[ssl.SSLObject, BrokerId | None] = WeakKeyDictionary()

    def context(self) -> ssl.SSLContext:
        """As of ``TlsServer``: refuses names that it does not know."""
        context = self._context()
        context.sni_callback = self._on_server_name
        return context

    def _on_server_name(self, tls: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        try:
            self._identities[tls] = self._names.broker_id(name)
        except KeyError:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        return None

    def protocol(self, tls: ssl.SSLObject) -> asyncio.Protocol:
        """Of a client whose handshake is done."""
        return self._factory(self._identities.pop(tls))()
