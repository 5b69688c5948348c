"""Client of members' admin addresses: requests their documents, and drains members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Container, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp

from fleet.admin.documents import (
    ADMIN_HEADER,
    DRAIN,
    ERROR,
    LIVE,
    OWNERSHIP,
    PIN,
    READY,
    TRAFFIC,
    DrainDocument,
    LiveDocument,
    OwnershipDocument,
    PinDocument,
    ReadyDocument,
    TrafficDocument,
)
from fleet.config.settings import Settings, is_loopback, is_wildcard
from fleet.core.codec import Codec
from fleet.core.errors import (
    AdminError,
    CommandTimeout,
    FleetError,
    NoQuorum,
    UnknownBroker,
    UnknownMember,
)
from fleet.core.model import BrokerId, Endpoint, ProxyId
from fleet.core.text import make_printable
from fleet.tls.access import OPEN, Access
from fleet.tls.peers import explain

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 2.0
DRAIN_TIMEOUT_S: Final = 10.0
LIVE_SILENCE_TIMEOUT_S: Final = 5.0
"""``/live`` sends a document every second."""
MAX_DOCUMENT_BYTES: Final = 1 << 26
"""Enough for the document of a fleet with 20,000 identities."""
_DATA: Final = b"data: "


class _NotFound(AdminError):
    """A member answered that the path does not exist."""


def admin_url(endpoint: Endpoint, scheme: str = "http") -> str:
    """The URL of a member's admin address; loopback for a wildcard address."""
    if is_wildcard(endpoint.host):
        endpoint = Endpoint("::1" if ":" in endpoint.host else "127.0.0.1", endpoint.port)
    return f"{scheme}://{endpoint}"


def scheme_of(settings: Settings | None) -> str:
    """``http`` or ``https``; ``http`` without a configuration."""
    return "http" if settings is None or settings.admin.tls is None else "https"


def admin_urls(settings: Settings) -> dict[ProxyId, str]:
    """Member → the URL of its admin address, for each member of a configuration."""
    scheme = scheme_of(settings)
    return {proxy_id: admin_url(member.admin, scheme) for proxy_id, member in settings.members.items()}


def normalize_url(text: str, scheme: str = "http") -> str:
    """``http://host:port``, from text without a scheme or with a slash at the end."""
    return (text if "://" in text else f"{scheme}://{text}").rstrip("/")


def _refusal(url: str, status: int, body: bytes) -> FleetError:
    try:
        error = ERROR.decode(body).error
    except ValueError:
        return AdminError(f"{url} answered {status}, but not as a member; check the address")
    message = make_printable(error.message)
    if error.kind == "no_quorum":
        return NoQuorum(message)
    if error.kind == "timeout":
        return CommandTimeout(message)
    if error.kind == "unknown_member":
        return UnknownMember(message)
    refusal = _NotFound if error.kind == "not_found" else AdminError
    return refusal(f"{url} answered {status}: {message}")


@asynccontextmanager
async def _answer(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    limits: aiohttp.ClientTimeout,
    headers: Mapping[str, str],
    good: Container[int] = (200,),
) -> AsyncIterator[aiohttp.ClientResponse]:
    """An open answer with a good status.

    Raises:
        AdminError: there is no answer, the answer is not a member's, or it breaks off while it is read.
        NoQuorum, CommandTimeout, UnknownMember: the member answered with this error.
    """
    parts = urlsplit(url)
    if (
        "Authorization" in session.headers
        and parts.scheme != "https"
        and not is_loopback(parts.hostname or "")
    ):
        raise AdminError(f"{url}: plain http would expose the token; use https")
    try:
        async with session.request(
            method,
            url,
            headers=headers,
            timeout=limits,
            allow_redirects=False,
            read_bufsize=MAX_DOCUMENT_BYTES,
        ) as response:
            if response.status not in good:
                raise _refusal(url, response.status, await response.read())
            yield response
    except TimeoutError:
        waited_s = limits.total or limits.sock_read or 0.0
        raise AdminError(f"{url} did not answer within {waited_s:g} s") from None
    except aiohttp.ClientConnectorCertificateError as error:
        raise AdminError(
            f"{url}: the certificate is not trusted: {explain(error.certificate_error)}; set "
            "admin.tls.ca to its issuer, and check that the certificate is for this address"
        ) from error
    except aiohttp.ClientConnectorSSLError as error:
        raise AdminError(f"{url} cannot be reached: {explain(error.os_error)}") from error
    except aiohttp.ClientConnectorError as error:
        reason = error.os_error.strerror or str(error.os_error)
        raise AdminError(f"{url} cannot be reached: {reason.lower()}") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        reason = make_printable(error) or type(error).__name__
        hint = "" if parts.scheme == "https" else "; try https"
        raise AdminError(f"{url} cannot be reached: {reason}{hint}") from error


async def _request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    timeout_s: float,
    headers: Mapping[str, str],
    good: Container[int] = (200,),
) -> bytes:
    """The body of a good answer. Raises: the errors of ``_answer``"""
    limits = aiohttp.ClientTimeout(total=timeout_s)
    async with _answer(session, method, url, limits, headers, good) as response:
        return await response.read()


async def follow(session: aiohttp.ClientSession, url: str) -> AsyncGenerator[LiveDocument, None]:
    """Yield the documents of one member's ``/live`` until the member ends the stream.

    Raises:
        AdminError: the member does not answer, stops answering, or sends something else.
    """
    limits = aiohttp.ClientTimeout(sock_connect=REQUEST_TIMEOUT_S, sock_read=LIVE_SILENCE_TIMEOUT_S)
    async with _answer(session, "GET", f"{url}/live", limits, {}) as response:
        async for line in response.content:
            if line.startswith(_DATA):
                yield LIVE.decode(line.removeprefix(_DATA))


async def fetch_ownership(
    session: aiohttp.ClientSession, url: str, timeout_s: float = REQUEST_TIMEOUT_S
) -> OwnershipDocument:
    """One member's view of the fleet.

    Raises:
        AdminError: the member does not answer, or sends something else.
    """
    return await _fetch(session, f"{url}/ownership", OWNERSHIP, timeout_s)


async def fetch_metrics(
    session: aiohttp.ClientSession, url: str, timeout_s: float = REQUEST_TIMEOUT_S
) -> str:
    """The metrics of one member, as text. Raises: AdminError: the member does not answer."""
    return (await _request(session, "GET", f"{url}/metrics", timeout_s, {})).decode()


async def ask_ready(url: str, timeout_s: float = REQUEST_TIMEOUT_S, access: Access = OPEN) -> ReadyDocument:
    """Whether one member is ready, with each check.

    Raises:
        AdminError: the member does not answer, or sends something else.
    """
    async with access.session() as session:
        return await _fetch(session, f"{url}/readyz", READY, timeout_s, (200, 503))


async def _fetch(
    session: aiohttp.ClientSession,
    url: str,
    codec: Codec[T],
    timeout_s: float,
    good: Container[int] = (200,),
) -> T:
    body = await _request(session, "GET", url, timeout_s, {}, good)
    try:
        return codec.decode(body)
    except ValueError as error:
        raise AdminError(f"{url}: the answer is not that of a member of this version") from error


async def ask_all(
    urls: Mapping[ProxyId, str], timeout_s: float = REQUEST_TIMEOUT_S, access: Access = OPEN
) -> dict[ProxyId, OwnershipDocument | FleetError]:
    """Each member's view of the fleet, or its error; all members are asked at once."""
    return await _ask_each(urls, "ownership", OWNERSHIP, timeout_s, access)


async def ask_traffic(
    urls: Mapping[ProxyId, str], timeout_s: float = REQUEST_TIMEOUT_S, access: Access = OPEN
) -> dict[ProxyId, TrafficDocument | FleetError]:
    """The traffic of each member, or its error; all members are asked at once."""
    return await _ask_each(urls, "traffic", TRAFFIC, timeout_s, access)


async def _ask_each(
    urls: Mapping[ProxyId, str], path: str, codec: Codec[T], timeout_s: float, access: Access
) -> dict[ProxyId, T | FleetError]:
    async def ask(url: str) -> T | FleetError:
        try:
            return await _fetch(session, f"{url}/{path}", codec, timeout_s)
        except FleetError as error:
            return error

    async with access.session() as session:
        answers = await asyncio.gather(*(ask(url) for url in urls.values()))
    return dict(zip(urls, answers, strict=True))


async def drain(
    urls: Iterable[str],
    proxy_id: ProxyId,
    drained: bool,
    timeout_s: float = DRAIN_TIMEOUT_S,
    access: Access = OPEN,
) -> DrainDocument:
    """Drain or undrain a member. Raises: the errors of ``_commit``"""
    path = f"{'drain' if drained else 'undrain'}/{quote(proxy_id, safe='')}"
    return await _commit(urls, path, DRAIN, timeout_s, access)


async def pin(
    urls: Iterable[str],
    broker_id: BrokerId,
    proxy_id: ProxyId | None,
    timeout_s: float = DRAIN_TIMEOUT_S,
    access: Access = OPEN,
) -> PinDocument:
    """Pin a broker to a member, or unpin it (``None``).

    Raises: the errors of ``_commit``; UnknownBroker: the fleet has no such broker
    """
    path = f"unpin/{broker_id}" if proxy_id is None else f"pin/{broker_id}/{quote(proxy_id, safe='')}"
    try:
        return await _commit(urls, path, PIN, timeout_s, access)
    except _NotFound as error:
        raise UnknownBroker(
            f"broker {broker_id} is unknown: no member owns it; `fleet status` lists the brokers"
        ) from error


async def _commit(urls: Iterable[str], path: str, codec: Codec[T], timeout_s: float, access: Access) -> T:
    """Send a change to one member after the other, until one has committed it.

    Raises:
        UnknownMember: the fleet has no such member.
        NoQuorum, CommandTimeout: a member answered, but could not commit the change.
        AdminError: no member answered, or each refused.
    """
    refusals: list[FleetError] = []
    async with access.session() as session:
        for url in urls:
            try:
                headers = {ADMIN_HEADER: "1"}
                return codec.decode(await _request(session, "POST", f"{url}/{path}", timeout_s, headers))
            except UnknownMember:
                raise
            except ValueError:
                refusals.append(AdminError(f"{url}: the answer is not that of a member of this version"))
            except FleetError as error:
                refusals.append(error)
    if not refusals:
        raise AdminError(
            "no admin address accepts changes: none is loopback, and there is no token; use --admin"
        )
    # A member that has just started knows no broker yet: its _NotFound counts less than another's NoQuorum.
    answered = sorted(refusals, key=lambda each: isinstance(each, AdminError))
    raise next((each for each in answered if type(each) is not AdminError), refusals[0])


def writable_urls(settings: Settings) -> tuple[str, ...]:
    """URLs of the admin addresses that accept changes."""
    by_token = settings.admin.tokens is not None
    return tuple(
        url
        for proxy_id, url in admin_urls(settings).items()
        if by_token or is_loopback(settings.member(proxy_id).admin.host)
    )
