"""Where the demo looks for Kafka, and what it reports when there is no Kafka, Java or Maven."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from fleet.core.errors import DemoError
from fleet.drills.cluster import kafka_jars
from fleet.drills.cluster.kafka_jars import POM, cache_libs, check_java, fetch_libs, find_libs, kafka_version
from fleet.drills.demo.command import command

JAR = "kafka_2.13-4.3.1.jar"


def unpack(folder: Path) -> Path:
    """Make a folder with the jar that identifies Kafka."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / JAR).touch()
    return folder


@pytest.fixture
def no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with an empty cache, as an installed wheel has."""
    monkeypatch.setattr(kafka_jars, "CHECKOUT", tmp_path / "site-packages")
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_pom_is_well_formed_and_names_a_release() -> None:
    root = ElementTree.parse(POM).getroot()
    assert root.tag.endswith("}project")
    assert re.fullmatch(r"\d+\.\d+\.\d+", kafka_version())


def test_kafka_home_may_be_a_distribution_or_its_libs(tmp_path: Path, no_checkout: dict[str, str]) -> None:
    libs = unpack(tmp_path / "kafka_2.13-4.3.1" / "libs")
    assert find_libs(libs.parent, environ=no_checkout) == libs
    assert find_libs(libs, environ=no_checkout) == libs
    assert find_libs(environ={**no_checkout, "KAFKA_HOME": str(libs.parent)}) == libs


def test_user_without_a_home_folder_is_reported(
    no_checkout: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers run under user ids that have no entry in passwd."""

    def unknown(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(DemoError, match="set HOME or XDG_CACHE_HOME"):
        find_libs(environ={})


def test_kafka_is_searched_in_the_documented_order(
    tmp_path: Path, no_checkout: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build, cache = unpack(tmp_path / "build" / "libs"), cache_libs(no_checkout)
    monkeypatch.setattr(kafka_jars, "CHECKOUT", tmp_path)
    monkeypatch.setattr(kafka_jars, "CHECKOUT_LIBS", build)
    (tmp_path / "pyproject.toml").touch()
    unpack(cache)
    environ = {**no_checkout, "KAFKA_HOME": str(unpack(tmp_path / "variable"))}
    assert find_libs(unpack(tmp_path / "option"), environ=environ) == tmp_path / "option"
    assert find_libs(environ=environ) == build
    shutil.rmtree(build)
    assert find_libs(environ=environ) == tmp_path / "variable"
    assert find_libs(environ=no_checkout) == cache


def test_missing_kafka_error_names_places_and_fixes(no_checkout: dict[str, str]) -> None:
    with pytest.raises(DemoError) as caught:
        find_libs(environ=no_checkout)
    for part in (str(cache_libs(no_checkout)), "KAFKA_HOME", "fleet demo --fetch", "--kafka-home DIR"):
        assert part in str(caught.value)
    assert "make" not in str(caught.value)


@pytest.mark.parametrize("setting", ["--kafka-home", "KAFKA_HOME"])
def test_named_folder_without_kafka_is_an_error(
    tmp_path: Path, no_checkout: dict[str, str], setting: str
) -> None:
    unpack(cache_libs(no_checkout))
    by_option = setting.startswith("--")
    environ = no_checkout if by_option else {**no_checkout, "KAFKA_HOME": str(tmp_path)}
    with pytest.raises(DemoError, match=f"{setting} {tmp_path}: no kafka"):
        find_libs(tmp_path if by_option else None, environ=environ)


@pytest.mark.parametrize("value", ["", "relative"])
def test_cache_is_in_home_without_an_absolute_xdg_path(value: str) -> None:
    expected = Path.home() / ".cache" / "kafka-proxy-fleet" / f"kafka-{kafka_version()}" / "libs"
    assert cache_libs({"XDG_CACHE_HOME": value}) == cache_libs({}) == expected


def test_fetch_fills_an_empty_cache_once(
    no_checkout: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[str, ...]] = []

    def run_maven(command: tuple[str, ...], **_: object) -> None:
        commands.append(command)
        (target,) = (each for each in command if each.startswith("-DoutputDirectory="))
        unpack(Path(target.partition("=")[2]))

    monkeypatch.setattr(subprocess, "run", run_maven)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/mvn")
    for _ in range(2):
        assert find_libs(fetch=True, environ=no_checkout) == cache_libs(no_checkout)
        fetch_libs(cache_libs(no_checkout))
    assert len(commands) == 1
    assert commands[0][: len(kafka_jars.MAVEN)] == kafka_jars.MAVEN
    assert "broker" in commands[0]


def test_fetch_without_maven_names_the_fix(
    no_checkout: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DemoError, match=r"mvn is not on PATH; install Apache Maven, .*--kafka-home DIR"):
        find_libs(fetch=True, environ=no_checkout)


def test_fetch_reports_a_failure_of_maven(
    tmp_path: Path, no_checkout: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with pytest.raises(DemoError, match="Maven ended with code 3"):
        find_libs(fetch=True, environ=no_checkout)
    assert not kafka_jars.has_kafka(cache_libs(no_checkout))


def test_fetch_reports_a_maven_that_copied_no_kafka(
    tmp_path: Path, no_checkout: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with pytest.raises(DemoError, match=r"Maven copied no kafka_.*; check the mvn on PATH"):
        find_libs(fetch=True, environ=no_checkout)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "java is not on PATH"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "version 11, too old"),
        ("echo 'java version \"1.8.0_402\"' >&2", "version 8, too old"),
        ("echo broken >&2; exit 2", "ended with code 2: broken"),
    ],
)
def test_unusable_java_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, message: str
) -> None:
    if script is not None:
        (tmp_path / "java").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DemoError, match=rf"{message}.*; install Java 17 or newer"):
        check_java()


@pytest.mark.parametrize("version", ["17.0.15", "21", "26-ea"])
def test_recent_java_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    (tmp_path / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check_java()


@pytest.mark.parametrize("option", [("--fetch",), ("--kafka-home", ".")])
def test_options_for_kafka_exclude_a_running_cluster(option: tuple[str, ...]) -> None:
    done = CliRunner().invoke(command, ["--brokers", "127.0.0.1:9", *option])
    assert done.exit_code == 2
    assert "--brokers" in done.output
