"""deploy/systemd as systemd reads it, with the tool for that of Debian's package."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools.bootstrap import ROOT, unpack_debian_program

LIMIT_S = 60.0


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = unpack_debian_program("systemd", "usr/bin/systemd-analyze", tmp_path / "systemd")
    root = tmp_path / "root"
    # Its own units, such as sysinit.target, and a command to start.
    shutil.copytree(
        tmp_path / "systemd" / "debian" / "lib" / "systemd", root / "lib" / "systemd", symlinks=True
    )
    program = root / "opt" / "fleet" / "bin" / "fleet"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    units = root / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    shutil.copy(ROOT / "deploy" / "systemd" / "fleet@.service", units)
    done = subprocess.run(
        [analyze, "verify", "--man=no", f"--root={root}", "fleet@p1.service"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
