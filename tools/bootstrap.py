"""Brings what the demo and the tests need beyond the machine's own Python, Java, Maven and Go.

    python3 tools/bootstrap.py demo      virtual environment, Kafka
    python3 tools/bootstrap.py test      the same, the development packages, Toxiproxy, Prometheus, Chromium,
                                         libfaketime

Everything but Chromium goes below `.venv` and `build`. A step that is done, for its present inputs, is not
done again. All output is on standard error: standard output belongs to the command that is run afterwards.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BUILD = ROOT / "build"
POM = ROOT / "deploy" / "kafka" / "pom.xml"
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"
PROMETHEUS = "github.com/prometheus/prometheus"
PROMETHEUS_VERSION = "v0.305.0"
PROMETHEUS_TOOLS = ("promtool", "prometheus")
FAKETIME = BUILD / "faketime" / "libfaketime.so.1"
FAKETIME_FOLDERS = ("lib/*/faketime", "lib/faketime", "lib64/faketime")
"""Where distributions put it, below /usr."""
BROWSER = ("chromium", "chromedriver")
BROWSER_PACKAGES = ("chromium", "chromium-driver")


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a command to its end, with its standard output turned to standard error.

    Raises: CalledProcessError: it failed
    """
    subprocess.run([str(part) for part in command], cwd=cwd, env=env, stdout=sys.stderr, check=True)


def fingerprint(*inputs: Path | str) -> str:
    """One value that changes when any of the files or texts does."""
    digest = hashlib.sha256()
    for each in inputs:
        data = each.read_bytes() if isinstance(each, Path) else each.encode()
        digest.update(hashlib.sha256(data).digest())
    return digest.hexdigest()


def once(stamp: Path, what: str, inputs: Sequence[Path | str], step: Callable[[], None]) -> None:
    """Do a step unless its stamp says that it was done with these inputs."""
    wanted = fingerprint(*inputs)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"bootstrap: {what}", file=sys.stderr, flush=True)
    step()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(wanted)


def make_venv(lock: Path) -> None:
    """The virtual environment with exactly the locked packages added, and the project in place."""
    python = VENV / "bin" / "python"
    version = sys.version

    def create() -> None:
        run(sys.executable, "-m", "venv", "--clear", VENV)

    def install() -> None:
        pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
        run(*pip, "--require-hashes", "--requirement", lock)
        run(*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT)

    once(VENV / "created", "making .venv", (version,), create)
    once(
        VENV / f"installed-{lock.stem}",
        f"installing the packages of {lock.relative_to(ROOT)}",
        (lock, ROOT / "pyproject.toml"),
        install,
    )


def bring_kafka() -> None:
    """Kafka's jars, and the client jar whose message definitions the wire tables are generated from."""

    def copy(profile: str, folder: str, *options: str) -> None:
        fresh = BUILD / "kafka" / f"{folder}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={fresh}")
        run("mvn", "-q", "-B", "-ntp", "-Dstyle.color=never", "-f", POM, "-P", profile, *goal, *options)
        shutil.rmtree(fresh.with_suffix(""), ignore_errors=True)
        fresh.rename(fresh.with_suffix(""))

    def both() -> None:
        copy("broker", "libs")
        copy("definitions", "definitions", "-DexcludeTransitive=true")

    once(BUILD / "kafka" / "brought", "bringing Apache Kafka's jars", (POM,), both)


def build_toxiproxy() -> None:
    """Toxiproxy's server, as `build/bin/toxiproxy-server`."""

    def build() -> None:
        go_install(TOXIPROXY)
        (BUILD / "bin" / "server").rename(BUILD / "bin" / "toxiproxy-server")

    once(BUILD / "bin" / "toxiproxy-built", "building Toxiproxy's server", (TOXIPROXY,), build)


def bring_prometheus() -> None:
    """promtool and Prometheus below `build/prometheus/bin`: Debian's, or built where there is no apt."""
    folder = BUILD / "prometheus"

    def bring() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "bin").mkdir(parents=True)
        try:
            unpack_debian_package("prometheus", folder / "debian")
            for tool in PROMETHEUS_TOOLS:
                (folder / "bin" / tool).symlink_to(Path("..", "debian", "usr", "bin", tool))
        except (OSError, subprocess.CalledProcessError):
            print("bootstrap: building Prometheus, for want of a Debian package", file=sys.stderr, flush=True)
            build_prometheus(folder / "source", folder / "bin")

    once(folder / "brought", "bringing Prometheus", (PROMETHEUS, PROMETHEUS_VERSION), bring)


def bring_faketime() -> None:
    """libfaketime, which gives one process a wall clock of its own; the machine's where there is no apt."""

    def bring() -> None:
        shutil.rmtree(FAKETIME.parent, ignore_errors=True)
        FAKETIME.parent.mkdir(parents=True)
        unpacked = FAKETIME.parent / "debian"
        try:
            unpack_debian_package("libfaketime", unpacked)
        except (OSError, subprocess.CalledProcessError):
            print("bootstrap: looking for this machine's libfaketime", file=sys.stderr, flush=True)
        tops = (unpacked / "usr", Path("/usr"), Path("/usr/local"))
        found = [
            file
            for top in tops
            for folder in FAKETIME_FOLDERS
            for file in top.glob(f"{folder}/{FAKETIME.name}")
        ]
        if not found:
            sys.exit(f"bootstrap: no {FAKETIME.name} in {', '.join(map(str, tops))}")
        shutil.copy(found[0], FAKETIME)

    once(FAKETIME.with_name("brought"), "bringing libfaketime", (FAKETIME.name,), bring)


def bring_browser() -> None:
    """Debian's Chromium and its driver, where they are not there: the one thing that is installed for all."""
    if all(map(shutil.which, BROWSER)):
        return
    print("bootstrap: installing Chromium", file=sys.stderr, flush=True)
    install = ("apt-get", "-q", "-y", "install", "--no-install-recommends", *BROWSER_PACKAGES)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(*install, env=environment)
    except subprocess.CalledProcessError:
        run("apt-get", "-q", "update")  # the lists may be too old
        run(*install, env=environment)


def build_prometheus(source: Path, target: Path) -> None:
    """Build it in a module of our own: `go install …@version` refuses Prometheus's `exclude` lines."""
    source.mkdir(parents=True)
    environment = {**os.environ, "GOBIN": str(target), "GOFLAGS": ""}
    run("go", "mod", "init", "prometheus-tools", cwd=source, env=environment)
    tools = [f"{PROMETHEUS}/cmd/{tool}" for tool in PROMETHEUS_TOOLS]
    run("go", "get", *(f"{tool}@{PROMETHEUS_VERSION}" for tool in tools), cwd=source, env=environment)
    run("go", "install", *tools, cwd=source, env=environment)


def go_install(module: str, folder: Path = BUILD / "bin") -> None:
    """Build a command of a pinned Go module into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    run("go", "install", module, env={**os.environ, "GOBIN": str(folder), "GOFLAGS": ""})


def unpack_debian_package(name: str, folder: Path) -> None:
    """Download a package and unpack it, without installing it and without being root.

    Raises: OSError, CalledProcessError: there is no apt here, or it has no such package
    """
    folder.mkdir(parents=True)
    try:
        run("apt-get", "-q", "download", name, cwd=folder)
    except subprocess.CalledProcessError:
        # The machine's package lists are missing or too old; ours need no privileges.
        apt = BUILD / "apt"
        for each in ("lists/partial", "cache/archives/partial"):
            (apt / each).mkdir(parents=True, exist_ok=True)
        ours = ("-o", f"Dir::State::lists={apt / 'lists'}", "-o", f"Dir::Cache={apt / 'cache'}")
        unprivileged = ("-o", "APT::Sandbox::User=", "-o", "Debug::NoLocking=1")
        run("apt-get", "-q", *ours, *unprivileged, "update")
        run("apt-get", "-q", *ours, *unprivileged, "download", name, cwd=folder)
    (package,) = folder.glob("*.deb")
    run("dpkg-deb", "-x", package, folder)
    package.unlink()


def make_locks() -> None:
    """Resolve pyproject.toml anew into requirements/*.lock, with hashes and without naming any index."""
    venv, folder = BUILD / "lock", ROOT / "requirements"
    if not (venv / "bin" / "uv").exists():
        run(sys.executable, "-m", "venv", "--clear", venv)
        pip = (venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
        run(*pip, "--requirement", folder / "lock.in")
    compile_ = (venv / "bin" / "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11")
    anonymous = ("--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--upgrade")
    header = ("--custom-compile-command", "make lock")
    inputs = ("pyproject.toml", "requirements/build.in")
    # The development packages first: what both need is then the same in both.
    dev, demo = "requirements/dev.lock", "requirements/demo.lock"
    run(*compile_, *anonymous, *header, "--extra", "dev", *inputs, "-o", dev)
    run(*compile_, *anonymous, *header, "--extra", "demo", *inputs, "-c", dev, "-o", demo)


@contextmanager
def alone() -> Iterator[None]:
    """Keep a second bootstrap of this work tree waiting until the first is through."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "bootstrap.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str]) -> int:
    """Bring what one purpose needs. Returns: the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("purpose", choices=("demo", "test", "lock"))
    purpose = parser.parse_args(arguments).purpose
    try:
        with alone():
            if purpose == "lock":
                make_locks()
                return 0
            make_venv(ROOT / "requirements" / ("demo.lock" if purpose == "demo" else "dev.lock"))
            bring_kafka()
            if purpose == "test":
                build_toxiproxy()
                bring_prometheus()
                bring_faketime()
                bring_browser()
    except subprocess.CalledProcessError as error:
        print(f"bootstrap: failed ({error.returncode}): {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
