"""Files of release 0.2.0 move at the first start, its control socket included."""

from __future__ import annotations

import socket

from fleet.config.settings import MemberSettings
from tests.unit.runtime.test_data_dir import FORMER, LINKS, assert_migrated, fill, member, settings, start

__all__ = ["member", "settings"]


def test_files_of_previous_release_are_moved(member: MemberSettings) -> None:
    fill(member.data_dir, {**FORMER, "events.sqlite-journal": b"half", "notes": b"the operator's"})
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(member.data_dir / "control.sock"))
    stale.close()
    start(member)
    assert_migrated(member)
    assert (member.private_dir / "events.sqlite-journal").read_bytes() == b"half"
    left = {path.name for path in member.data_dir.iterdir()}
    assert left == {"member", "lock", "notes", *LINKS}
    start(member)
    assert_migrated(member)
