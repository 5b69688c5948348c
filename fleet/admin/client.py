"""Asks members' admin addresses, and tells one of them to drain a member."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, urlsplit

import aiohttp

from fleet.admin.access import OPEN, Access
from fleet.admin.documents import ADMIN_HEADER, DRAIN, ERROR, OWNERSHIP, DrainDocument, OwnershipDocument
from fleet.config.settings import Settings, is_loopback, is_wildcard
from fleet.errors import AdminError, CommandTimeout, FleetError, NoQuorum, UnknownMember
from fleet.model import Endpoint, ProxyId
from fleet.peer_tls import explain

ASK_TIMEOUT_S: Final = 2.0
DRAIN_TIMEOUT_S: Final = 10.0


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
    if error.kind == "no_quorum":
        return NoQuorum(error.message)
    if error.kind == "timeout":
        return CommandTimeout(error.message)
    if error.kind == "unknown_member":
        return UnknownMember(error.message)
    return AdminError(f"{url} answered {status}: {error.message}")


async def _request(
    session: aiohttp.ClientSession, method: str, url: str, timeout_s: float, headers: Mapping[str, str]
) -> bytes:
    """The body of a 200.

    Raises:
        AdminError: no answer, or none of a member.
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
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with session.request(
            method, url, headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            body = await response.read()
            if response.status != 200:
                raise _refusal(url, response.status, body)
            return body
    except TimeoutError:
        raise AdminError(f"{url} did not answer within {timeout_s:g} s") from None
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
        reason = str(error) or type(error).__name__
        hint = "" if parts.scheme == "https" else "; it may want https"
        raise AdminError(f"{url} cannot be asked: {reason}{hint}") from error


async def fetch_ownership(
    session: aiohttp.ClientSession, url: str, timeout_s: float = ASK_TIMEOUT_S
) -> OwnershipDocument:
    """What one member knows of the fleet.

    Raises:
        AdminError: it does not answer, or with something else.
    """
    body = await _request(session, "GET", f"{url}/ownership", timeout_s, {})
    try:
        return OWNERSHIP.decode(body)
    except ValueError as error:
        raise AdminError(f"{url}/ownership is not what a member of this version says") from error


async def ask_all(
    urls: Mapping[ProxyId, str], timeout_s: float = ASK_TIMEOUT_S, access: Access = OPEN
) -> dict[ProxyId, OwnershipDocument | FleetError]:
    """What each member knows, or why it did not say; all are asked at once."""

    async def ask(url: str) -> OwnershipDocument | FleetError:
        try:
            return await fetch_ownership(session, url, timeout_s)
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
    """Has one member after the other commit it, until one has.

    Raises:
        UnknownMember: the fleet has no such member.
        NoQuorum, CommandTimeout: a member was there, and could not commit it.
        AdminError: no member could be asked.
    """
    verb = "drain" if drained else "undrain"
    refusals: list[FleetError] = []
    async with access.session() as session:
        for url in urls:
            try:
                headers = {ADMIN_HEADER: "1"}
                body = await _request(
                    session, "POST", f"{url}/{verb}/{quote(proxy_id, safe='')}", timeout_s, headers
                )
                return DRAIN.decode(body)
            except UnknownMember:
                raise
            except ValueError:
                refusals.append(AdminError(f"{url} is not a member of this version"))
            except FleetError as error:
                refusals.append(error)
    if not refusals:
        raise AdminError("no member has a loopback admin address here, nor a token; name one with --admin")
    raise next((each for each in refusals if not isinstance(each, AdminError)), refusals[0])


def writable_urls(settings: Settings) -> tuple[str, ...]:
    """Addresses at which drain and undrain are answered."""
    by_token = settings.admin.tokens is not None
    return tuple(
        url
        for proxy_id, url in admin_urls(settings).items()
        if by_token or is_loopback(settings.member(proxy_id).admin.host)
    )
