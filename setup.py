"""With FLEET_COMPILE=1 mypyc compiles the data plane into the wheel; else the wheel is pure Python.

    FLEET_COMPILE=1 pip wheel --no-deps .         wants a C compiler, and Python's headers

The source is the same, and what it does, too; what it costs is in docs/performance.md.
"""

import os
import sys
from pathlib import Path

from setuptools import setup

PROXY = Path("fleet", "proxy")
BESIDE = (Path("fleet", "runtime", "socket_options.py"), Path("fleet", "runtime", "ticker.py"))
"""What each connection passes through, too, and what wakes up a worker that has nothing to do."""
LEFT = ("__init__", "__main__", "tls_server")
"""Nothing to gain there: an empty one, what is run by its name, and what is done once for each listener."""


def compiled():
    """Extensions of what a connection or a frame passes through."""
    try:
        from mypyc.build import mypycify
    except ImportError:
        setup(setup_requires=["mypy"])  # whoever builds in isolation brings it, and comes back
        sys.exit("FLEET_COMPILE=1: mypy is missing; install it, or build with isolation")
    # All at once: what one module calls in another is called directly. Whether types are right is not asked
    # here, where no other package is.
    modules = [str(each) for each in sorted([*PROXY.rglob("*.py"), *BESIDE]) if each.stem not in LEFT]
    found = mypycify(["--follow-imports=silent", "--ignore-missing-imports", *modules], opt_level="3")
    for each in found:
        # Functions that nobody else can see are called directly, and not by way of a table on another page.
        each.extra_compile_args.append("-fvisibility=hidden")
    return found


setup(ext_modules=compiled() if os.environ.get("FLEET_COMPILE", "0") == "1" else [])
