"""Accepts the connections of one TLS listener.

The fleet has its own accept loop, because asyncio's server does not report failed handshakes, does not limit
handshakes that never end, and keeps the certificates of its start.
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
"""Handshakes of one port at a time; above the limit the oldest one is cancelled."""
ACCEPT_PAUSE_S: Final = 0.1


class TlsServer:
    """Accepts the clients of one listening socket; no client waits for the handshake of another.

    Args:
        sock: the listening socket; closed by ``close``.
        listener: the listener's name, for log lines about clients.
        context: returns the TLS context for the next client; raises OSError.
        factory: creates the protocol of a client whose handshake is complete.
        refused: called with the address of each client whose handshake failed, and the reason.
        handshake_s: how long a handshake may take.
        shared: the TLS state that all connections of the worker share.
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
        """Stop accepting clients; handshakes that have begun continue."""
        self._accepting.cancel()
        self._sock.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._sock)
            except ConnectionAbortedError:  # the client has already left
                continue
            except OSError as error:  # for example, no file descriptor is left
                log.warning("cannot accept TLS connections: %s", error)
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
            self._refused(peer, f"more than {MAX_HANDSHAKES} handshakes at the same time")
            sock.close()
            raise


class NamedClients:
    """Serves the clients of one port according to the server names in their handshakes.

    Args:
        context: see ``TlsServer``.
        names: server name → identity.
        factory: returns the protocol factory of an identity; of bootstrap connections for None.
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
        """Return the TLS context for the next client (see ``TlsServer``); it refuses unknown server names."""
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
        """Create the protocol of a client whose handshake is complete."""
        return self._factory(self._identities.pop(tls))()
