"""Measure which branches of the wire core inputs reach: ``python -m tests.fuzz.branches CORPUS…``."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

import coverage

WIRE_CORE: Final = ("wire/*.py", "session.py", "stream.py", "rewriter.py", "addresses.py")
"""The files of fleet/proxy that parse bytes of clients and brokers."""


def measure(inputs: list[bytes]) -> dict[str, object]:
    """Check all inputs and return the branches reached. Call it before any of the wire core is imported."""
    assert "fleet.proxy.session" not in sys.modules
    root = Path(__file__).resolve().parents[2] / "fleet" / "proxy"
    measured = coverage.Coverage(
        data_file=None, config_file=False, branch=True, include=[str(root / each) for each in WIRE_CORE]
    )
    measured.start()
    from tests.fuzz.target import check

    for each in inputs:
        check(each)
    measured.stop()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        report = Path(folder) / "coverage.json"
        measured.json_report(outfile=str(report))
        found = json.loads(report.read_text())
    totals = found["totals"]
    return {
        "inputs": len(inputs),
        "total": totals["num_branches"],
        "covered": totals["covered_branches"],
        "percent": round(100 * totals["covered_branches"] / totals["num_branches"], 2),
        "missing": {
            Path(name).relative_to(root).as_posix() if Path(name).is_absolute() else name: each[
                "missing_branches"
            ]
            for name, each in found["files"].items()
            if each["missing_branches"]
        },
    }


def main() -> None:
    files = (each for folder in sys.argv[1:] for each in sorted(Path(folder).iterdir()))
    json.dump(measure([each.read_bytes() for each in files]), sys.stdout)


if __name__ == "__main__":
    main()
