"""One fuzzer: ``python -m tests.fuzz.child FINDS CORPUS -runs=N …``, with the options of libFuzzer.

atheris instruments the wire core, so that libFuzzer sees where an input leads. The checks are not
instrumented.
A failing input is written to FINDS and ends the process.
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

from tests.fuzz.corpus import RESTART_PROGRAM_VARIABLE
from tests.fuzz.target import check


def check_and_save(data: bytes) -> None:
    """Check an input. Write a failing one first: libFuzzer writes it late, or is killed before it does."""
    try:
        check(data)
    except Exception:
        failures_folder.mkdir(parents=True, exist_ok=True)
        (failures_folder / f"{hashlib.sha256(data).hexdigest()[:16]}.bin").write_bytes(data)
        raise


if __name__ == "__main__":
    failures_folder = Path(sys.argv.pop(1))
    sys.argv[0] = os.environ.get(RESTART_PROGRAM_VARIABLE, sys.argv[0])
    atheris.Setup(sys.argv, check_and_save)
    atheris.Fuzz()
