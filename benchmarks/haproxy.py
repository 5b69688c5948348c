"""HAProxy for the comparison: the machine's own, or Debian's package unpacked below `build/haproxy`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.errors import BenchError
from tools.bootstrap import BUILD, unpack_debian_package

FOLDER = BUILD / "haproxy"
_LIBRARIES = (FOLDER / "debian" / "usr" / "lib", FOLDER / "libraries")
_ADVICE = "install it (apt-get install haproxy), or leave it out (--targets direct,forwarder,fleet)"


def find() -> Path:
    """A HAProxy that runs here; brings Debian's where the machine has none, without being root.

    Raises: BenchError: there is none, and none can be had; says what to do.
    """
    installed = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if installed is not None:
        return Path(installed)
    launcher = FOLDER / "haproxy"
    if not launcher.exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        try:
            binary = _bring()
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchError(
                f"no HAProxy here, and Debian's cannot be brought ({error}): {_ADVICE}"
            ) from error
        launcher.write_text(
            f'#!/bin/sh\nLD_LIBRARY_PATH={shlex.quote(_search_path())} exec {shlex.quote(str(binary))} "$@"\n'
        )
        launcher.chmod(0o755)
    return launcher


def version(haproxy: Path) -> str:
    """As it says itself, for example `2.6.12-1+deb12u4`."""
    said = subprocess.run([haproxy, "-v"], capture_output=True, text=True, check=True).stdout
    return said.split()[2]


def _bring() -> Path:
    """Unpack the package, and then the libraries that neither the machine nor what is there has."""
    unpack_debian_package("haproxy", FOLDER / "debian")
    binary = FOLDER / "debian" / "usr" / "sbin" / "haproxy"
    wanted = iter(_absent_dependencies())
    while missing := _missing_libraries(binary):
        package = next(wanted, None)
        if package is None:
            raise OSError(f"without {', '.join(missing)}")
        unpack_debian_package(package, FOLDER / "libraries" / package)
    return binary


def _absent_dependencies() -> Iterator[str]:
    """The libraries that the package needs, directly or not, and that are not installed."""
    only_depends = [f"--no-{each}" for each in ("recommends", "suggests", "conflicts", "breaks", "replaces")]
    listing = _output("apt-cache", "depends", "--recurse", *only_depends, "--no-enhances", "haproxy")
    for name in (line for line in listing.splitlines() if line.startswith("lib")):
        status = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Status}", name], capture_output=True, text=True, check=False
        )
        if "ok installed" not in status.stdout:
            yield name


def _missing_libraries(binary: Path) -> list[str]:
    listing = _output("ldd", str(binary), env={**os.environ, "LD_LIBRARY_PATH": _search_path()})
    return [line.split()[0] for line in listing.splitlines() if line.endswith("not found")]


def _search_path() -> str:
    folders = {library.parent for root in _LIBRARIES for library in root.rglob("*.so.*")}
    return os.pathsep.join(sorted(map(str, folders)))


def _output(*command: str, env: dict[str, str] | None = None) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
