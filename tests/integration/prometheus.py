"""A real Prometheus that scrapes fleets every two seconds, with the project's rules sped up."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.ports import free_ports
from tests.integration.clients import wait_for
from tools.bootstrap import BUILD, ROOT

RULES: Final = ("rules.yml", "alerts.yml")
HURRY: Final = 6
"""The factor by which the rules' durations are shorter: two minutes become twenty seconds."""
SCRAPE_S: Final = 2
"""The scrape time-out, too: a busy machine needs some of it."""
EVALUATE_S: Final = 1
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600}

Alert = tuple[str, str]
"""The name of an alert, and its subject: a broker, a member, a member's address, a file, or nothing."""


def in_a_hurry(text: str) -> str:
    """The rules with shorter `for` and `interval`. The ranges in expressions stay."""

    def shorter(match: re.Match[str]) -> str:
        ms = int(match[2]) * _UNIT_S[match[3]] * 1000 // HURRY
        return f"{match[1]}: {ms}ms"

    return re.sub(r"\b(for|interval): (\d+)([smh])\b", shorter, text)


class Prometheus:
    """A running Prometheus.

    Args:
        url: of its API.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series of an expression now."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{query}", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return [(each["metric"], float(each["value"][1])) for each in found["data"]["result"]]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=30):
                return True
        except OSError:
            return False

    def firing(self, job: str) -> set[Alert]:
        """The alerts about one fleet that fire now."""
        return _alerts(self.ask(f'ALERTS{{alertstate="firing", job="{job}"}}'))

    def fired(self, job: str, within_s: float) -> set[Alert]:
        """The alerts that have fired within the last seconds, even for one evaluation."""
        selector = f'ALERTS{{alertstate="firing", job="{job}"}}'
        return _alerts(self.ask(f"present_over_time({selector}[{max(1, round(within_s))}s])"))


def _alerts(found: list[tuple[dict[str, str], float]]) -> set[Alert]:
    about = ("broker_id", "proxy_id", "file", "instance")
    return {
        (labels["alertname"], next((labels[each] for each in about if each in labels), ""))
        for labels, _ in found
    }


def admin_address(fleet: LocalFleet, proxy_id: str) -> str:
    """The address at which a member is scraped: the value of `instance`."""
    return str(fleet.settings.member(proxy_id).admin)


@contextmanager
def prometheus(folder: Path, fleets: Mapping[str, LocalFleet]) -> Iterator[Prometheus]:
    """A Prometheus with a job for each fleet, by name. It has not evaluated any rule yet."""
    for name in RULES:
        (folder / name).write_text(in_a_hurry((ROOT / "deploy" / "prometheus" / name).read_text()))
    jobs = [
        {
            "job_name": job,
            "static_configs": [{"targets": [admin_address(fleet, each) for each in fleet.members]}],
        }
        for job, fleet in fleets.items()
    ]
    pace = {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{EVALUATE_S}s"}
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": pace, "rule_files": list(RULES), "scrape_configs": jobs}))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    log = folder / "prometheus.log"
    command = [
        str(BUILD / "prometheus" / "bin" / "prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            running = Prometheus(f"http://{address}")
            wait_for(running.is_ready, f"Prometheus; see {log}")
            yield running
        finally:
            process.kill()
