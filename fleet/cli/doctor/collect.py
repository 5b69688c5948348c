"""Collects facts about every member, every advertised address, and the brokers."""

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
from fleet.cli.doctor.certificate_expiry import reported_expiries
from fleet.cli.doctor.facts import Address, CertificateExpiry, Facts, MetadataAnswer
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

MAX_CONNECTIONS: Final = 64
"""At the same time. The number of addresses is members times brokers."""
_CORRELATION_ID: Final = 1
_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
_Tls = ssl.SSLContext | None
KeyT = TypeVar("KeyT")
FactT = TypeVar("FactT")


@dataclass(frozen=True, slots=True)
class Collector:
    """Collects facts about a fleet from this machine.

    Args:
        timeout_s: for each answer.
        report_step: receives each step, to show progress.
    """

    settings: Settings
    urls: Mapping[ProxyId, str]
    access: Access
    timeout_s: float
    report_step: Callable[[str], None]

    async def collect(self) -> Facts:
        """Collect all facts.

        Raises: AdminError: no member answers.
        """
        self.report_step("contacting the members")
        before_s = time.time()
        answers = await ask_all(self.urls, self.timeout_s, self.access)
        after_s = time.time()
        best = best_answer(answers)
        tls_by_address: dict[Address, _Tls] = {}
        unprobed: dict[Address, str] = {}
        for address in _addresses(best):
            try:
                tls_by_address[address] = self._tls(address)
            except OSError as error:
                unprobed[address] = f"cannot be probed: {error}"
        self.report_step(f"probing {len(tls_by_address)} addresses of members")
        addresses = await _for_each(tls_by_address, lambda each: self._probe(each, tls_by_address[each]))
        bootstraps = [each for each in tls_by_address if each.broker_id is None]
        self.report_step("requesting Metadata, and reading certificates")
        metadata = await _for_each(bootstraps, lambda each: self._metadata(each, tls_by_address[each]))
        presented = await _for_each(list(self._tls_servers(bootstraps)), self._certificate)
        answering = {
            each: self.urls[each] for each, answer in answers.items() if not isinstance(answer, FleetError)
        }
        reported = await reported_expiries(answering, self.timeout_s, self.access)
        self.report_step("connecting to the brokers")
        brokers = {(each.broker_id, Endpoint(each.host, each.port)) for each in best.brokers}
        return Facts(
            answers=answers,
            offsets_s=_offsets(answers, before_s, after_s),
            addresses={**addresses, **unprobed},
            metadata=tuple(metadata.values()),
            brokers=await _for_each(sorted(brokers), lambda broker: self._reach(broker[1])),
            certificates=(*presented.values(), *reported),
            now=datetime.fromtimestamp(after_s, UTC),
        )

    def _tls(self, address: Address) -> _Tls:
        """The TLS context for an address. Raises: OSError: a certificate file is not on this machine."""
        tls = self.settings.listener_tls.get(address.listener)
        return None if tls is None else probe_context(tls.for_member(address.proxy_id))

    async def _probe(self, address: Address, tls: _Tls) -> str | None:
        """Why no member answers at an address; None if one does."""
        try:
            targets = await resolve([Target(address.endpoint, tls)], Resolver(), self.timeout_s)
            outcome = await probe_member(targets, self.timeout_s)
        except LocalFailure as error:
            return f"cannot be probed from this machine: {error}"
        if outcome is ProbeOutcome.TIMED_OUT:
            return f"no answer within {self.timeout_s:g} s"
        return None if outcome is ProbeOutcome.ANSWERED else "no member answers"

    async def _metadata(self, address: Address, tls: _Tls) -> MetadataAnswer:
        try:
            async with asyncio.timeout(self.timeout_s):
                return MetadataAnswer(address, await _table(address.endpoint, tls))
        except TimeoutError:
            return MetadataAnswer(address, None, f"no answer to Metadata within {self.timeout_s:g} s")
        except asyncio.IncompleteReadError:
            return MetadataAnswer(address, None, "the listener requires SASL, and doctor has no credentials")
        except (OSError, WireError) as error:
            return MetadataAnswer(address, None, str(error))

    def _tls_servers(self, bootstraps: Iterable[Address]) -> Iterator[tuple[str, Endpoint, Address | None]]:
        """Names and endpoints of all TLS servers. The address is None for an admin address."""
        for address in bootstraps:
            if address.listener in self.settings.listener_tls:
                yield f"{address.proxy_id} {address.listener}", address.endpoint, address
        if self.settings.admin.tls is not None:
            for proxy_id, member in self.settings.members.items():
                yield f"{proxy_id} admin", member.admin, None

    async def _certificate(self, server: tuple[str, Endpoint, Address | None]) -> CertificateExpiry:
        owner, endpoint, address = server
        try:
            tls = _unverified_context() if address is None else self._tls(address)
            async with asyncio.timeout(self.timeout_s):
                _, writer = await _open(endpoint, tls)
            try:
                certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            finally:
                writer.transport.abort()
        except TimeoutError:
            return CertificateExpiry(owner, None, f"no answer within {self.timeout_s:g} s")
        except OSError as error:
            return CertificateExpiry(owner, None, str(error))
        return CertificateExpiry(owner, der_expiry(certificate))

    async def _reach(self, endpoint: Endpoint) -> str | None:
        """Why this machine cannot connect to a broker; None if it can."""
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
    """All addresses that clients may get: of each live member, to bootstrap and for each broker."""
    broker_ids = [each.broker_id for each in best.identities]
    for document in best.members:
        if document.liveness is not Liveness.UP:
            continue
        member = _member(document)
        for advertised in document.listeners:
            bootstrap = Endpoint(advertised.host, advertised.bootstrap_port)
            yield Address(member.proxy_id, advertised.name, bootstrap)
            for broker_id in broker_ids:
                endpoint = member.endpoint(advertised.name, broker_id)
                if endpoint is not None:
                    yield Address(member.proxy_id, advertised.name, endpoint, broker_id)


def _member(document: MemberDocument) -> Member:
    return Member(document.proxy_id, listeners=document.listeners, identities=document.identities)


def _offsets(answers: Answers, before_s: float, after_s: float) -> dict[ProxyId, float]:
    """How far the clock of each member is outside the interval of the request; 0 if it is inside."""
    offsets = {}
    for proxy_id, answer in answers.items():
        if isinstance(answer, OwnershipDocument):
            now_s = answer.now_ms / 1000
            offsets[proxy_id] = max(0.0, now_s - after_s) + min(0.0, now_s - before_s)
    return offsets


def _unverified_context() -> ssl.SSLContext:
    """A context that accepts every certificate, to read its expiry."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _open(endpoint: Endpoint, tls: _Tls = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        endpoint.host,
        endpoint.port,
        ssl=tls,
        server_hostname=endpoint.tls_name if tls else None,
        happy_eyeballs_delay=ATTEMPT_DELAY_S,
    )


async def _table(endpoint: Endpoint, tls: _Tls) -> Table:
    """The brokers in an answer to Metadata.

    Raises: OSError, IncompleteReadError, WireError: there is no valid answer
    """
    reader, writer = await _open(endpoint, tls)
    try:
        writer.write(metadata_request(_CORRELATION_ID))
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        if not 0 < size <= _MAX_ANSWER_BYTES:
            raise OSError(f"the answer to Metadata has an impossible size of {size} bytes")
        return brokers_of(await reader.readexactly(size), _CORRELATION_ID)
    finally:
        writer.transport.abort()


async def _for_each(keys: Iterable[KeyT], collect: Callable[[KeyT], Awaitable[FactT]]) -> dict[KeyT, FactT]:
    """Collect a fact for each key, at most ``MAX_CONNECTIONS`` at the same time."""
    limit = asyncio.Semaphore(MAX_CONNECTIONS)

    async def collect_one(key: KeyT) -> FactT:
        async with limit:
            return await collect(key)

    all_keys = list(keys)
    return dict(zip(all_keys, await asyncio.gather(*map(collect_one, all_keys)), strict=True))
