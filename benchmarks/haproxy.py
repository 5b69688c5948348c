"""HAProxy for the comparison: the machine's own, or Debian's package unpacked below `build/haproxy`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.debian import find_or_unpack
from tools.bootstrap import BUILD

FOLDER = BUILD / "haproxy"
_ADVICE = "install it (apt-get install haproxy), or leave it out (--targets direct,forwarder,fleet)"


def find() -> Path:
    """Find a HAProxy that runs here; unpack Debian's package, without being root, if the machine has none.

    Raises: BenchError: there is no HAProxy, and none is available; the message says what to do.
    """
    installed = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if installed is not None:
        return Path(installed)
    return find_or_unpack("HAProxy", "usr/sbin/haproxy", FOLDER, _ADVICE)


def version(haproxy: Path) -> str:
    """The version that HAProxy reports, for example `2.6.12-1+deb12u4`."""
    output = subprocess.run([haproxy, "-v"], capture_output=True, text=True, check=True).stdout
    return output.split()[2]
