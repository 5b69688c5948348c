"""Goes around and looks: at every member, every address that clients may be sent to, and the brokers."""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from fleet.admin.client import ask_all
from fleet.admin.documents import MemberDocument, OwnershipDocument
from fleet.admin.status import Answers, best_answer
from fleet.cli.doctor import certificate_expiry
from fleet.cli.doctor.facts import Address, Asked, Facts, ShownCertificate
from fleet.config import Settings
from fleet.control.probes import Target, probe_member, resolve
from fleet.core.errors import FleetError, WireError
from fleet.core.liveness import ProbeOutcome
from fleet.core.model import Endpoint, Liveness, Member, ProxyId
from fleet.proxy.wire.metadata import Table, brokers_of, metadata_request
from fleet.runtime.outbound import ATTEMPT_DELAY_S, LocalFailure, Resolver
from fleet.tls.access import Access
from fleet.tls.checking import der_expiry
from fleet.tls.listeners import probe_context

AT_ONCE: Final = 64
"""Connections. A fleet has as many addresses as members times brokers."""
_CORRELATION_ID: Final = 1
_ANSWER_LIMIT_BYTES: Final = 16 * 1024 * 1024
_Way = ssl.SSLContext | None
KeyT = TypeVar("KeyT")
SeenT = TypeVar("SeenT")


@dataclass(frozen=True, slots=True)
class Collector:
    """One look at a fleet, from here.

    Args:
        timeout_s: for each answer.
        say: told what is looked at, for whoever waits.
    """

    settings: Settings
    urls: Mapping[ProxyId, str]
    access: Access
    timeout_s: float
    say: Callable[[str], None]

    async def look(self) -> Facts:
        """Everything that is to be seen.

        Raises: AdminError: no member answers.
        """
        self.say("asking the members")
        before_s = time.time()
        answers = await ask_all(self.urls, self.timeout_s, self.access)
        after_s = time.time()
        best = best_answer(answers)
        ways: dict[Address, _Way] = {}
        unasked: dict[Address, str] = {}
        for address in _addresses(best):
            try:
                ways[address] = self._way(address)
            except OSError as error:
                unasked[address] = f"it cannot be asked: {error}"
        self.say(f"asking at {len(ways)} addresses of members")
        addresses = await _each(ways, lambda address: self._knock(address, ways[address]))
        doors = [each for each in ways if each.broker_id is None]
        self.say("asking for Metadata, and looking at certificates")
        metadata = await _each(doors, lambda address: self._metadata(address, ways[address]))
        shown = await _each(list(self._secured(doors)), self._certificate)
        speak = {each: self.urls[each] for each, said in answers.items() if not isinstance(said, FleetError)}
        told = await certificate_expiry.told(speak, self.timeout_s, self.access)
        self.say("trying the brokers")
        brokers = {(each.broker_id, Endpoint(each.host, each.port)) for each in best.brokers}
        return Facts(
            answers=answers,
            offsets_s=_offsets(answers, before_s, after_s),
            addresses={**addresses, **unasked},
            metadata=tuple(metadata.values()),
            brokers=await _each(sorted(brokers), lambda broker: self._reach(broker[1])),
            certificates=(*shown.values(), *told),
            now=datetime.fromtimestamp(after_s, UTC),
        )

    def _way(self, address: Address) -> _Way:
        """With which TLS an address is asked. Raises: OSError: a certificate that it takes is not here."""
        tls = self.settings.listener_tls.get(address.listener)
        return None if tls is None else probe_context(tls.for_member(address.proxy_id))

    async def _knock(self, address: Address, way: _Way) -> str | None:
        try:
            targets = await resolve([Target(address.endpoint, way)], Resolver(), self.timeout_s)
            outcome = await probe_member(targets, self.timeout_s)
        except LocalFailure as error:
            return f"it cannot be asked from here: {error}"
        if outcome is ProbeOutcome.TIMED_OUT:
            return f"no answer within {self.timeout_s:g} s"
        return None if outcome is ProbeOutcome.ANSWERED else "no member answers there"

    async def _metadata(self, address: Address, way: _Way) -> Asked:
        try:
            async with asyncio.timeout(self.timeout_s):
                return Asked(address, await _table(address.endpoint, way))
        except TimeoutError:
            return Asked(address, None, f"no answer to Metadata within {self.timeout_s:g} s")
        except asyncio.IncompleteReadError:
            return Asked(address, None, "whoever asks has to be known (SASL), and doctor has no credentials")
        except (OSError, WireError) as error:
            return Asked(address, None, str(error))

    def _secured(self, doors: Iterable[Address]) -> Iterator[tuple[str, Endpoint, Address | None]]:
        """Who is to have a certificate; None for an admin address."""
        for address in doors:
            if address.listener in self.settings.listener_tls:
                yield f"{address.proxy_id} {address.listener}", address.endpoint, address
        if self.settings.admin.tls is not None:
            for proxy_id, member in self.settings.members.items():
                yield f"{proxy_id} admin", member.admin, None

    async def _certificate(self, asked: tuple[str, Endpoint, Address | None]) -> ShownCertificate:
        who, endpoint, address = asked
        try:
            way = _unverified() if address is None else self._way(address)
            async with asyncio.timeout(self.timeout_s):
                _, writer = await _open(endpoint, way)
            try:
                found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            finally:
                writer.transport.abort()
        except TimeoutError:
            return ShownCertificate(who, None, f"no answer within {self.timeout_s:g} s")
        except OSError as error:
            return ShownCertificate(who, None, str(error))
        return ShownCertificate(who, der_expiry(found))

    async def _reach(self, endpoint: Endpoint) -> str | None:
        try:
            async with asyncio.timeout(self.timeout_s):
                _, writer = await _open(endpoint)
        except TimeoutError:
            return f"no answer within {self.timeout_s:g} s"
        except OSError as error:
            return str(error)
        writer.transport.abort()
        return None


def _addresses(best: OwnershipDocument) -> Iterator[Address]:
    """Everywhere that clients may be sent to: members that live, and each identity at each of them."""
    broker_ids = [each.broker_id for each in best.identities]
    for document in best.members:
        if document.liveness is not Liveness.UP:
            continue
        member = _member(document)
        for advertised in document.listeners:
            at = Endpoint(advertised.host, advertised.bootstrap_port)
            yield Address(member.proxy_id, advertised.name, at)
            for broker_id in broker_ids:
                endpoint = member.endpoint(advertised.name, broker_id)
                if endpoint is not None:
                    yield Address(member.proxy_id, advertised.name, endpoint, broker_id)


def _member(document: MemberDocument) -> Member:
    return Member(document.proxy_id, listeners=document.listeners, identities=document.identities)


def _offsets(answers: Answers, before_s: float, after_s: float) -> dict[ProxyId, float]:
    """How far a member's clock is outside of the time that its answer took."""
    found = {}
    for proxy_id, answer in answers.items():
        if isinstance(answer, OwnershipDocument):
            now_s = answer.now_ms / 1000
            found[proxy_id] = max(0.0, now_s - after_s) + min(0.0, now_s - before_s)
    return found


def _unverified() -> ssl.SSLContext:
    """To look at a certificate, whoever has issued it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _open(endpoint: Endpoint, way: _Way = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        endpoint.host,
        endpoint.port,
        ssl=way,
        server_hostname=endpoint.tls_name if way else None,
        happy_eyeballs_delay=ATTEMPT_DELAY_S,
    )


async def _table(endpoint: Endpoint, way: _Way) -> Table:
    """Raises: OSError, IncompleteReadError, WireError: it is not answered."""
    reader, writer = await _open(endpoint, way)
    try:
        writer.write(metadata_request(_CORRELATION_ID))
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        if not 0 < size <= _ANSWER_LIMIT_BYTES:
            raise OSError(f"an answer of {size} bytes to Metadata")
        return brokers_of(await reader.readexactly(size), _CORRELATION_ID)
    finally:
        writer.transport.abort()


async def _each(keys: Iterable[KeyT], ask: Callable[[KeyT], Awaitable[SeenT]]) -> dict[KeyT, SeenT]:
    """Ask for each, some at a time."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(key: KeyT) -> SeenT:
        async with turn:
            return await ask(key)

    all_keys = list(keys)
    return dict(zip(all_keys, await asyncio.gather(*map(one, all_keys)), strict=True))
