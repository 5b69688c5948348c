"""The data plane that mypyc has compiled does what the source says.

Found so, before it was shipped: mypyc takes the bound of `for _ in range(count)` anew in each turn, so that a
`count` which is set within the loop ends it at the wrong place. DescribeConfigs responses were cut short.
"""

from __future__ import annotations

import subprocess
import sys
from types import MappingProxyType
from typing import Final

from tools import compiled
from tools.bootstrap import ROOT

TESTS: Final = MappingProxyType(
    {
        "unit": "addresses admission budget dialler guard held_responses passage patience quota "
        "server_names session tagged_fields tcp ticks tls_transport traffic trust turns "
        "unread_clients upstream wire_api_versions wire_configs wire_coordinators wire_heartbeats "
        "wire_primitives wire_quorum wire_requests worker",
        "property": "fetch_shapes pairing patch produce_shapes session slices stream tail",
    }
)
"""The tests of what is compiled, and of what it is called by."""


def passes(folder: str) -> None:
    """Run the tests in one folder, with what is compiled in place of what the source has."""
    tests = [f"tests/{folder}/test_{name}.py" for name in TESTS[folder].split()]
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
