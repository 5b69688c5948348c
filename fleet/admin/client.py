"""Asks members' admin addresses, and tells one of them to drain a member."""

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

ASK_TIMEOUT_S: Final = 2.0
DRAIN_TIMEOUT_S: Final = 10.0
SILENT_LIMIT_S: Final = 5.0
"""Who tells the fleet as it changes tells something every second."""
LONGEST_BYTES: Final = 1 << 26
"""Of one document: that of a fleet of 20,000 identities."""
_DATA: Final = b"data: "


class _NotFound(AdminError):
    """A member knows nothing of that path."""


def admin_url(endpoint: Endpoint, scheme: str = "http") -> str:
    """Where a member's admin socket is asked; a wildcard one is asked on loopback."""
    if is_wildcard(endpoint.host):
        endpoint = Endpoint("::1" if ":" in endpoint.host else "127.0.0.1", endpoint.port)
    return f"{scheme}://{endpoint}"


def scheme_of(settings: Settings | None) -> str:
    """How members are asked; those that no configuration describes by plain HTTP."""
    return "http" if settings is None or settings.admin.tls is None else "https"


def admin_urls(settings: Settings) -> dict[ProxyId, str]:
    """Where each member of a configuration is asked."""
    scheme = scheme_of(settings)
    return {proxy_id: admin_url(member.admin, scheme) for proxy_id, member in settings.members.items()}


def normal_url(text: str, scheme: str = "http") -> str:
    """``http://host:port`` of what somebody typed: the scheme may be missing, a slash may be at the end."""
    return (text if "://" in text else f"{scheme}://{text}").rstrip("/")


def _refusal(url: str, status: int, body: bytes) -> FleetError:
    try:
        error = ERROR.decode(body).error
    except ValueError:
        return AdminError(f"{url} answered {status}, which is no answer of a member's admin address")
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
    """An answer with a good status, to be read.

    Raises:
        AdminError: no answer, or none of a member; also where it breaks off while it is read.
        NoQuorum, CommandTimeout, UnknownMember: the member said so.
    """
    parts = urlsplit(url)
    if (
        "Authorization" in session.headers
        and parts.scheme != "https"
        and not is_loopback(parts.hostname or "")
    ):
        raise AdminError(f"{url} would be sent the token in the clear; ask it by https")
    try:
        async with session.request(
            method, url, headers=headers, timeout=limits, allow_redirects=False, read_bufsize=LONGEST_BYTES
        ) as response:
            if response.status not in good:
                raise _refusal(url, response.status, await response.read())
            yield response
    except TimeoutError:
        waited_s = limits.total or limits.sock_read or 0.0
        raise AdminError(f"{url} did not answer within {waited_s:g} s") from None
    except aiohttp.ClientConnectorCertificateError as error:
        raise AdminError(
            f"{url} is not believed: {explain(error.certificate_error)}; name who has issued its certificate "
            "as admin.tls.ca, and have it issued for this address"
        ) from error
    except aiohttp.ClientConnectorSSLError as error:
        raise AdminError(f"{url} cannot be asked: {explain(error.os_error)}") from error
    except aiohttp.ClientConnectorError as error:
        reason = error.os_error.strerror or str(error.os_error)
        raise AdminError(f"{url} cannot be asked: {reason.lower()}") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        reason = make_printable(error) or type(error).__name__
        hint = "" if parts.scheme == "https" else "; it may want https"
        raise AdminError(f"{url} cannot be asked: {reason}{hint}") from error


async def _request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    timeout_s: float,
    headers: Mapping[str, str],
    good: Container[int] = (200,),
) -> bytes:
    """The body of a good answer. Raises: as of ``_answer``"""
    limits = aiohttp.ClientTimeout(total=timeout_s)
    async with _answer(session, method, url, limits, headers, good) as response:
        return await response.read()


async def follow(session: aiohttp.ClientSession, url: str) -> AsyncGenerator[LiveDocument, None]:
    """What one member tells of the fleet, as it changes, until it ends that.

    Raises:
        AdminError: it does not answer, or no more, or with something else.
    """
    limits = aiohttp.ClientTimeout(sock_connect=ASK_TIMEOUT_S, sock_read=SILENT_LIMIT_S)
    async with _answer(session, "GET", f"{url}/live", limits, {}) as response:
        async for line in response.content:
            if line.startswith(_DATA):
                yield LIVE.decode(line.removeprefix(_DATA))


async def fetch_ownership(
    session: aiohttp.ClientSession, url: str, timeout_s: float = ASK_TIMEOUT_S
) -> OwnershipDocument:
    """What one member knows of the fleet.

    Raises:
        AdminError: it does not answer, or with something else.
    """
    return await _fetch(session, f"{url}/ownership", OWNERSHIP, timeout_s)


async def fetch_metrics(session: aiohttp.ClientSession, url: str, timeout_s: float = ASK_TIMEOUT_S) -> str:
    """What one member tells Prometheus. Raises: AdminError: it does not answer."""
    return (await _request(session, "GET", f"{url}/metrics", timeout_s, {})).decode()


async def ask_ready(url: str, timeout_s: float = ASK_TIMEOUT_S, access: Access = OPEN) -> ReadyDocument:
    """Whether one member is ready, and for what it is not.

    Raises:
        AdminError: it does not answer, or with something else.
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
        raise AdminError(f"{url} is not what a member of this version says") from error


async def ask_all(
    urls: Mapping[ProxyId, str], timeout_s: float = ASK_TIMEOUT_S, access: Access = OPEN
) -> dict[ProxyId, OwnershipDocument | FleetError]:
    """What each member knows, or why it did not say; all are asked at once."""
    return await _ask_each(urls, "ownership", OWNERSHIP, timeout_s, access)


async def ask_traffic(
    urls: Mapping[ProxyId, str], timeout_s: float = ASK_TIMEOUT_S, access: Access = OPEN
) -> dict[ProxyId, TrafficDocument | FleetError]:
    """What passes each member, or why it did not say; all are asked at once."""
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
    """Have a member drained, or undrained. Raises: see ``_commit``."""
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

    Raises: as ``_commit``, and UnknownBroker: the fleet has no such broker.
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
                refusals.append(AdminError(f"{url} is not a member of this version"))
            except FleetError as error:
                refusals.append(error)
    if not refusals:
        raise AdminError("no member has a loopback admin address here, nor a token; name one with --admin")
    raise next((each for each in refusals if type(each) is not AdminError), refusals[0])


def writable_urls(settings: Settings) -> tuple[str, ...]:
    """Addresses at which drain and undrain are answered."""
    by_token = settings.admin.tokens is not None
    return tuple(
        url
        for proxy_id, url in admin_urls(settings).items()
        if by_token or is_loopback(settings.member(proxy_id).admin.host)
    )
