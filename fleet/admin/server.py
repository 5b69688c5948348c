"""A member's admin interface: metrics, health, ownership, drain, undrain, pin and unpin over HTTP.

Without tokens every client that reaches the port may read, but only under a name of the fleet: a web page may
make its own name resolve to this address. Changes are answered only on a loopback socket, under a loopback
name, and with a header that no web page can send to another site. With tokens (``fleet/tls/tokens.py``) only
the token decides, wherever the socket is.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from importlib import resources
from typing import Final

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from fleet.admin.connections import AdminServer, Connections
from fleet.admin.documents import (
    ADMIN_HEADER,
    DRAIN,
    ERROR,
    OWNERSHIP,
    PIN,
    READY,
    TRAFFIC,
    DrainDocument,
    ErrorDetail,
    ErrorDocument,
    ErrorKind,
    PinDocument,
)
from fleet.admin.live import FetchCounts, LiveFeed, Watcher, no_other_members
from fleet.admin.metrics import NO_REFUSALS, ApiNames, FleetCollector, api_name, registry_of
from fleet.admin.ownership import ownership_document, ready_document
from fleet.admin.snapshot import AdminSource
from fleet.admin.traffic import traffic_document
from fleet.config.settings import is_address, is_loopback
from fleet.core.crowd import source_of
from fleet.core.errors import CommandTimeout, FleetError, NoQuorum, StaleGeneration, UnknownMember
from fleet.core.model import BrokerId, ProxyId
from fleet.core.state import Outcome
from fleet.tls.tokens import Gate, Refusal, Role

log = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset({"/", "/healthz", "/readyz"})
"""Answered without a token: their clients (kubelet, a load balancer) often cannot send one. The page contains
no
data of the fleet: it asks the user for a token, and then requests ``/live``."""

ROLE_HEADER: Final = "X-Fleet-Role"
"""Header in the answer of ``/live``: the rights of the reader, ``read`` or ``write``."""
PATHS: Final = (
    "/ownership /traffic /live /metrics /healthz /readyz; "
    "POST /drain/ID /undrain/ID /pin/BROKER/ID /unpin/BROKER"
)

_REFUSALS: Final[Mapping[Refusal, tuple[int, ErrorKind, str]]] = {
    "no_token": (
        401,
        "unauthorized",
        "send `Authorization: Bearer TOKEN`; admin.tokens names the files of the tokens",
    ),
    "wrong_token": (401, "unauthorized", "the token is not in admin.tokens of this member"),
    "unreadable": (503, "internal", "this member cannot read its tokens; see its log"),
    "read_only": (403, "forbidden", "this token may only read; use the token of admin.tokens.write"),
}

_AUTHORITY: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{0,5})?")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _error(status: int, kind: ErrorKind, message: str) -> web.Response:
    body = ERROR.encode(ErrorDocument(ErrorDetail(kind, message)))
    return web.Response(status=status, body=body, content_type="application/json")


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return _error(
            404, "not_found", f"no page {request.path}; use /ownership, /metrics, /healthz or /readyz"
        )
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = _error(405, "usage", f"{request.path} does not accept {request.method}; use {allowed}")
        response.headers["Allow"] = allowed
        return response
    except web.HTTPException as error:
        return _error(error.status, "usage", error.reason)
    except UnknownMember as error:
        return _error(404, "unknown_member", str(error))
    except NoQuorum as error:
        return _error(503, "no_quorum", str(error))
    except CommandTimeout as error:
        return _error(503, "timeout", str(error))
    except StaleGeneration as error:
        return _error(409, "conflict", str(error))
    except FleetError as error:
        return _error(500, "internal", str(error))
    except Exception:
        log.exception("admin request %s %s failed", request.method, request.path)
        return _error(500, "internal", "internal error; see the log of the member")


def _host_of(authority: str) -> str:
    """The host in ``host:port``, in lower case and without a final dot; empty for any other text."""
    found = _AUTHORITY.fullmatch(authority.lower())
    return "" if found is None else (found[1] or found[2]).removesuffix(".")


class _Admin:
    def __init__(
        self,
        source: AdminSource,
        writable: bool,
        gate: Gate | None,
        names: ApiNames,
        live: LiveFeed,
        hosts: Collection[str],
        connections: Connections,
    ) -> None:
        self._source = source
        self._live = live
        self._writable = writable
        self._gate = gate
        self._names = names
        self._hosts = frozenset(host.lower().removesuffix(".") for host in hosts)
        self._connections = connections

    @web.middleware
    async def guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The handler's answer if the request is allowed, otherwise the refusal."""
        # Since Python 3.12 a handler that never waits runs at once. One turn of the loop would then answer
        # all requests that a client has pipelined.
        await asyncio.sleep(0)
        self._connections.note_request(request)
        if request.path in OPEN_PATHS:
            return await handler(request)
        refused = self._refuse_name(request) if self._gate is None else self._refuse_token(request)
        if refused is not None:
            return refused
        self._connections.admit(request)
        return await handler(request)

    def _refuse_name(self, request: web.Request) -> web.Response | None:
        """The refusal of a request under a name outside the fleet, as from a web page with its own name.

        An IP address cannot be the name of a page. Clients other than browsers may omit the name.
        """
        named = request.headers.getall("Host", [])
        hosts = {_host_of(authority) for authority in named}
        if named and request.host not in named:  # the target of the request is a whole URL
            hosts.add(request.host.lower())
        for host in hosts:
            if not (is_address(host) or host == "localhost" or host in self._hosts):
                return _error(
                    403,
                    "forbidden",
                    f"Host: {request.host!r:.100} is not a name of this fleet; use an address or a name in "
                    "the configuration, or add admin.tokens",
                )
        return None

    def _refuse_token(self, request: web.Request) -> web.Response | None:
        assert self._gate is not None
        authorization = request.headers.get("Authorization")
        writes = request.method not in ("GET", "HEAD")
        refusal = self._gate.refusal(authorization, writes, str(request.remote))
        if refusal is None:
            return None
        response = _error(*_REFUSALS[refusal])
        if response.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    async def index(self, request: web.Request) -> web.Response:
        if "text/html" not in request.headers.get("Accept", ""):
            return web.Response(text=f"a member of a fleet: {PATHS}\n")
        return web.Response(body=_PAGE, content_type="text/html", charset="utf-8", headers=_PAGE_HEADERS)

    async def live(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events, each with one document."""
        watcher = self._live.enter(source_of((request.remote or "",)))
        if watcher is None:
            return _error(503, "internal", "this member has too many readers of /live; use another member")
        try:
            return await self._follow(request, watcher)
        finally:
            self._live.leave(watcher)

    async def _follow(self, request: web.Request, watcher: Watcher) -> web.StreamResponse:
        role = self._role(request)
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                ROLE_HEADER: role or "read",
            }
        )
        # A closed page is noticed when the next document is written.
        with suppress(ConnectionError):
            await response.prepare(request)
            async with aclosing(self._live.follow(watcher)) as documents:
                async for document in documents:
                    # A token that is revoked or changes its role ends the stream.
                    if role is None or self._role(request) != role:
                        break
                    # Waits for a slow reader, which then gets the newest document and misses those in
                    # between.
                    await response.write(b"data: " + document + b"\n\n")
        return response

    def _role(self, request: web.Request) -> Role | None:
        if self._gate is not None:
            return self._gate.role(request.headers.get("Authorization"))
        return "write" if self._writable and is_loopback(request.url.host or "") else "read"

    async def traffic(self, request: web.Request) -> web.Response:
        view = await self._source.counted_view()
        body = await asyncio.to_thread(lambda: TRAFFIC.encode(traffic_document(view)))
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def healthz(self, request: web.Request) -> web.Response:
        trouble = self._source.view().raft.error
        return web.json_response({"status": "ok"} | ({"raft": trouble} if trouble else {}))

    async def readyz(self, request: web.Request) -> web.Response:
        view = self._source.view()
        body = READY.encode(ready_document(view))
        return web.Response(status=200 if view.ready else 503, body=body, content_type="application/json")

    async def ownership(self, request: web.Request) -> web.Response:
        view = self._source.view()
        # The table of a large fleet takes tens of milliseconds to write: not on the loop that answers
        # heartbeats.
        body = await asyncio.to_thread(lambda: OWNERSHIP.encode(ownership_document(view)))
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        refused = NO_REFUSALS if self._gate is None else dict(self._gate.refused)
        view = await self._source.counted_view()
        registry = registry_of(FleetCollector(view, self._names, refused, self._connections.counts()))
        body = await asyncio.to_thread(encode, registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def drain(self, request: web.Request) -> web.Response:
        return await self._set_drained(request, drained=True)

    async def undrain(self, request: web.Request) -> web.Response:
        return await self._set_drained(request, drained=False)

    async def _set_drained(self, request: web.Request, drained: bool) -> web.Response:
        refused = self._refuse(request) if self._gate is None else None
        if refused is not None:
            return refused
        proxy_id: ProxyId = request.match_info["proxy_id"]
        outcome = _require_applied(await self._source.drain(proxy_id, drained), proxy_id)
        document = DrainDocument(proxy_id, drained, outcome.applied, outcome.generation)
        return web.Response(body=DRAIN.encode(document), content_type="application/json")

    async def pin(self, request: web.Request) -> web.Response:
        return await self._set_pinned(request, request.match_info["proxy_id"])

    async def unpin(self, request: web.Request) -> web.Response:
        return await self._set_pinned(request, None)

    async def _set_pinned(self, request: web.Request, proxy_id: ProxyId | None) -> web.Response:
        refused = self._refuse(request) if self._gate is None else None
        if refused is not None:
            return refused
        broker_id: BrokerId = int(request.match_info["broker_id"])
        if broker_id not in self._source.view().state.ownership:
            return _error(404, "not_found", f"no member owns broker {broker_id}")
        outcome = _require_applied(await self._source.pin(broker_id, proxy_id), proxy_id)
        document = PinDocument(broker_id, proxy_id, outcome.applied, outcome.generation)
        return web.Response(body=PIN.encode(document), content_type="application/json")

    def _refuse(self, request: web.Request) -> web.Response | None:
        if not self._writable:
            return _error(
                403,
                "forbidden",
                "this admin address is not loopback, so it is read-only; use a loopback one, or admin.tokens",
            )
        if request.headers.get(ADMIN_HEADER) != "1":
            return _error(403, "forbidden", f"the header {ADMIN_HEADER} is missing; send {ADMIN_HEADER}: 1")
        # A web page may make its own name resolve to 127.0.0.1; then it requests that name.
        if not is_loopback(request.url.host or ""):
            return _error(
                403, "forbidden", f"{request.host} is not a loopback name; use localhost or 127.0.0.1"
            )
        return None


def _require_applied(outcome: Outcome, proxy_id: ProxyId | None) -> Outcome:
    """The outcome of a committed command.

    Raises: UnknownMember, StaleGeneration: the command had no effect
    """
    if outcome.reason == "unknown_member":
        raise UnknownMember(f"the fleet has not admitted a member {proxy_id!r}")
    if outcome.reason not in ("", "no_change", "repeated"):
        raise StaleGeneration(f"the command had no effect ({outcome.reason}); try again")
    return outcome


def _content_security_policy(page: str) -> str:
    """A policy for a page with inline script and style that connects only to its own host."""
    hashes = {}
    for kind in ("script", "style"):
        (text,) = re.findall(rf"<{kind}[^>]*>(.*?)</{kind}>", page, re.DOTALL)
        hashes[kind] = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    allowed = " ".join(f"{kind}-src 'sha256-{value}';" for kind, value in hashes.items())
    return (
        f"default-src 'none'; {allowed} connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


_TEXT: Final = resources.files("fleet.admin").joinpath("live.html").read_text(encoding="utf-8")
_PAGE: Final = _TEXT.encode()
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": _content_security_policy(_TEXT),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def build_app(
    source: AdminSource,
    *,
    writable: bool,
    gate: Gate | None = None,
    names: ApiNames = api_name,
    others: FetchCounts = no_other_members,
    hosts: Collection[str] = (),
    connections: Connections,
) -> web.Application:
    """The admin interface of a control process.

    Args:
        source: gives one view for each request.
        writable: whether changes are answered without a token, because the socket is on loopback.
        gate: checks tokens; None without tokens.
        names: gives the label of an API key in metrics.
        others: fetches the counts of the other members, for ``/live``.
        hosts: the names, besides addresses and ``localhost``, that requests without a token may use.
        connections: the connections of the admin address.
    """
    admin = _Admin(source, writable, gate, names, LiveFeed(source, others), hosts, connections)
    app = web.Application(middlewares=[_errors_as_json, admin.guarded])
    app.add_routes(
        [
            web.get("/", admin.index),
            web.get("/healthz", admin.healthz),
            web.get("/readyz", admin.readyz),
            web.get("/live", admin.live, allow_head=False),  # the answer has no end
            web.get("/ownership", admin.ownership),
            web.get("/traffic", admin.traffic),
            web.get("/metrics", admin.metrics),
            web.post("/drain/{proxy_id}", admin.drain),
            web.post("/undrain/{proxy_id}", admin.undrain),
            web.post(r"/pin/{broker_id:\d{1,10}}/{proxy_id}", admin.pin),
            web.post(r"/unpin/{broker_id:\d{1,10}}", admin.unpin),
        ]
    )
    return app


def bound_to_loopback(sock: socket.socket) -> bool:
    """Whether only this machine can reach a listening socket."""
    if sock.family == socket.AF_UNIX:
        return True
    return is_loopback(str(sock.getsockname()[0]))


async def serve(
    source: AdminSource,
    sock: socket.socket,
    names: ApiNames = api_name,
    *,
    gate: Gate | None = None,
    tls: ssl.SSLContext | None = None,
    others: FetchCounts = no_other_members,
    hosts: Collection[str] = (),
    on_broken: Callable[[BaseException], object] = lambda error: None,
) -> AdminServer:
    """Start to answer on an inherited listening socket; without tokens read-only unless it is on loopback.

    Args:
        on_broken: called if the task that accepts or checks connections has ended with an error.
    Returns: the running server; its ``cleanup()`` ends it
    """
    connections = Connections()
    app = build_app(
        source,
        writable=bound_to_loopback(sock),
        gate=gate,
        names=names,
        others=others,
        hosts=hosts,
        connections=connections,
    )
    server = AdminServer(app, connections, sock, tls, on_broken)
    await server.start()
    return server
