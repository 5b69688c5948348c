"""The compiled data plane passes the tests of its source.

Found before a release: mypyc evaluates the bound of `for _ in range(count)` again in each turn, so that a
`count` that changes within the loop ends the loop too early. DescribeConfigs responses were cut short.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from tools import compiled
from tools.bootstrap import ROOT

TESTS: Final = MappingProxyType(
    {
        "unit": (
            "proxy/addresses",
            "proxy/admission",
            "proxy/brokers",
            "proxy/budget",
            "proxy/dialer",
            "proxy/held_responses",
            "proxy/quota",
            "proxy/session",
            "proxy/sni",
            "proxy/tagged_fields",
            "proxy/timeouts",
            "proxy/tls_transport",
            "proxy/traffic",
            "proxy/trust",
            "proxy/turns",
            "proxy/wire/api_versions",
            "proxy/wire/configs",
            "proxy/wire/coordinators",
            "proxy/wire/heartbeats",
            "proxy/wire/primitives",
            "proxy/wire/quorum",
            "proxy/wire/requests",
            "runtime/socket_options",
            "runtime/ticker",
        ),
        "integration/in_process": (
            "proxy/held_responses",
            "proxy/limits",
            "proxy/splice",
            "proxy/tagged_fields",
            "proxy/trust",
            "proxy/unread_clients",
            "proxy/worker",
            "runtime/socket_options",
        ),
        "property": (
            "fetch_shapes",
            "pairing",
            "patch",
            "produce_shapes",
            "session",
            "slices",
            "stream",
            "tail",
        ),
    }
)
"""The tests of the compiled modules and of their callers, by folder, without ``test_``."""


def run_compiled(*folders: str) -> None:
    """Run the tests of some folders with the compiled modules in place of their sources."""
    test_modules = [(folder, PurePosixPath(name)) for folder in folders for name in TESTS[folder]]
    tests = [f"tests/{folder}/{name.with_name('test_' + name.name)}.py" for folder, name in test_modules]
    path = f"pythonpath={compiled.build()} {ROOT}"
    options = ("-q", "-p", "no:cacheprovider", "-m", "not interpreted", "-o", path)
    process = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-1000:]
