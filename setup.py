"""With FLEET_COMPILE=1 mypyc compiles the data plane into the wheel; else the wheel is pure Python.

    FLEET_COMPILE=1 pip wheel --no-deps .         wants a C compiler, and Python's headers

The source is the same, and what it does, too; what it costs is in docs/performance.md.
"""

import os
from pathlib import Path

from setuptools import setup

PROXY = Path("fleet", "proxy")
LEFT = ("__init__", "tls_server", "worker")
"""Nothing to gain there: an empty one, what is done once for each listener, and what waits for sockets."""


def compiled():
    """Extensions of what a connection or a frame passes through; none where that was not asked for."""
    if os.environ.get("FLEET_COMPILE", "0") != "1":
        return []
    from mypyc.build import mypycify

    # All at once: what one module calls in another is called directly.
    modules = [str(each) for each in sorted(PROXY.rglob("*.py")) if each.stem not in LEFT]
    return mypycify(["--strict", *modules], opt_level="3")


setup(ext_modules=compiled())
