"""With FLEET_COMPILE=1 mypyc compiles the data plane into the wheel; else the wheel is pure Python.

    FLEET_COMPILE=1 pip wheel --no-deps .         requires a C compiler, and Python's headers

The source and the behaviour are the same. docs/performance.md compares the costs.
"""

import os
import sys
from pathlib import Path

from setuptools import setup

PROXY = Path("fleet", "proxy")
OTHER_MODULES = (Path("fleet", "runtime", "socket_options.py"), Path("fleet", "runtime", "ticker.py"))
"""Modules outside the data plane that every connection uses, and the timer that wakes up idle workers."""
NOT_COMPILED = ("__init__", "__main__", "tls_server")
"""Modules that gain nothing: an empty one, one that is run by its name, and one that runs once a listener."""


def extension_modules():
    """Extension modules of the code that a connection or a frame passes through."""
    try:
        from mypyc.build import mypycify
    except ImportError:
        setup(setup_requires=["mypy"])  # a build with isolation installs mypy, and runs this file again
        sys.exit("FLEET_COMPILE=1: mypy is missing; install it, or build with isolation")
    # All modules at once, so that calls between modules are direct. Types are not checked here: the other
    # packages that a check needs are not installed.
    modules = [
        str(each) for each in sorted([*PROXY.rglob("*.py"), *OTHER_MODULES]) if each.stem not in NOT_COMPILED
    ]
    found = mypycify(["--follow-imports=silent", "--ignore-missing-imports", *modules], opt_level="3")
    for each in found:
        # Functions with hidden visibility are called directly, without a table on another memory page.
        each.extra_compile_args.append("-fvisibility=hidden")
    return found


setup(ext_modules=extension_modules() if os.environ.get("FLEET_COMPILE", "0") == "1" else [])
