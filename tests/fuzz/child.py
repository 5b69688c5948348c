"""One fuzzer: ``python -m tests.fuzz.child FINDS CORPUS -runs=N …``, with the options of libFuzzer.

The wire core is loaded with instructions that tell libFuzzer where an input leads; what checks it, without.
An input that something is wrong with is kept in FINDS, and ends the process.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["fleet.proxy"]):
    for module in ("rewriter", "session", "streaming_patch"):
        importlib.import_module(f"fleet.proxy.{module}")

from tests.fuzz.corpus import AGAIN
from tests.fuzz.target import check


def keep(data: bytes) -> None:
    """Check an input, and keep it before libFuzzer knows of it: it is late with that, or killed meanwhile."""
    try:
        check(data)
    except Exception:
        finds.mkdir(parents=True, exist_ok=True)
        (finds / f"{hashlib.sha256(data).hexdigest()[:16]}.bin").write_bytes(data)
        raise


if __name__ == "__main__":
    finds = Path(sys.argv.pop(1))
    sys.argv[0] = os.environ.get(AGAIN, sys.argv[0])
    atheris.Setup(sys.argv, keep)
    atheris.Fuzz()
