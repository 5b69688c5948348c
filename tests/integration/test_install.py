"""The wheel in its own environment: a member serves, the demo runs, and errors name missing extras."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from fleet import __version__
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.spawn import end, spawn, tail
from tests.conftest import IMPATIENT
from tests.integration.clients import LIMIT_S, produce, read_all, wait_for
from tools.bootstrap import ROOT

MakeTopic = Callable[..., str]
EXAMPLE = ROOT / "deploy" / "examples" / "fleet.yaml"
TRACED = "traced.yaml"
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
RECORDS = [b"%d" % number for number in range(100)]
INSTALL_LIMIT_S = 240.0
DEMO_LIMIT_S = 420.0
FLEET_RUNS = "fleet status --config "
"""The demo prints this before the path of its configuration, after the audit."""

pytestmark = [pytest.mark.size("test-all"), pytest.mark.timeout(900)]


def run(*command: str | Path, cwd: Path | None = None, limit_s: float = INSTALL_LIMIT_S) -> str:
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=limit_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """Build the wheel from the committed files only, so that no stray file gets in or is needed."""
    run("git", "archive", "--output", folder / "source.tar", "HEAD", cwd=ROOT)
    (folder / "source").mkdir()
    run("tar", "-xf", folder / "source.tar", "-C", folder / "source")
    run(
        sys.executable,
        *PIP,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        folder / "source",
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The folder of the commands in an environment without extras."""
    folder = wheel.parent / "venv"
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, *PIP, "install", "--require-hashes", "--requirement", ROOT / "requirements" / "node.lock")
    run(python, *PIP, "install", "--no-deps", wheel)
    return folder / "bin"


def test_wheel_is_pure_python_and_has_no_tests(wheel: Path) -> None:
    assert wheel.name == f"kafka_proxy_fleet-{__version__}-py3-none-any.whl"
    with ZipFile(wheel) as packed:
        names = packed.namelist()
    assert {name.partition("/")[0] for name in names} == {
        "fleet",
        f"kafka_proxy_fleet-{__version__}.dist-info",
    }
    assert {"fleet/py.typed", "fleet/pipeline/page.html", "fleet/drills/cluster/pom.xml"} <= set(names)


def test_wheel_has_every_package_that_it_declares(installed: Path) -> None:
    run(installed / "python", *PIP, "check")
    assert __version__ in run(installed / "fleet", "--version")
    assert "no mistakes" in run(
        installed / "fleet", "check", "--config", ROOT / "deploy" / "examples" / "fleet.yaml"
    )


def test_member_of_the_wheel_serves(
    installed: Path, kafka: KafkaCluster, tmp_path: Path, make_topic: MakeTopic
) -> None:
    alone, topic = LocalFleet(tmp_path / "fleet", kafka.endpoints, 1, timing=IMPATIENT), make_topic(1)
    command = [str(installed / "fleet"), "node", "--config", str(alone.config), "--node", "p1"]
    process = spawn(command, tmp_path / "log", cwd=tmp_path)
    try:
        wait_for(lambda: alone.is_ready("p1") or process.poll() is not None, "the member is ready")
        produce(alone.bootstrap(), topic, RECORDS)
        assert [each.value() for each in read_all(alone.bootstrap(), topic, len(RECORDS), 1)] == RECORDS
    finally:
        end([process], LIMIT_S)
        alone.remove_data()
    assert process.returncode == 0, tail(tmp_path / "log")


@pytest.fixture(scope="module")
def installed_demo(wheel: Path) -> Path:
    """The folder of the commands in an environment with the extra `demo`."""
    folder = wheel.parent / "venv-demo"
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, *PIP, "install", "--require-hashes", "--requirement", ROOT / "requirements" / "demo.lock")
    run(python, *PIP, "install", "--no-deps", wheel)
    return folder / "bin"


@pytest.fixture
def own_cache(tmp_path: Path) -> dict[str, str]:
    """An environment that names neither this checkout nor a Kafka, with an empty cache."""
    named = ("PYTHONPATH", "KAFKA_HOME")
    environ = {name: value for name, value in os.environ.items() if name not in named}
    return {**environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_demo_without_kafka_names_both_fixes(
    installed_demo: Path, own_cache: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [str(installed_demo / "fleet"), "demo"],
        cwd=tmp_path,
        env=own_cache,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 1, done.stderr
    for part in (own_cache["XDG_CACHE_HOME"], "KAFKA_HOME", "fleet demo --fetch", "--kafka-home DIR"):
        assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_and_game_day_pass_from_the_wheel(
    installed_demo: Path, own_cache: dict[str, str], tmp_path: Path
) -> None:
    """The demo keeps its fleet running after the audit. The game day then drains a member of this fleet."""
    empty, printed, progress = tmp_path / "empty", tmp_path / "demo.json", tmp_path / "demo.log"
    empty.mkdir()
    fleet = str(installed_demo / "fleet")
    small = (
        "--brokers-count",
        "1",
        "--rounds",
        "1",
        "--kill",
        "leader",
        "--data-dir",
        str(tmp_path / "data"),
    )
    with printed.open("w") as output, progress.open("w") as errors:
        demo = subprocess.Popen(
            [fleet, "demo", "--fetch", "--json", "--keep", *small],
            cwd=empty,
            env=own_cache,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )
    try:
        wait_for(
            lambda: FLEET_RUNS in progress.read_text() or demo.poll() is not None, "the audit", DEMO_LIMIT_S
        )
        assert demo.poll() is None, progress.read_text()
        document = json.loads(printed.read_text())
        assert document["acknowledged"] > 0
        assert (document["lost"], document["duplicated"], document["out_of_order"]) == (0, 0, 0)
        config = progress.read_text().partition(FLEET_RUNS)[2].split()[0]
        scenario = ("--scenario", "drain", "--duration", "3", "--yes", "--json")
        done = subprocess.run(
            [fleet, "game-day", "--config", config, *scenario],
            cwd=empty,
            env=own_cache,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEMO_LIMIT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["kept"] is True
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(LIMIT_S)
    assert demo.returncode == 130, progress.read_text()
    assert not any(empty.iterdir())


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("demo", ["demo"]),
        ("game-day", ["game-day", "--scenario", "watch", "--config", str(EXAMPLE), "--yes"]),
        ("otel", ["node", "--config", TRACED, "--node", "p1"]),
        ("pipeline", ["report", "--tables", ".", "--out", "report.html"]),
    ],
)
def test_missing_extra_is_named(installed: Path, tmp_path: Path, extra: str, command: list[str]) -> None:
    tracing = "\ntracing:\n  endpoint: http://127.0.0.1:4318\n"
    (tmp_path / TRACED).write_text(EXAMPLE.read_text() + tracing)
    done = subprocess.run(
        [str(installed / "fleet"), *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode != 0
    assert f"kafka-proxy-fleet[{extra}]" in done.stderr
    assert "Traceback" not in done.stderr
