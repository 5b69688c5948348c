"""Installs what the demo and the tests need beyond the machine's own Python, Java, Maven and Go.

    python3 -m tools.bootstrap demo      virtual environment, Kafka
    python3 -m tools.bootstrap test      the same, the development packages, older Kafkas, Kafka Streams and
                                         Connect, kcat, clients in Go, Toxiproxy, Prometheus, Chromium,
                                         libfaketime
    python3 -m tools.bootstrap long      all of that; Helm, kubectl-validate, compose-go and kube-apiserver,
                                         minutes to build; etcd

Everything but Chromium goes below `.venv` and `build`. A finished step does not run again with the same
inputs. All output is on standard error: standard output belongs to the command that runs afterwards.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fleet.drills.cluster.kafka_jars import POM, copy_jars

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BUILD = ROOT / "build"
OLDER_KAFKAS = ("3.9.2", "4.0.2")
"""Releases that the tests run in addition to the newest one, which the pom names."""
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"
PROMETHEUS = "github.com/prometheus/prometheus"
PROMETHEUS_VERSION = "v0.305.0"
PROMETHEUS_TOOLS = ("promtool", "prometheus")
FAKETIME = BUILD / "faketime" / "libfaketime.so.1"
FAKETIME_FOLDERS = ("lib/*/faketime", "lib/faketime", "lib64/faketime")
"""The folders below /usr in which distributions put libfaketime."""
KAFKA_CLIENTS = BUILD / "kafka" / "clients"
KCAT = BUILD / "kcat" / "kcat"
CLIENTS_SOURCE = ROOT / "tests" / "clients"
GO_COMMON_SOURCE = CLIENTS_SOURCE / "common"
FRANZ_GO = BUILD / "bin" / "franz-go-client"
FRANZ_GO_SOURCE = CLIENTS_SOURCE / "franz"
KAFKA_GO = BUILD / "bin" / "kafka-go-client"
KAFKA_GO_SOURCE = CLIENTS_SOURCE / "kafka_go"
SARAMA = BUILD / "bin" / "sarama-client"
SARAMA_SOURCE = CLIENTS_SOURCE / "sarama"
NODE_CLIENTS = BUILD / "node"
NODE_SHARED = CLIENTS_SOURCE / "node" / "program.js"
NODE_PACKAGES = {"node": "nodejs", "npm": "npm"}
"""Program → the Debian package that has it."""
NODE_MAJOR = 20
RSKAFKA = BUILD / "rskafka" / "debug" / "rskafka-client"
RSKAFKA_SOURCE = CLIENTS_SOURCE / "rskafka"
OLDEST_RUST = (1, 85)
"""The oldest Rust that rskafka's own manifest allows."""
KAFKA_PYTHON = BUILD / "kafka-python"
KAFKA_PYTHON_LOCK = ROOT / "requirements" / "kafka-python.lock"
HELM_MODULE = "helm.sh/helm/v3/cmd/helm@v3.22.0"
HELM = BUILD / "bin" / "helm"
KUBECTL_VALIDATE_MODULE = "sigs.k8s.io/kubectl-validate@v0.0.4"
KUBECTL_VALIDATE = BUILD / "bin" / "kubectl-validate"
COMPOSE_CHECK = BUILD / "bin" / "compose-check"
COMPOSE_CHECK_SOURCE = ROOT / "tests" / "clients" / "compose"
KUBE_APISERVER = BUILD / "bin" / "kube-apiserver"
KUBE_APISERVER_SOURCE = ROOT / "tests" / "clients" / "apiserver"
ETCD = BUILD / "etcd" / "etcd"
BROWSER = ("chromium", "chromedriver")
BROWSER_PACKAGES = ("chromium", "chromium-driver")
APT = BUILD / "apt"
OWN_APT_LISTS = ("-o", f"Dir::State::lists={APT / 'lists'}", "-o", f"Dir::Cache={APT / 'cache'}")
UNPRIVILEGED = ("-o", "APT::Sandbox::User=", "-o", "Debug::NoLocking=1")


class MissingPrograms(Exception):
    """Programs that this machine lacks, with the command that installs them."""


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a command to its end, with its standard output turned to standard error.

    Raises: CalledProcessError: the command failed
    """
    subprocess.run([str(part) for part in command], cwd=cwd, env=env, stdout=sys.stderr, check=True)


def fingerprint(*inputs: Path | str) -> str:
    """One value that changes when any of the files or texts changes."""
    digest = hashlib.sha256()
    for each in inputs:
        data = each.read_bytes() if isinstance(each, Path) else each.encode()
        digest.update(hashlib.sha256(data).digest())
    return digest.hexdigest()


def once(stamp: Path, what: str, inputs: Sequence[Path | str], step: Callable[[], None]) -> None:
    """Run a step unless its stamp shows that the step was done with these inputs."""
    current = fingerprint(*inputs)
    if stamp.exists() and stamp.read_text() == current:
        return
    print(f"bootstrap: {what}", file=sys.stderr, flush=True)
    step()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(current)


def make_venv(lock: Path) -> None:
    """Make the virtual environment with exactly the locked packages, and the project installed in place."""
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
    """Fetch Kafka's jars, and the client jar with the message definitions for the wire tables."""

    def both() -> None:
        copy_jars("broker", BUILD / "kafka" / "libs")
        copy_jars("definitions", BUILD / "kafka" / "definitions", "-DexcludeTransitive=true")

    once(BUILD / "kafka" / "brought", "bringing Apache Kafka's jars", (POM,), both)


def archive_classes() -> None:
    """Archive Kafka's classes as a virtual machine has them in memory: brokers start in half the time."""
    archive = BUILD / "kafka" / "libs.jsa"
    script, java = ROOT / "tools" / "class_archive.py", output_of("java", "--version")
    once(
        archive.with_name("archived"),
        "running Kafka once, to archive its classes",
        (POM, script, java),
        partial(run, VENV / "bin" / "python", script),
    )


def older_kafka(version: str) -> Path:
    """The folder of an older release's jars."""
    return BUILD / "kafka" / f"libs-{version}"


def bring_older_kafkas() -> None:
    """Fetch the jars of older releases; all log in the same way as the newest."""
    other_logging = "-DexcludeArtifactIds=slf4j-reload4j"
    for version in OLDER_KAFKAS:
        folder = older_kafka(version)
        once(
            folder.with_name(f"brought-{version}"),
            f"bringing Apache Kafka {version}",
            (POM, version),
            partial(copy_jars, "broker", folder, f"-Dkafka.version={version}", other_logging),
        )


def bring_kafka_clients() -> None:
    """Fetch Kafka Streams with its examples, and Kafka Connect with its connectors for files."""

    def copy() -> None:
        copy_jars("clients", KAFKA_CLIENTS)

    stamp = KAFKA_CLIENTS.with_name("clients-brought")
    once(stamp, "bringing Kafka Streams and Connect", (POM,), copy)


def bring_program(target: Path, package: str) -> None:
    """Provide a program in a folder of its own: the machine's, or a Debian package's."""

    def bring() -> None:
        installed = shutil.which(target.name)
        if installed is None:
            unpack_debian_program(package, f"usr/bin/{target.name}", target.parent)
        else:
            shutil.rmtree(target.parent, ignore_errors=True)
            target.parent.mkdir(parents=True)
            target.symlink_to(installed)

    once(target.with_name("brought"), f"bringing {target.name}", (package,), bring)


def build_go_clients() -> None:
    """Build the tests' programs that use client libraries in Go."""
    common = sorted(GO_COMMON_SOURCE.glob("*.go"))
    build_own(FRANZ_GO, FRANZ_GO_SOURCE, "building a client of franz-go", shared=common)
    build_own(KAFKA_GO, KAFKA_GO_SOURCE, "building a client of kafka-go", shared=common)
    build_own(SARAMA, SARAMA_SOURCE, "building a client of sarama", shared=common)


def bring_node_client(name: str) -> Path:
    """Install the tests' program that uses a Node library, and the library of its lock file.

    Tests of `make test-all` call this when they first need it: `make test` needs no Node.

    Args:    name: its folder in tests/clients, and below `NODE_CLIENTS`
    Returns: the file that node runs
    Raises:  MissingPrograms: there is no node or npm on this machine, or it is too old
    """
    source, target = CLIENTS_SOURCE / name, NODE_CLIENTS / name
    sources = [
        source / "package.json",
        source / "package-lock.json",
        *sorted(source.glob("*.js")),
        NODE_SHARED,
    ]
    missing = [program for program in NODE_PACKAGES if shutil.which(program) is None]
    if missing:
        packages = " ".join(NODE_PACKAGES[each] for each in missing)
        raise MissingPrograms(f"the tests of {name} need {' and '.join(missing)}: apt-get install {packages}")
    version = output_of("node", "--version").strip()
    if int(version.removeprefix("v").partition(".")[0]) < NODE_MAJOR:
        raise MissingPrograms(
            f"the tests of {name} need Node {NODE_MAJOR} or newer, this is {version}: apt-get install nodejs"
            " (Debian 13 or newer)"
        )

    def bring() -> None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for each in sources:
            shutil.copy(each, target)
        run("npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", cwd=target)

    with exclusive_lock(f"node-{name}"):
        stamp = NODE_CLIENTS / f"{name}-brought"
        once(stamp, f"bringing {name}", [version, *sources], bring)
    return target / "main.js"


def bring_rskafka() -> Path:
    """Build the tests' program that uses rskafka, with the crates of its lock file: a minute or more.

    Tests of `make test-all` call this when they first need it: `make test` needs no Rust.

    Returns: the program
    Raises:  MissingPrograms: there is no cargo on this machine, or it is too old
    """
    if shutil.which("cargo") is None:
        raise MissingPrograms("the tests of rskafka need cargo: apt-get install cargo")
    version = output_of("cargo", "--version").split()[1]
    if tuple(map(int, version.split(".")[:2])) < OLDEST_RUST:
        raise MissingPrograms(
            f"the tests of rskafka need Rust {'.'.join(map(str, OLDEST_RUST))} or newer, this is {version}:"
            " apt-get install cargo (Debian 13 or newer)"
        )
    folder = RSKAFKA.parent.parent
    sources = [RSKAFKA_SOURCE / "Cargo.toml", RSKAFKA_SOURCE / "Cargo.lock"]
    sources += sorted((RSKAFKA_SOURCE / "src").glob("*.rs"))

    def build() -> None:
        run("cargo", "build", "--locked", "--target-dir", folder, cwd=RSKAFKA_SOURCE)

    with exclusive_lock("rskafka"):
        what = "fetching crates and building a client of rskafka, minutes on a busy machine"
        once(folder / "built", what, [version, *sources], build)
    return RSKAFKA


def bring_kafka_python() -> Path:
    """Install kafka-python in a virtual environment of its own. Returns: its Python."""
    lock, python = KAFKA_PYTHON_LOCK, KAFKA_PYTHON / "bin" / "python"

    def bring() -> None:
        run(sys.executable, "-m", "venv", "--clear", KAFKA_PYTHON)
        pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
        run(*pip, "--require-hashes", "--requirement", lock)

    with exclusive_lock("kafka-python"):
        once(KAFKA_PYTHON / "brought", "bringing kafka-python", (sys.version, lock), bring)
    return python


def build_own(
    target: Path, source: Path, what: str, options: Sequence[str] = (), shared: Sequence[Path] = ()
) -> None:
    """Build a Go program of the tests.

    Args: shared: the sources that it is built from besides its own folder.
    """
    sources = [source / "go.mod", source / "go.sum", *sorted(source.glob("*.go")), *shared]

    def build() -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        build_it = ("go", "build", "-buildvcs=false", *options)
        # The program may require a newer Go than the rest; Go downloads that version as a module.
        environment = {**os.environ, "GOFLAGS": "", "GOTOOLCHAIN": "auto"}
        run(*build_it, "-o", target, ".", cwd=source, env=environment)

    once(target.with_name(f"{source.name}-built"), what, [*sources, *options], build)


def build_deployment_tools() -> None:
    """Build the programs that read the Helm chart and the compose file."""
    for target, module in ((HELM, HELM_MODULE), (KUBECTL_VALIDATE, KUBECTL_VALIDATE_MODULE)):
        stamp = target.with_name(f"{target.name}-built")
        once(stamp, f"building {target.name}, minutes", (module,), partial(go_install, module))
    build_own(COMPOSE_CHECK, COMPOSE_CHECK_SOURCE, "building compose-check, which reads compose files")
    build_kube_apiserver()


def build_kube_apiserver() -> None:
    """Build kube-apiserver so that it reports its module's version: charts query the version."""
    source = KUBE_APISERVER_SOURCE
    version = module_version(source / "go.mod", "k8s.io/kubernetes")
    version_flag = f"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion={version}"
    build_own(KUBE_APISERVER, source, "building kube-apiserver, minutes", (version_flag,))


def module_version(file: Path, module: str) -> str:
    """The version of a module that a go.mod requires."""
    words = [line.split() for line in file.read_text().splitlines()]
    return next(line[1] for line in words if line[:1] == [module])


def build_toxiproxy() -> None:
    """Build Toxiproxy's server, as `build/bin/toxiproxy-server`."""

    def build() -> None:
        go_install(TOXIPROXY)
        (BUILD / "bin" / "server").rename(BUILD / "bin" / "toxiproxy-server")

    once(BUILD / "bin" / "toxiproxy-built", "building Toxiproxy's server", (TOXIPROXY,), build)


def bring_prometheus() -> None:
    """Provide promtool and Prometheus below `build/prometheus/bin`: Debian's, or built if there is no apt."""
    folder = BUILD / "prometheus"

    def bring() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "bin").mkdir(parents=True)
        try:
            unpack_debian_package("prometheus", folder / "debian")
            for tool in PROMETHEUS_TOOLS:
                (folder / "bin" / tool).symlink_to(Path("..", "debian", "usr", "bin", tool))
        except (OSError, subprocess.CalledProcessError):
            print("bootstrap: no Debian package, building Prometheus", file=sys.stderr, flush=True)
            build_prometheus(folder / "source", folder / "bin")

    once(folder / "brought", "bringing Prometheus", (PROMETHEUS, PROMETHEUS_VERSION), bring)


def bring_faketime() -> None:
    """Provide libfaketime, which gives a process its own wall clock; the machine's if there is no apt."""

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
    """Install Debian's Chromium and its driver if they are missing; only they are installed system-wide."""
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
    """Build Prometheus in a module of our own: `go install …@version` refuses its `exclude` lines."""
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

    Raises: OSError, CalledProcessError: the machine has no apt, or apt has no such package
    """
    folder.mkdir(parents=True)
    try:
        run("apt-get", "-q", "download", name, cwd=folder)
    except subprocess.CalledProcessError:
        # The machine's package lists are missing or too old; lists of our own need no privileges.
        for each in ("lists/partial", "cache/archives/partial"):
            (APT / each).mkdir(parents=True, exist_ok=True)
        run("apt-get", "-q", *OWN_APT_LISTS, *UNPRIVILEGED, "update")
        run("apt-get", "-q", *OWN_APT_LISTS, *UNPRIVILEGED, "download", name, cwd=folder)
    (package,) = folder.glob("*.deb")
    run("dpkg-deb", "-x", package, folder)
    package.unlink()


def unpack_debian_program(package: str, program: str, folder: Path) -> Path:
    """Unpack a program of a Debian package, with the libraries that the package and the machine lack.

    Args:    program: its path in the package
             folder: the target; its old content is removed
    Returns: the launcher, with the program's name, in the folder
    Raises:  OSError, CalledProcessError: the machine has no apt, or apt has no such package
    """
    shutil.rmtree(folder, ignore_errors=True)
    unpack_debian_package(package, folder / "debian")
    binary, libraries = folder / "debian" / program, folder / "libraries"
    absent = iter(absent_dependencies(package))
    while missing := missing_libraries(binary, folder):
        more = next(absent, None)
        if more is None:
            raise OSError(f"without {', '.join(missing)}")
        unpack_debian_package(more, libraries / more)
    launcher = folder / binary.name
    found = shlex.quote(library_path(folder))
    launcher.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={found} exec {shlex.quote(str(binary))} "$@"\n')
    launcher.chmod(0o755)
    return launcher


def absent_dependencies(package: str) -> Iterator[str]:
    """The libraries that a Debian package needs, directly or not, and that are not installed."""
    only_depends = [f"--no-{each}" for each in ("recommends", "suggests", "conflicts", "breaks", "replaces")]
    lists = OWN_APT_LISTS if APT.exists() else ()
    asked = ("depends", "--recurse", *only_depends, "--no-enhances", package)
    listing = output_of("apt-cache", *lists, *asked)
    for name in (line for line in listing.splitlines() if line.startswith("lib")):
        status = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Status}", name], capture_output=True, text=True, check=False
        )
        if "ok installed" not in status.stdout:
            yield name


def missing_libraries(binary: Path, folder: Path) -> list[str]:
    """The libraries that a program's loader finds neither on the machine nor in a folder."""
    listing = output_of("ldd", str(binary), env={**os.environ, "LD_LIBRARY_PATH": library_path(folder)})
    return [line.split()[0] for line in listing.splitlines() if line.endswith("not found")]


def library_path(folder: Path) -> str:
    """The folders below a folder that hold libraries, as LD_LIBRARY_PATH."""
    return os.pathsep.join(sorted({str(library.parent) for library in folder.rglob("*.so.*")}))


def output_of(*command: str, env: dict[str, str] | None = None) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout


def make_locks() -> None:
    """Resolve pyproject.toml into requirements/*.lock again, with hashes and without naming any index."""
    venv, folder = BUILD / "lock", ROOT / "requirements"
    if not (venv / "bin" / "uv").exists():
        run(sys.executable, "-m", "venv", "--clear", venv)
        pip = (venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
        run(*pip, "--requirement", folder / "lock.in")
    compile_ = (venv / "bin" / "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11")
    anonymous = ("--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--upgrade")
    header = ("--custom-compile-command", "make lock")
    inputs = ("pyproject.toml", "requirements/build.in")
    # The development packages come first, so that the other locks take the same versions.
    dev, demo, node = (f"requirements/{each}.lock" for each in ("dev", "demo", "node"))
    run(*compile_, *anonymous, *header, "--extra", "dev", *inputs, "-o", dev)
    run(*compile_, *anonymous, *header, "--extra", "demo", *inputs, "-c", dev, "-o", demo)
    run(*compile_, *anonymous, *header, *inputs, "-c", dev, "-o", node)  # only what a member needs
    compiler = ("requirements/compile.in", "-o", "requirements/compile.lock")
    run(*compile_, *anonymous, *header, "-c", dev, *compiler)
    client = ("requirements/kafka-python.in", "-o", "requirements/kafka-python.lock")
    run(*compile_, *anonymous, *header, *client)


@contextmanager
def exclusive_lock(what: str = "bootstrap") -> Iterator[None]:
    """Let one process at a time do this in the work tree; the others wait."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"{what}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def bring_all(purpose: str) -> None:
    """Install all that one purpose needs. The package managers run at the same time: most of it is waiting.

    Raises: CalledProcessError: a part failed; the other parts have ended, too
    """
    python = partial(make_venv, ROOT / "requirements" / ("demo.lock" if purpose == "demo" else "dev.lock"))
    if purpose == "demo":
        side_by_side([python], [bring_kafka])
        return
    side_by_side(
        [python],
        [bring_kafka, bring_older_kafkas, bring_kafka_clients],
        [
            partial(bring_program, KCAT, "kcat"),
            *(build_go_clients, build_toxiproxy, bring_prometheus, bring_faketime, bring_browser),
        ],
    )
    archive_classes()
    if purpose == "long":
        build_deployment_tools()
        bring_program(ETCD, "etcd-server")


def side_by_side(*rows: Sequence[Callable[[], None]]) -> None:
    """Do the steps of each row one after the other, and the rows at the same time."""

    def in_order(row: Sequence[Callable[[], None]]) -> None:
        for step in row:
            step()

    with ThreadPoolExecutor(len(rows)) as pool:
        for done in [pool.submit(in_order, row) for row in rows]:
            done.result()


def main(arguments: Sequence[str]) -> int:
    """Bring what one purpose needs. Returns: the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("purpose", choices=("demo", "test", "long", "lock"))
    purpose = parser.parse_args(arguments).purpose
    try:
        with exclusive_lock():
            if purpose == "lock":
                make_locks()
                return 0
            bring_all(purpose)
    except subprocess.CalledProcessError as error:
        print(f"bootstrap: failed ({error.returncode}): {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
