"""When certificates expire that no client sees: each member reports its own in its metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from fleet.admin import client
from fleet.cli.doctor.facts import CertificateExpiry
from fleet.core.errors import FleetError
from fleet.core.model import ProxyId
from fleet.tls.access import Access

_METRIC: Final = "fleet_certificate_expiry_timestamp_seconds"
_PRESENTED_FILES: Final = re.compile(r"(listener_tls\..+|admin\.tls)\.certificate")
"""Certificates that a TLS server presents, so that doctor sees them itself."""


async def reported_expiries(
    urls: Mapping[ProxyId, str], timeout_s: float, access: Access
) -> tuple[CertificateExpiry, ...]:
    """The expiries that the members report, named by the member and the configuration field of the file."""

    async def ask(session: aiohttp.ClientSession, proxy_id: ProxyId) -> tuple[CertificateExpiry, ...]:
        try:
            text = await client.fetch_metrics(session, urls[proxy_id], timeout_s)
            return parse_expiries(proxy_id, text)
        except (FleetError, ValueError) as error:
            return (CertificateExpiry(f"{proxy_id} files", None, str(error)),)

    async with access.session() as session:
        by_member = await asyncio.gather(*(ask(session, proxy_id) for proxy_id in urls))
    return tuple(each for expiries in by_member for each in expiries)


def parse_expiries(proxy_id: ProxyId, text: str) -> tuple[CertificateExpiry, ...]:
    """The expiries in the metrics of a member. Raises: ValueError: the text is no metrics."""
    lines = "".join(line for line in text.splitlines(keepends=True) if line.startswith(_METRIC))
    return tuple(
        CertificateExpiry(f"{proxy_id} {field}", datetime.fromtimestamp(sample.value, UTC))
        for family in text_string_to_metric_families(lines)
        for sample in family.samples
        if not _PRESENTED_FILES.fullmatch(field := sample.labels.get("file", ""))
    )
