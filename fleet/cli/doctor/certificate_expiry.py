"""When certificates expire that nobody shows to a client, as the members say that have them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from fleet.admin import client
from fleet.cli.doctor.facts import ShownCertificate
from fleet.core.errors import FleetError
from fleet.core.model import ProxyId
from fleet.tls.access import Access

_METRIC: Final = "fleet_certificate_expiry_timestamp_seconds"
_SEEN: Final = re.compile(r"(listener_tls\..+|admin\.tls)\.certificate")
"""What doctor sees for itself, where it is shown."""


async def told(urls: Mapping[ProxyId, str], timeout_s: float, access: Access) -> tuple[ShownCertificate, ...]:
    """Of each member, by the field of the configuration that names the file."""

    async def ask(session: aiohttp.ClientSession, proxy_id: ProxyId) -> tuple[ShownCertificate, ...]:
        try:
            text = await client.fetch_metrics(session, urls[proxy_id], timeout_s)
            return read(proxy_id, text)
        except (FleetError, ValueError) as error:
            return (ShownCertificate(f"{proxy_id} files", None, str(error)),)

    async with access.session() as session:
        found = await asyncio.gather(*(ask(session, proxy_id) for proxy_id in urls))
    return tuple(each for shown in found for each in shown)


def read(proxy_id: ProxyId, text: str) -> tuple[ShownCertificate, ...]:
    """What a member's metrics say of its certificates. Raises: ValueError: they are no metrics."""
    lines = "".join(line for line in text.splitlines(keepends=True) if line.startswith(_METRIC))
    return tuple(
        ShownCertificate(f"{proxy_id} {field}", datetime.fromtimestamp(sample.value, UTC))
        for family in text_string_to_metric_families(lines)
        for sample in family.samples
        if not _SEEN.fullmatch(field := sample.labels.get("file", ""))
    )
