"""HAProxy for the comparison: the machine's own, or Debian's package unpacked below `build/haproxy`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.debian import brought
from tools.bootstrap import BUILD

FOLDER = BUILD / "haproxy"
_ADVICE = "install it (apt-get install haproxy), or leave it out (--targets direct,forwarder,fleet)"


def find() -> Path:
    """A HAProxy that runs here; brings Debian's where the machine has none, without being root.

    Raises: BenchError: there is none, and none can be had; says what to do.
    """
    installed = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if installed is not None:
        return Path(installed)
    return brought("HAProxy", "usr/sbin/haproxy", FOLDER, _ADVICE)


def version(haproxy: Path) -> str:
    """As it says itself, for example `2.6.12-1+deb12u4`."""
    said = subprocess.run([haproxy, "-v"], capture_output=True, text=True, check=True).stdout
    return said.split()[2]
