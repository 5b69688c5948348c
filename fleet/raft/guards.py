"""Checks that the installed pysyncobj is supported, and hooks that insert the fleet's parts into it."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from typing import Final

import pysyncobj.syncobj as library
from pysyncobj.journal import Journal as LibraryJournal
from pysyncobj.version import VERSION

from fleet.core.errors import RaftError

SUPPORTED_VERSION: Final = "0.3.17"

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "pysyncobj.syncobj": (
        "createJournal",
        "createPoller",
        "monotonicTime",
        "PipeNotifier",
        "PIPE_NOTIFIER_ENABLED",
    ),
    "pysyncobj.syncobj:SyncObj": (
        "_SyncObj__applyLogEntries",
        "_SyncObj__connectedToAnyone",
        "_SyncObj__deleteEntriesFrom",
        "_SyncObj__doApplyCommand",
        "_SyncObj__generateRaftTimeout",
        "_SyncObj__loadDumpFile",
        "_SyncObj__onMessageReceived",
        "_SyncObj__tryLogCompaction",
        "_applyCommand",
        "_doDestroy",
        "_getLeader",
        "_isLeader",
        "doTick",
        "raftCommitIndex",
        "raftCurrentTerm",
        "raftLastApplied",
    ),
    "pysyncobj.syncobj:_RAFT_STATE": ("FOLLOWER", "CANDIDATE", "LEADER"),
    "pysyncobj.syncobj:_COMMAND_TYPE": ("REGULAR", "NO_OP"),
    "pysyncobj.serializer:Serializer": (
        "cancelTransmisstion",
        "checkSerializing",
        "deserialize",
        "getTransmissionData",
        "serialize",
        "setTransmissionData",
    ),
    "pysyncobj.journal:Journal": (
        "add",
        "clear",
        "deleteEntriesFrom",
        "deleteEntriesTo",
        "getCurrentTerm",
        "getRaftCommitIndex",
        "getVotedForNodeId",
        "onOneSecondTimer",
        "setCurrentTerm",
        "setRaftCommitIndex",
    ),
    "pysyncobj.transport:Transport": (
        "_onMessageReceived",
        "_onNodeConnected",
        "_onNodeDisconnected",
        "_onReadonlyNodeConnected",
        "_onReadonlyNodeDisconnected",
        "destroy",
        "send",
    ),
}

INSTANCE_NAMES: Final = (
    "_SyncObj__newAppendEntriesTime",
    "_SyncObj__raftElectionDeadline",
    "_SyncObj__raftLog",
    "_SyncObj__raftNextIndex",
    "_SyncObj__raftState",
    "_SyncObj__serializer",
    "_SyncObj__transport",
)
"""Private attributes that exist only on a constructed object, and are checked there."""

_hooks_lock = threading.Lock()


def check_library(version: str = VERSION) -> None:
    """Check that the library is the version that the fleet was tested with.

    Raises: RaftError: names the wrong version, or the missing attributes
    """
    if version != SUPPORTED_VERSION:
        raise RaftError(f"pysyncobj {version} is not supported; install pysyncobj {SUPPORTED_VERSION}")
    missing = [
        f"{place}.{name}"
        for place, names in _NAMES.items()
        for name in names
        if not _has_attribute(place, name)
    ]
    if missing:
        raise RaftError(
            f"pysyncobj {version} has no {', '.join(missing)}; install the package that is published on PyPI"
        )


def check_instance(instance: object) -> None:
    """Check the private attributes of a constructed SyncObj.

    Raises: RaftError: names the missing attributes
    """
    missing = [name for name in INSTANCE_NAMES if not hasattr(instance, name)]
    if missing:
        raise RaftError(
            f"SyncObj of pysyncobj has no {', '.join(missing)}; install the package that is published on PyPI"
        )


def _has_attribute(place: str, name: str) -> bool:
    module, _, attribute = place.partition(":")
    owner: object = importlib.import_module(module)
    return hasattr(getattr(owner, attribute, None) if attribute else owner, name)


@contextlib.contextmanager
def construction(journal: LibraryJournal) -> Iterator[None]:
    """Replace parts of the library while a SyncObj is constructed: this journal, no poller and no pipe.

    The SyncObj has no sockets of its own. On exit, the module of the library is restored in any case.
    """
    with _hooks_lock:
        before = library.createJournal, library.createPoller, library.PipeNotifier
        library.createJournal = lambda _path: journal
        library.createPoller = lambda _kind: _NoPoller()
        library.PipeNotifier = _NoNotifier
        try:
            yield
        finally:
            library.createJournal, library.createPoller, library.PipeNotifier = before


class _NoPoller:
    """Polls nothing, because the Raft thread waits on its own queue."""

    def poll(self, timeout: float) -> None:
        pass


class _NoNotifier:
    def __init__(self, poller: object) -> None:
        pass

    def notify(self) -> None:
        pass
