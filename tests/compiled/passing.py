"""The data plane that mypyc has compiled does what the source says.

Found so, before it was shipped: mypyc takes the bound of `for _ in range(count)` anew in each turn, so that a
`count` which is set within the loop ends it at the wrong place. DescribeConfigs responses were cut short.
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
"""The tests of what is compiled, and of what it is called by: by folder, without ``test_``."""


def passes(*folders: str) -> None:
    """Run the tests in some folders, with what is compiled in place of what the source has."""
    named = [(folder, PurePosixPath(name)) for folder in folders for name in TESTS[folder]]
    tests = [f"tests/{folder}/{name.with_name('test_' + name.name)}.py" for folder, name in named]
    path = f"pythonpath={compiled.build()} {ROOT}"
    options = ("-q", "-p", "no:cacheprovider", "-m", "not interpreted", "-o", path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
