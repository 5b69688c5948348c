"""Runs every command of the pages as it is, with names, numbers and times replaced.

Lines of a page are run in its order, in one folder, against members that run: `fleet`, `curl` and what a
shell does are real, with real brokers. Programs that need other machines have stand-ins (`stand_in.py`) that
run what they are given. `make` and `python -m` are asked whether they take what they are given: what they do
takes from a minute to hours, and has tests of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from fleet import cli
from fleet.cli import pipeline
from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.ports import free_ports
from tests import pages
from tests.chaos.conftest import PATIENT_TIMING
from tests.chaos.programs import topics_of
from tests.integration.machines import Machines, opened, with_file
from tests.integration.test_weights import tell
from tests.pages import Line
from tests.shared_spark import commands_use
from tools.bootstrap import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.size("test-all"), pytest.mark.timeout(600)]

PIPELINE: Final = "docs/pipeline.md"
RUN_JOBS: Final = "fleet pipeline run --config fleet.yaml --out /var/lib/fleet/pipeline"
NOT_RUN: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        ("docs/configuration.md", "kafka-acls"): "tests/integration/test_upstream_auth.py runs both",
        (PIPELINE, f"{RUN_JOBS}            # until"): "does not end; the next line is the same with an end",
    }
)
"""Lines that are not run, by page and first words, with the reason."""

LAST: Final = ("docs/upgrades.md", "docs/restarting.md", "docs/game-day.md")
"""Pages whose lines break or restart members. They run after all others of the same fleet."""
OWN: Final = ("docs/configuration.md", "docs/three-machines.md")
"""Pages that begin with certificates, and therefore have their own fleet."""
WITH_COMMANDS: Final = [
    page for page in pages.PAGES if any(block.is_commands for block in pages.blocks(page))
]
SHARED: Final = [each for each in WITH_COMMANDS if each not in (*LAST, *OWN)] + list(LAST)
FIRST_READ: Final = "README.md"

NEWCOMER_COMMANDS: Final = pytest.mark.size("test")

NOW: Final = datetime.now(UTC)
RENAMED: Final[Sequence[tuple[str, str]]] = (
    (r"(?<= )(deploy/examples|/etc/fleet)/fleet\.yaml(?= |$)", "fleet.yaml"),
    (r"\bfleet-old\.yaml", "fleet.yaml"),
    (r"(?<=[ '])/(?=(etc|opt|var)/)", "{folder}/"),
    (r"\b(127\.0\.0\.1|10\.0\.0\.1):7201\b", "{admin}"),
    (r"\bkafka-1:9092\b", "{broker}"),
    (r"\bp4\b", "p3"),
    (r"\b2026-11-01(?=T)", f"{NOW - timedelta(days=1):%Y-%m-%d}"),
    (r"\b2026-11-01\b", f"{NOW - timedelta(days=8):%Y-%m-%d}"),
    (r"\b2026-12-01\b", f"{NOW + timedelta(days=1):%Y-%m-%d}"),
    (r"^(?=--scenario)", "fleet game-day --config fleet.yaml "),
    (r"…", "--inject-command 'ssh {{host}} true' --heal-command 'ssh {{host}} true'"),
    (r"^fleet rolling-restart\b", "fleet rolling-restart --only p2"),
    (
        r"^fleet pipeline run\b",
        "fleet pipeline run --job timeline --job load --job liveness --job connections",
    ),
    (
        r"^fleet game-day\b",
        "fleet game-day --settle 0.5 --duration 1 --takeover-timeout 15 --timeout 200",
    ),
)
"""Replacements of names, places, times and numbers: patterns, and the texts in their place.

Whole rolling restarts are in `tests/chaos`, all jobs of the pipeline in `tests/spark_crosscheck`.
"""
UNTIL_CTRL_C: Final[Mapping[str, str]] = MappingProxyType({"fleet top --config fleet.yaml": "generation"})
"""The commands without an end, and what they print when they are running."""
INTERRUPTED: Final = 130
ASKS: Final = re.compile(
    r"(fleet (status|top|plan|pin|unpin|doctor|game-day|rolling-restart|pipeline run)|curl|kcat|--scenario)\b"
)
"""Lines that find a whole fleet."""
SPARK: Final = re.compile(r"fleet (pipeline|report)\b")
NODE: Final = re.compile(r"fleet node --config \S+ --node (?P<proxy_id>\w+)\b")
RESET: Final = re.compile(r"(?:sudo -u fleet )?fleet journal reset .*--node (?P<proxy_id>\w+)")
MODULE: Final = re.compile(r"(?:\.venv/bin/)?python -m (?P<words>.*)")
OPTION: Final = re.compile(r"(?<!\S)--[a-z][\w-]*")


def exception(line: Line) -> tuple[str, str] | None:
    return next((each for each in NOT_RUN if each[0] == line.page and line.text.startswith(each[1])), None)


# ------------------------------------------------------------------------------------------------ the tables


@pytest.mark.size("test")  # a changed page fails here, before any of its commands run
def test_every_entry_of_the_tables_is_needed() -> None:
    lines = [line for page in pages.PAGES for line in pages.commands(page)]
    assert {exception(line) for line in lines} - {None} == set(NOT_RUN)
    assert {each.exception_key for page in pages.PAGES for each in pages.blocks(page)} - {None} == set(
        pages.NOT_COMMANDS
    )
    assert {each.text for each in lines} >= set(UNTIL_CTRL_C)
    assert {each.text.split()[0] for each in lines} - {"--scenario", "#!/bin/sh"} == pages.PROGRAMS
    for pattern, _ in RENAMED:
        assert any(re.search(pattern, each.text) for each in lines), pattern
    assert set(WITH_COMMANDS) >= {*LAST, *OWN}


@pytest.mark.parametrize(
    "text",
    [
        "    fleet status\n    journalctl --unit fleet@p1\n",
        "    journalctl --unit fleet@p1\n",
        "- item\n\n      scp fleet.yaml vm-a:\n",
        "```\nkafka-topics --list\n```\n",
        "```sh\nkafka-topics --list\n```\n",
        "    curl -H 'A: b' http://127.0.0.1\n    echo 'A: b'\n",
    ],
)
def test_unknown_line_is_found(text: str) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:\d: .*PROGRAMS"):
        list(pages.commands("page.md", text))


def test_lines_are_found_at_their_numbers() -> None:
    text = (
        "# A\n\n    make demo   # all\n\n- item\n\n      fleet top \\\n         --once\n      fleet status\n"
        "\n```\npip install .\n```\n"
    )
    assert [(each.number, " ".join(each.text.split())) for each in pages.commands("page.md", text)] == [
        (3, "make demo # all"),
        (7, "fleet top --once"),
        (9, "fleet status"),
        (12, "pip install ."),
    ]


# -------------------------------------------------------------------------------- make, and modules of Python


@cache
def help_of(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def module_takes(words: Sequence[str]) -> None:
    """Check a module, its command if it has any, and its options against its help; files must exist."""
    for word in words:
        assert not word.endswith(".py") or (ROOT / word).is_file(), f"no such file: {word}"
    options = {each.partition("=")[0] for each in words if each.startswith("--")}
    begun = next((at for at, each in enumerate(words) if each.startswith("--")), len(words))
    known = set(OPTION.findall(help_of(*words[:begun])))
    assert options <= known, f"python -m {shlex.join(words)}: unknown {options - known}"


def made(target: Sequence[str]) -> list[str]:
    """The last module that make would run for a target, and its arguments."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--dry-run", *target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**environment, "MFLAGS": ""},
    )
    assert done.returncode == 0, done.stderr
    return shlex.split(MODULE.findall(done.stdout)[-1])


def run_make(line: Line) -> None:
    words = shlex.split(line.text, comments=True)[1:]
    found = made(words)
    arguments = [each.removeprefix("ARGS=") for each in words if each.startswith("ARGS=")]
    if arguments:
        assert shlex.split(arguments[0]) == found[1:], f"{line}: ARGS are not passed on"
        module_takes(found)


# ------------------------------------------------------------------------------------------------- the runner


class Page:
    """Runs the lines of one page.

    Args:
        ready: called before a line that asks members.
        spark: what the jobs of the pipeline are run in; starting one for each line takes longer than they do.
    """

    def __init__(
        self,
        page: str,
        machines: Machines,
        monkeypatch: pytest.MonkeyPatch,
        ready: Callable[[], None] | None = None,
        spark: Callable[[], SparkSession] | None = None,
    ) -> None:
        self._page = page
        self._lines = tuple(pages.commands(page))
        self._machines = machines
        self._monkeypatch = monkeypatch
        self._ready = ready or machines.up
        self._spark = spark
        self._nodes: list[ProxyId] = []

    def run(self) -> None:
        for line in self._lines:
            if exception(line) is None:
                self.run_line(line)
        self._begin_nodes()

    def run_line(self, line: Line) -> None:
        text = self.here(line.text)
        if line.text.startswith("make "):
            run_make(line)
        elif (module := MODULE.fullmatch(line.text)) is not None:
            module_takes(shlex.split(module["words"], comments=True))
        elif (node := NODE.match(line.text)) is not None:
            # A page starts a member first, and prepares it later: the member begins on request.
            self._nodes.append(node["proxy_id"])
        elif line.text.startswith(pages.SCRIPT):
            self._run_script(line)
        else:
            if ASKS.match(line.text):
                self._begin_nodes()
                self._ready()
            if SPARK.match(line.text):
                self._run_spark(line, text)
            else:
                self._run_shell(line, text)

    def here(self, text: str) -> str:
        """Replace names, places and times of a line."""
        fleet = self._machines.fleet
        names = {
            "folder": str(self._machines.folder),
            "admin": str(fleet.settings.member("p1").admin),
            "broker": str(fleet.settings.bootstrap_servers[0]),
        }
        for pattern, instead in RENAMED:
            text = re.sub(pattern, instead.format(**names).replace("\\", r"\\"), text)
        return text

    def _run_shell(self, line: Line, text: str) -> None:
        if (reset := RESET.match(line.text)) is not None:
            self._machines.end(reset["proxy_id"])  # the page assumes that the member is dead
        code, answer = 0, None
        if line.text.startswith(pages.FRAGMENT):
            # Run up to the question: the commands after it are for machines that do not exist here.
            code, answer = INTERRUPTED, "n\n"
        elif "fleet game-day" in text and "--yes" not in text:
            code, answer = (INTERRUPTED, "n\n") if "…" in line.text else (0, "y\n")
        until = UNTIL_CTRL_C.get(line.text)
        ended, output = self._machines.run(text, answer=answer, until=until)
        assert ended == (code if until is None else INTERRUPTED), (
            f"{line}\n{text}\nended with {ended}: {output}"
        )

    def _run_script(self, line: Line) -> None:
        """Save a script under the name that the following lines use, and check its documented verbs."""
        (name,) = {found for each in self._lines for found in re.findall(r"'\./(\w+) ", each.text)}
        self._machines.script(name, line.text.partition("\n")[2])
        for verb in sorted(set(re.findall(rf"'\./{name} (\w+) ", "\n".join(map(str, self._lines))))):
            ended, output = self._machines.run(f"sh -e ./{name} {verb} p1")
            assert ended == 0, f"{line}\n{verb}: {output}"

    def _run_spark(self, line: Line, text: str) -> None:
        assert self._spark is not None, f"{line}: the page has no Spark"
        words, output = shlex.split(text, comments=True), list[str]()
        with commands_use(self._spark()), self._monkeypatch.context() as patched:
            patched.chdir(self._machines.folder)
            patched.setattr(pipeline, "print_progress", output.append)
            assert cli.run(words[1:]) == 0, f"{line}: {output}"

    def _begin_nodes(self) -> None:
        for proxy_id in self._nodes:
            self._machines.begin(proxy_id)
        self._nodes.clear()


# -------------------------------------------------------------------------------------------------- the pages


HOSTS: Final[Mapping[str, str]] = MappingProxyType(
    {"vm-a": "127.89.1.1", "vm-b": "127.89.2.2", "vm-c": "127.89.3.3"}
)
QUICK_TIMING: Final = MappingProxyType({**PATIENT_TIMING, "steady_after_s": 0.1, "rest_after_move_s": 0.2})
"""Members restart often here, and each must be steady for longer after each restart."""
IDENTITIES: Final = 16
"""The identities, each with a port after the bootstrap port."""
SECURED: Final = {
    "peer_tls": {},
    "admin": {
        "tls": {},
        "tokens": {"read": {"file": "secrets/read-token"}, "write": {"file": "secrets/write-token"}},
    },
}
COPIED: Final = ("requirements/node.lock", "deploy/systemd/fleet@.service", "kafka_proxy_fleet-any.whl")
"""The files that a machine has next to the folder of step 1; of the last one only its name."""


@pytest.fixture(scope="module")
def shared(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """For all pages without certificates: three members that write events."""
    folder = tmp_path_factory.mktemp("pages") / "shared"
    fleet = LocalFleet(folder, kafka.endpoints, timing=QUICK_TIMING, events={})
    with topics_of(kafka, "fleet."), opened(fleet, kafka) as machines:
        for name in ("values.yaml", "day.properties", "alerts.yml"):
            (folder / name).touch()
        machines.script("opt/fleet/upgrade", "exec systemctl restart fleet@$1")
        yield machines


def test_configuration_page_commands_run(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only member uses the certificates and tokens that the page has made."""
    fleet = LocalFleet(tmp_path / "pages", kafka.endpoints, timing=PATIENT_TIMING)
    with opened(with_file(fleet, lambda document: document.update(SECURED)), kafka) as machines:
        Page("docs/configuration.md", machines, monkeypatch, ready=lambda: None).run()


def test_commands_of_the_walk_through_run(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the file of the page. The first member runs with the program that the page installed."""
    fleet = LocalFleet(tmp_path / "pages", kafka.endpoints)
    with opened(with_file(fleet, partial(walked, kafka, fleet.data)), kafka) as machines:
        for name in COPIED:
            source, copy = ROOT / name, machines.folder / Path(name).name
            copy.write_bytes(source.read_bytes() if source.exists() else b"")
        machines.installed("p1", machines.folder / "etc" / "fleet" / "fleet.yaml")
        Page("docs/three-machines.md", machines, monkeypatch).run()


def walked(kafka: KafkaCluster, data: Path, document: dict[str, Any]) -> None:
    """The file of the page, with this machine's hosts, and ports that are free on all of them."""
    (text,) = (each.text for each in pages.blocks("docs/three-machines.md") if each.text.startswith("fleet:"))
    peer, admin, *clients = free_ports(2 + 1 + IDENTITIES, tuple(HOSTS.values()))
    ports = {"7101": peer, "7201": admin, "9092": clients[0], "9093": clients[1]}
    for name, here in (*HOSTS.items(), *ports.items()):
        assert name in text, name
        text = text.replace(name, str(here))
    document.clear()
    document.update(yaml.safe_load(text))
    document["bootstrap_servers"] = [str(each) for each in kafka.endpoints]
    document["timing"] = dict(QUICK_TIMING)
    for proxy_id, member in document["members"].items():
        member["data_dir"] = str(data / proxy_id)
        member["workers"] = 1
        (way_in,) = member["listeners"].values()
        way_in["bind"] = way_in["advertise"]


@pytest.mark.parametrize(
    "text",
    [
        "fleet doctor --config fleet.yml",
        "fleet status --config fleet.yaml --only p2",
        "curl -X POST http://127.0.0.1:7201/pin/2/p1",
        "fleet pin 99 p1 --config fleet.yaml",
        "pip install 'kafka-proxy-fleet[otel]'",
        "pip install '.[telemetry]'",
        "sudo systemctl start fleet@p9",
        "docker build --file deploy/Containerfile .",
        "fleet rolling-restart --restart-command 'ssh {host} systemctl rstart fleet@{proxy_id}'",
        "python -m benchmarks.takeover --deaths 20",
        "python -m benchmarks.takeovers --kills 20",
        ".venv/bin/python -m pytest tests/unit/test_no_such_file.py",
        "make benchmark",
        'make bench ARGS="--kills 3"',
        "--scenario leader-kill --inject-command 'shh {host} true'",
    ],
)
def test_wrong_line_fails(text: str, shared: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        Page("docs/index.md", shared, monkeypatch).run_line(Line("docs/index.md", 1, text))


@pytest.mark.parametrize(
    "page", [pytest.param(each, marks=NEWCOMER_COMMANDS) if each == FIRST_READ else each for each in SHARED]
)
def test_commands_of_each_page_run(
    page: str,
    shared: Machines,
    kafka: KafkaCluster,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if page == PIPELINE:  # the jobs report them after some minutes
        shared.up()
        tell(kafka, "fleet.", dict.fromkeys(kafka.brokers, 1.0))
    Page(page, shared, monkeypatch, spark=lambda: request.getfixturevalue("spark")).run()
