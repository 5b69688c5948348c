import gc
import os
import socket
import subprocess
import sys
from pathlib import Path

import pysyncobj.serializer
import pysyncobj.syncobj as library
import pytest

from fleet.core.errors import RaftError
from fleet.core.model import FleetState
from fleet.raft import guards
from fleet.raft.machine import LogSettings
from fleet.raft.storage import Replica
from fleet.raft.transport import MemberTransport


def opened(folder: Path) -> Replica:
    settings = LogSettings("p1", True, folder / "snapshot", 0.05, 0.2, 0.4, 0.5, 500)
    transport = MemberTransport("p1", ("p1",), (), lambda _peer, _payload: None)
    return Replica(settings, transport, FleetState, lambda _state: None, lambda _command: None)


def test_installed_library_is_the_supported_one() -> None:
    guards.check_library()


def test_the_library_replaces_nothing_of_python() -> None:
    """Found: psutil could not list connections in a process that had loaded the library."""
    assert socket.inet_ntop(socket.AF_INET, bytes((127, 0, 0, 1))) == "127.0.0.1"
    address = "socket.inet_ntop(socket.AF_INET, bytes(4))"
    program = f"import socket; import fleet.raft_state; print({address})"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout == "0.0.0.0\n"


def test_another_version_is_refused() -> None:
    with pytest.raises(RaftError, match=r"pysyncobj 0\.3\.18 is not supported; install pysyncobj 0\.3\.17"):
        guards.check_library("0.3.18")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (library, "createJournal"),
        (library.SyncObj, "_SyncObj__doApplyCommand"),
        (library.SyncObj, "_SyncObj__deleteEntriesFrom"),
        (pysyncobj.serializer.Serializer, "cancelTransmisstion"),
    ],
)
def test_missing_name_of_the_library_is_reported(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(RaftError, match=name):
        guards.check_library()


def test_missing_attribute_of_an_instance_is_reported() -> None:
    with pytest.raises(RaftError, match="_SyncObj__serializer"):
        guards.check_instance(object())


def test_hooks_are_removed_after_construction(tmp_path: Path) -> None:
    before = library.createJournal, library.createPoller, library.PipeNotifier
    opened(tmp_path).close()
    assert (library.createJournal, library.createPoller, library.PipeNotifier) == before


def test_hooks_are_removed_after_failed_construction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = library.createJournal, library.createPoller, library.PipeNotifier

    def fail(*_arguments: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(library, "FastQueue", fail)
    with pytest.raises(RuntimeError, match="no"):
        opened(tmp_path)
    assert (library.createJournal, library.createPoller, library.PipeNotifier) == before


def test_opening_and_closing_keeps_no_descriptor(tmp_path: Path) -> None:
    opened(tmp_path).close()
    gc.collect()  # close what other tests have left open
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        opened(tmp_path).close()
    assert len(os.listdir("/proc/self/fd")) == before
