"""The metrics that a member exports to Prometheus."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet

Samples = dict[str, list[tuple[dict[str, str], float]]]
"""The labels and the value of each sample, by the sample's name."""


def expiries(fleet: LocalFleet, proxy_id: ProxyId) -> dict[str, float]:
    """The expiry of each certificate that a member reports, by the field that names it."""
    samples = scrape(fleet, proxy_id).get("fleet_certificate_expiry_timestamp_seconds", [])
    return {labels["file"]: expires_s for labels, expires_s in samples}


def scrape(fleet: LocalFleet, proxy_id: ProxyId) -> Samples:
    status, body = fleet.get(proxy_id, "/metrics", limit_s=20)
    assert status == 200
    found: Samples = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found
