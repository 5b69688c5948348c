"""The control process as its supervisor starts it."""

import os
import subprocess
import sys
from pathlib import Path

from fleet.control.process import IDENTITY_HANDOVER_SHARE
from fleet.runtime import child, sockets
from fleet.runtime.child import ADMIN_FD, CONTROL_FD, PEER_FD, ChildSpec
from fleet.runtime.supervisor import HANDOVER_SHARE
from tests.integration.in_process.runtime.test_supervisor import LIMIT_S, ROOT, make_settings

BROKEN_RAFT = """
import threading
from fleet.control import process
from fleet.raft_state import RaftNode

observe = RaftNode._observe
def fail(self, now_s):
    if threading.current_thread().name == "raft":
        raise RuntimeError("broken on purpose")
    observe(self, now_s)

RaftNode._observe = fail
process.main()
"""


def test_handover_ends_before_the_supervisor_stops_waiting() -> None:
    assert 0 < IDENTITY_HANDOVER_SHARE < HANDOVER_SHARE < 1


def test_end_of_the_raft_thread_ends_control(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, witness=True)
    member = settings.member("p1")
    member.private_dir.mkdir(parents=True)
    opened = sockets.open_all(settings, member)
    (heard, heartbeat), (lifeline, held) = os.pipe(), os.pipe()
    spec_fd = os.memfd_create("child-spec")
    fds = {
        PEER_FD: opened.peer.fileno(),
        ADMIN_FD: opened.admin.fileno(),
        CONTROL_FD: opened.control.fileno(),
    }
    spec = ChildSpec(settings, "p1", "control", 0, 1, os.getpid(), heartbeat, lifeline, fds)
    os.write(spec_fd, spec.encode())
    try:
        ended = subprocess.run(
            [sys.executable, "-c", BROKEN_RAFT, str(spec_fd)],
            pass_fds=[*fds.values(), heartbeat, lifeline, spec_fd],
            env={**child.child_environment("control", settings, os.environ), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=2 * LIMIT_S,
            check=False,
        )
    finally:
        opened.close()
        for fd in (heard, heartbeat, lifeline, held, spec_fd):
            os.close(fd)
    assert ended.returncode == 1
    assert "Raft thread ended by an error" in ended.stderr
    assert "broken on purpose" in ended.stderr
