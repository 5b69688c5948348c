"""Finds Kafka's jars on this machine, and fetches them with Maven.

This module uses the standard library only: `tools/bootstrap.py` imports it before any package is installed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from fleet.core.errors import DemoError

POM = Path(__file__).with_name("pom.xml")
"""Names the artifacts, and their versions; a profile is one set of them."""
MAVEN = ("mvn", "--strict-checksums", "-q", "-B", "-ntp", "-Dstyle.color=never")
"""Without --strict-checksums Maven only warns of a file whose checksum differs from the repository's."""
CHECKOUT = Path(__file__).resolve().parents[3]
"""The root of the checkout that this module is in. In an installed wheel: site-packages."""
CHECKOUT_LIBS = CHECKOUT / "build" / "kafka" / "libs"
"""Where `make demo` and `make test` put the jars."""
JAR_PATTERN = "kafka_2.1?-*.jar"
"""Matches the jar of the broker, for each Scala version that Kafka has been built with."""
CACHE_NAME = "kafka-proxy-fleet"
OLDEST_JAVA = 17
"""Brokers of Kafka 4 need Java 17 (KIP-1013)."""
_JAVA_LIMIT_S = 30.0


def has_kafka(libs: Path) -> bool:
    """Whether a folder has the jar of the broker."""
    return any(libs.glob(JAR_PATTERN))


def kafka_version() -> str:
    """The release of Kafka that the pom names."""
    found = re.search(r"<kafka\.version>(.+)</kafka\.version>", POM.read_text())
    assert found is not None
    return found[1]


def cache_libs(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that `fetch_libs` fills for the user: one for each release of Kafka.

    Source: XDG Base Directory Specification: a relative XDG_CACHE_HOME is invalid and ignored.

    Raises: DemoError: XDG_CACHE_HOME is not set, and the user has no home folder.
    """
    cache = Path(environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        try:
            cache = Path.home() / ".cache"
        except RuntimeError as error:
            raise DemoError(
                "no folder for the cache: this user has no home folder; set HOME or XDG_CACHE_HOME, or name "
                "an unpacked Kafka: fleet demo --kafka-home DIR"
            ) from error
    return cache / CACHE_NAME / f"kafka-{kafka_version()}" / "libs"


def find_libs(
    kafka_home: Path | None = None, *, fetch: bool = False, environ: Mapping[str, str] = os.environ
) -> Path:
    """Find the folder of Kafka's jars.

    The first of these is used: `kafka_home`, the build folder of a checkout, the environment variable
    KAFKA_HOME, and the user's cache. A checkout has the release that it is tested with, whatever else the
    machine has.

    Args:
        kafka_home: an unpacked Kafka distribution, or a folder with its jars; None to search.
        fetch: whether to fill the cache if there is no Kafka yet.
    Raises:
        DemoError: there is no Kafka in the folder that the user named, or in any folder, or it cannot be
            fetched.
    """
    if kafka_home is not None:
        return _libs_in(kafka_home, "--kafka-home")
    is_checkout = (CHECKOUT / "pyproject.toml").exists()
    if is_checkout and has_kafka(CHECKOUT_LIBS):
        return CHECKOUT_LIBS
    if environ.get("KAFKA_HOME"):
        return _libs_in(Path(environ["KAFKA_HOME"]), "KAFKA_HOME")
    cache = cache_libs(environ)
    searched = (CHECKOUT_LIBS, cache) if is_checkout else (cache,)
    if has_kafka(cache):
        return cache
    if fetch:
        fetch_libs(cache)
        return cache
    raise DemoError(
        f"no Kafka found: --kafka-home and KAFKA_HOME are not set, and no {JAR_PATTERN} is in "
        f"{' or '.join(map(str, searched))}; fetch Kafka with Maven: fleet demo --fetch, or name an unpacked "
        "Kafka: fleet demo --kafka-home DIR"
    )


def _libs_in(home: Path, setting: str) -> Path:
    """The folder of jars in a folder that the user named. Raises: DemoError: it has no Kafka."""
    for libs in (home / "libs", home):
        if has_kafka(libs):
            return libs.resolve()
    without = "unset KAFKA_HOME" if setting == "KAFKA_HOME" else f"leave out {setting}"
    raise DemoError(
        f"{setting} {home}: no {JAR_PATTERN} in this folder or its libs folder; name an unpacked Kafka, or "
        f"{without} and fetch Kafka with Maven: fleet demo --fetch"
    )


def fetch_libs(libs: Path) -> None:
    """Fill a folder with the jars of a Kafka broker and its tools, once.

    Raises: DemoError: there is no Maven, Maven fails, or the folder cannot be written.
    """
    if shutil.which(MAVEN[0]) is None:
        raise DemoError(
            "--fetch: mvn is not on PATH; install Apache Maven, or name an unpacked Kafka: "
            "fleet demo --kafka-home DIR"
        )
    try:
        libs.parent.mkdir(parents=True, exist_ok=True)
        with libs.with_name("fetch.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not has_kafka(libs):
                print(f"fetching Kafka {kafka_version()} with Maven into {libs}", file=sys.stderr, flush=True)
                copy_jars("broker", libs)
            if not has_kafka(libs):
                raise DemoError(
                    f"--fetch: Maven copied no {JAR_PATTERN} into {libs}; check the mvn on PATH and its "
                    "settings, or name an unpacked Kafka: fleet demo --kafka-home DIR"
                )
    except subprocess.CalledProcessError as error:
        raise DemoError(
            f"--fetch: Maven ended with code {error.returncode}, its errors are above; check that Maven "
            "reaches its repositories, or name an unpacked Kafka: fleet demo --kafka-home DIR"
        ) from error
    except OSError as error:
        raise DemoError(
            f"--fetch: {error.filename or libs}: {error.strerror or error}; set XDG_CACHE_HOME to a folder "
            "that you can write"
        ) from error


def copy_jars(profile: str, libs: Path, *options: str) -> None:
    """Have Maven replace a folder by the jars that a profile of the pom depends on.

    Maven writes to a second folder first: an interrupted run leaves no incomplete one.

    Raises: CalledProcessError: Maven failed; its errors are on standard error.
    """
    fresh = libs.with_name(f"{libs.name}.new")
    libs.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={fresh}")
    command = (*MAVEN, "-f", str(POM), "-P", profile, *goal, *options)
    subprocess.run(command, cwd=libs.parent, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True)
    shutil.rmtree(libs, ignore_errors=True)
    fresh.rename(libs)


def check_java() -> None:
    """Check that Java can run Kafka. Raises: DemoError: Java is missing, broken or too old."""
    fix = f"install Java {OLDEST_JAVA} or newer (a JRE is enough), and put java on PATH"
    try:
        done = subprocess.run(
            ("java", "-version"), capture_output=True, text=True, timeout=_JAVA_LIMIT_S, check=False
        )
    except FileNotFoundError:
        raise DemoError(f"java is not on PATH, and Kafka needs it; {fix}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DemoError(f"java cannot be run: {error}; {fix}") from error
    printed = done.stdout + done.stderr
    if done.returncode != 0:
        raise DemoError(f"java -version ended with code {done.returncode}: {printed.strip()}; {fix}")
    major = _java_major(printed)
    if major is not None and major < OLDEST_JAVA:
        raise DemoError(f"java on PATH is version {major}, too old for Kafka; {fix}")


def _java_major(printed: str) -> int | None:
    """The version out of `java -version`: 8 for "1.8.0_402", 21 for "21.0.3"; None where it has none."""
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    return None if found is None else int(found[1])
