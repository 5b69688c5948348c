"""What `make` relies on: locks, the list of prerequisites, and steps that run once."""

from __future__ import annotations

import configparser
import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from fleet.config.settings import Timing
from fleet.drills.cluster import kafka_jars
from fleet.drills.cluster.kafka import archive_of, java
from fleet.drills.cluster.kafka_jars import CHECKOUT_LIBS
from tools import bootstrap

ROOT = Path(__file__).parents[2]
LOCKS = {name: ROOT / "requirements" / f"{name}.lock" for name in ("demo", "dev", "kafka-python")}
OWN_NAME = "kafka-proxy-fleet"
OF_THE_HANDBOOK = ("bash", "curl", "openssl")
"""The lines of the script that hold its commands."""


def locked(name: str) -> dict[str, Version]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", LOCKS[name].read_text(), re.MULTILINE)
    return {canonicalize_name(package): Version(version) for package, version in found}


def requirements_of(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        *project["dependencies"],
        *(each for extra in extras for each in project["optional-dependencies"][extra]),
    ]
    return [each for each in map(Requirement, lines) if each.name != OWN_NAME]


@pytest.mark.parametrize(("name", "extras"), [("demo", ("demo",)), ("dev", ("game-day", "demo", "dev"))])
def test_lock_satisfies_the_projects_requirements(name: str, extras: tuple[str, ...]) -> None:
    versions = locked(name)
    for requirement in [*requirements_of(*extras), Requirement("setuptools>=75")]:
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_hashes_and_names_no_index(name: str) -> None:
    text = LOCKS[name].read_text()
    assert "://" not in text
    assert not re.search(r"^-", text, re.MULTILINE)
    packages = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    # One may be there more than once, each time for other versions of Python.
    assert {canonicalize_name(package.partition("==")[0]) for package in packages} == locked(name).keys()
    assert all("--hash=sha256:" in package for package in packages)


def test_demo_installs_only_what_it_needs() -> None:
    demo, dev = locked("demo"), locked("dev")
    assert demo.items() <= dev.items()
    assert not demo.keys() & {"matplotlib", "pytest", "mypy", "kio", "hypothesis"}


def prerequisites(purpose: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "tools" / "prerequisites.sh", purpose],
        env={"PATH": str(path), "PYTHON": "python3"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def bare_machine(tmp_path: Path) -> Path:
    """A PATH that holds only the programs that a shell script needs."""
    for tool in ("sh", "sed"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    return tmp_path


def pretend(folder: Path, tool: str, says: str, code: int = 0) -> None:
    path = folder / tool
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\necho '{says}'\nexit {code}\n")
    path.chmod(0o755)


def test_missing_programs_are_listed_with_commands(bare_machine: Path) -> None:
    found = prerequisites("test", bare_machine)
    assert found.returncode == 1
    assert found.stdout == ""
    for what, package in (
        ("Python", "python3"),
        ("Java", "openjdk"),
        ("Maven", "maven"),
        ("Go", "golang-go"),
        ("Chromium", "chromium-driver"),
        ("libfaketime", "faketime"),
        ("kcat", "kcat"),
        *((each, each) for each in OF_THE_HANDBOOK),
    ):
        assert re.search(rf"^  {what}.* apt-get install .*{package}", found.stderr, re.MULTILINE)
    assert "Go" not in prerequisites("demo", bare_machine).stderr


@pytest.mark.parametrize(
    ("java", "go", "missing"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "go version go1.21.0 linux/amd64", []),
        ('openjdk version "25" 2025-09-16', "go version go1.26.8 linux/amd64", []),
        ('openjdk version "11.0.2"', "go version go1.26.8 linux/amd64", ["Java 17 or newer"]),
        (
            'java version "1.8.0_392"',
            "go version go1.19.8 linux/amd64",
            ["Java 17 or newer", "Go 1.21 or newer"],
        ),
        ("nonsense", "nonsense", ["Java 17 or newer", "Go 1.21 or newer"]),
    ],
)
def test_old_versions_are_missing(bare_machine: Path, java: str, go: str, missing: list[str]) -> None:
    pretend(bare_machine, "python3", "")
    pretend(bare_machine, "mvn", "")
    pretend(bare_machine, "java", java)
    pretend(bare_machine, "go", go)
    for tool in (*bootstrap.BROWSER, "faketime", "kcat", *OF_THE_HANDBOOK):
        pretend(bare_machine, tool, "")
    found = prerequisites("test", bare_machine)
    assert re.findall(r"^  (.*?)  ", found.stderr, re.MULTILINE) == missing
    assert found.returncode == bool(missing)


def test_old_python_is_missing(bare_machine: Path) -> None:
    pretend(bare_machine, "python3", "", code=1)
    assert "Python 3.11 or newer" in prerequisites("demo", bare_machine).stderr


def test_step_runs_once_for_its_inputs(tmp_path: Path) -> None:
    done: list[str] = []
    source, stamp = tmp_path / "in", tmp_path / "build" / "stamp"

    def step() -> None:
        done.append(source.read_text())

    for text in ("a", "a", "b", "b", "a"):
        source.write_text(text)
        bootstrap.once(stamp, "a step", (source, "v1"), step)
    assert done == ["a", "b", "a"]
    bootstrap.once(stamp, "a step", (source, "v2"), step)
    assert done == ["a", "b", "a", "a"]


def test_failed_step_runs_again(tmp_path: Path) -> None:
    def fail() -> None:
        raise subprocess.CalledProcessError(1, "x")

    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            bootstrap.once(tmp_path / "stamp", "a step", ("v1",), fail)


def maven_project(folder: Path, checksum: str | None) -> Path:
    """A pom with its parent in a repository of its own, instead of Maven Central.

    Args: checksum: what the repository says the parent has; None for the right one.
    """
    names = "<groupId>example</groupId><artifactId>parent</artifactId><version>1</version>"
    head = "<project><modelVersion>4.0.0</modelVersion>"
    parent = f"{head}{names}<packaging>pom</packaging></project>"
    artifact = folder / "repository" / "example" / "parent" / "1"
    artifact.mkdir(parents=True)
    (artifact / "parent-1.pom").write_text(parent)
    right = hashlib.sha1(parent.encode()).hexdigest()
    (artifact / "parent-1.pom.sha1").write_text(right if checksum is None else checksum)
    url = (folder / "repository").as_uri()
    project = folder / "pom.xml"
    project.write_text(
        f"{head}<parent>{names}<relativePath/></parent><artifactId>child</artifactId><packaging>pom</packaging>"
        f"<repositories><repository><id>central</id><url>{url}</url></repository></repositories></project>"
    )
    return project


@pytest.mark.parametrize(("checksum", "is_taken"), [(None, True), ("0" * 40, False)])
def test_maven_rejects_a_wrong_checksum(tmp_path: Path, checksum: str | None, is_taken: bool) -> None:
    project = maven_project(tmp_path, checksum)
    done = subprocess.run(
        [*kafka_jars.MAVEN, "-f", project, f"-Dmaven.repo.local={tmp_path / 'cache'}", "validate"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == is_taken, done.stdout + done.stderr
    if not is_taken:
        assert "Checksum validation failed" in done.stdout + done.stderr


def test_bootstrap_always_runs_maven_with_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []

    def record(command: tuple[str, ...], **_: object) -> None:
        commands.append(command)
        (tmp_path / "libs.new").mkdir(exist_ok=True)

    monkeypatch.setattr(subprocess, "run", record)
    kafka_jars.copy_jars("broker", tmp_path / "libs")
    assert [command[: len(kafka_jars.MAVEN)] for command in commands] == [kafka_jars.MAVEN]
    assert Path(kafka_jars.__file__).read_text().count('"mvn"') == 1
    assert '"mvn"' not in Path(bootstrap.__file__).read_text()


def test_output_of_steps_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    bootstrap.run("echo", "installed")
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "installed\n")
    with pytest.raises(subprocess.CalledProcessError):
        bootstrap.run("false")


def test_every_target_of_the_makefile_is_in_its_help() -> None:
    text = (ROOT / "Makefile").read_text()
    shown = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = set(re.findall(r"^([a-z]+):", text, re.MULTILINE))
    assert {"demo", "test", "lint", "unit", "integration", "chaos", "clean", "help", "lock"} <= targets
    assert all(f"make {target} " in shown for target in targets)


def test_java_uses_an_existing_class_archive(tmp_path: Path) -> None:
    libs, logging = tmp_path / "libs-1.2", tmp_path / "log4j2.properties"
    without = java(libs, logging, "kafka.Kafka")
    archive = tmp_path / "libs-1.2.jsa"
    archive.touch()
    assert set(java(libs, logging, "kafka.Kafka")) - set(without) == {f"-XX:SharedArchiveFile={archive}"}


def test_java_starts_with_the_tests_class_archive() -> None:
    """A virtual machine that cannot use the archive prints nothing, and starts slowly."""
    archive = f"-XX:SharedArchiveFile={archive_of(CHECKOUT_LIBS)}"
    strict = ["java", "-XX:+UseSerialGC", "-Xshare:on", archive, "-cp", f"{CHECKOUT_LIBS}/*"]
    done = subprocess.run(
        [*strict, "org.apache.kafka.tools.TopicCommand", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_service_allows_a_drain_and_has_few_rights() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(ROOT / "deploy" / "systemd" / "fleet@.service")
    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) > Timing().drain_timeout_s
    assert service["KillMode"] == "mixed"  # only the supervisor gets SIGTERM, and drains
    assert "ExecStop" not in service
    assert service["CapabilityBoundingSet"] == ""
    assert service["SystemCallFilter"] == "@system-service"
    assert {service[each] for each in ("NoNewPrivileges", "PrivateDevices", "RestrictNamespaces")} == {"yes"}


NODE_LOCKS = sorted(bootstrap.CLIENTS_SOURCE.glob("*/package-lock.json"))


@pytest.mark.parametrize("path", NODE_LOCKS, ids=lambda path: path.parent.name)
def test_node_lock_has_hashes_and_names_no_registry(path: Path) -> None:
    assert '"resolved"' not in path.read_text()
    packages = json.loads(path.read_text())["packages"]
    dependencies = json.loads(path.with_name("package.json").read_text())["dependencies"]
    assert packages.pop("")["dependencies"] == dependencies
    assert (
        dependencies.items()
        <= {name.removeprefix("node_modules/"): p["version"] for name, p in packages.items()}.items()
    )
    assert all(each["integrity"].startswith("sha512-") for each in packages.values())


def test_rskafka_lock_has_hashes_and_exact_versions() -> None:
    source = bootstrap.RSKAFKA_SOURCE
    lock = tomllib.loads((source / "Cargo.lock").read_text())["package"]
    locked = {each["name"]: each["version"] for each in lock}
    dependencies = tomllib.loads((source / "Cargo.toml").read_text())["dependencies"]
    assert {name: each["version"] for name, each in dependencies.items()} == {
        name: f"={locked[name]}" for name in dependencies
    }
    assert [each["name"] for each in lock if "checksum" not in each] == ["rskafka-client"]


def test_missing_cargo_fails_with_the_debian_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(bootstrap.MissingPrograms, match=r"apt-get install cargo$"):
        bootstrap.bring_rskafka()


def test_old_cargo_fails_with_the_version_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cargo = tmp_path / "cargo"
    cargo.write_text("#!/bin/sh\necho cargo 1.63.0\n")
    cargo.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(bootstrap.MissingPrograms, match=r"Rust 1\.85 or newer, this is 1\.63\.0"):
        bootstrap.bring_rskafka()


@pytest.mark.parametrize(
    ("present", "packages"), [((), "nodejs npm"), (("node",), "npm"), (("npm",), "nodejs")]
)
def test_missing_node_fails_with_the_debian_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, present: tuple[str, ...], packages: str
) -> None:
    for program in present:
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(bootstrap.MissingPrograms, match=f"apt-get install {packages}$"):
        bootstrap.bring_node_client("kafkajs")
