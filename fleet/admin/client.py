"""Asks members' admin addresses, and tells one of them to drain a member."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote

import aiohttp

from fleet.admin.documents import ADMIN_HEADER, DRAIN, ERROR, OWNERSHIP, DrainDocument, OwnershipDocument
from fleet.config.settings import MemberSettings, Settings, is_loopback, is_wildcard
from fleet.errors import AdminError, CommandTimeout, FleetError, NoQuorum, UnknownMember
from fleet.model import Endpoint, ProxyId

ASK_TIMEOUT_S: Final = 2.0
DRAIN_TIMEOUT_S: Final = 10.0


def admin_url(endpoint: Endpoint) -> str:
    """Where a member's admin socket is asked; a wildcard one is asked on loopback."""
    if is_wildcard(endpoint.host):
        endpoint = Endpoint("::1" if ":" in endpoint.host else "127.0.0.1", endpoint.port)
    return f"http://{endpoint}"


def admin_urls(settings: Settings) -> dict[ProxyId, str]:
    """Where each member of a configuration is asked."""
    return {proxy_id: admin_url(member.admin) for proxy_id, member in settings.members.items()}


def normal_url(text: str) -> str:
    """``http://host:port`` of what somebody typed: the scheme may be missing, a slash may be at the end."""
    return (text if "://" in text else f"http://{text}").rstrip("/")


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
    except aiohttp.ClientConnectorError as error:
        reason = error.os_error.strerror or str(error.os_error)
        raise AdminError(f"{url} cannot be asked: {reason.lower()}") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise AdminError(f"{url} cannot be asked: {reason}") from error


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
    urls: Mapping[ProxyId, str], timeout_s: float = ASK_TIMEOUT_S
) -> dict[ProxyId, OwnershipDocument | FleetError]:
    """What each member knows, or why it did not say; all are asked at once."""

    async def ask(url: str) -> OwnershipDocument | FleetError:
        try:
            return await fetch_ownership(session, url, timeout_s)
        except FleetError as error:
            return error

    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(ask(url) for url in urls.values()))
    return dict(zip(urls, answers, strict=True))


async def drain(
    urls: Iterable[str], proxy_id: ProxyId, drained: bool, timeout_s: float = DRAIN_TIMEOUT_S
) -> DrainDocument:
    """Has one member after the other commit it, until one has.

    Raises:
        UnknownMember: the fleet has no such member.
        NoQuorum, CommandTimeout: a member was there, and could not commit it.
        AdminError: no member could be asked.
    """
    verb = "drain" if drained else "undrain"
    refusals: list[FleetError] = []
    async with aiohttp.ClientSession() as session:
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
        raise AdminError("no member has a loopback admin address here; name one with --admin")
    raise next((each for each in refusals if not isinstance(each, AdminError)), refusals[0])


def writable_urls(members: Iterable[MemberSettings]) -> tuple[str, ...]:
    """Addresses at which drain and undrain are answered."""
    return tuple(admin_url(member.admin) for member in members if is_loopback(member.admin.host))
