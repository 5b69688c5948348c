import logging
from pathlib import Path

import pytest

from fleet.core.model import (
    AdvertisedListener,
    Broker,
    Directory,
    IdentitySpace,
    Member,
    MemberStatus,
)
from fleet.runtime import ipc
from fleet.runtime.ipc import (
    BrokersLostMessage,
    BrokersSeenMessage,
    CountersMessage,
    DirectoryMessage,
    Hello,
    Message,
    ReachableMessage,
    WorkerCounters,
)
from tests import previous_release

MEMBER = Member(
    "p1",
    rack="a",
    listeners=(AdvertisedListener("external", "proxy1.example", 9100, 9101),),
    identities=IdentitySpace(explicit=((1001, 0), (2001, 1))),
    status=MemberStatus.DRAINING,
    incarnation=17,
)
DIRECTORY = Directory(
    generation=3,
    revision=9,
    advertised={1: ("p1", "p2"), 2: ("p2",)},
    committed={1: ("p1",), 2: ("p2",)},
    members={"p1": MEMBER},
    brokers={1: Broker(1, "kafka-1", 9092, "a")},
    suspects=("p3",),
)
COUNTERS = WorkerCounters(
    requests={0: 5},
    bytes_to_broker={ipc.BOOTSTRAP: 100, 1: 7},
    bytes_to_client={1: 8},
    connections={1: 2},
    errors={"malformed": 1},
    limited={"idle_timeout_s": 3},
    rewrite_buckets=tuple(range(12)),
    rewrite_sum_s=0.5,
    upstream_up={1: True, 2: False},
    generation=3,
    revision=9,
)


@pytest.mark.parametrize(
    "message",
    [
        Hello(1, 99),
        DirectoryMessage(DIRECTORY),
        CountersMessage(COUNTERS),
        BrokersSeenMessage((Broker(4, "kafka-4", 9092),)),
        BrokersSeenMessage((), wanted=(4, 2)),
        BrokersLostMessage((4, 2)),
        ReachableMessage({4: True, 2: False}),
    ],
)
def test_message_is_one_line_and_comes_back_equal(message: Message) -> None:
    line = ipc.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert ipc.decode(line) == message


@pytest.mark.parametrize(
    "line", [b"\n", b"{}\n", b'{"kind":"else"}\n', b'{"kind":"hello","worker":"x","pid":1}\n']
)
def test_invalid_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        ipc.decode(line)


def test_directory_file_is_read_back_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / ipc.DIRECTORY_FILE
    assert ipc.read_directory(path) is None
    ipc.write_directory(path, Directory())
    ipc.write_directory(path, DIRECTORY)
    assert ipc.read_directory(path) == DIRECTORY
    assert [each.name for each in tmp_path.iterdir()] == [ipc.DIRECTORY_FILE]


@pytest.mark.parametrize("content", [b"", b'{"generation": 3, "brok', b"\xff\xfe", b"[]"])
def test_corrupt_directory_file_is_reported_and_ignored(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / ipc.DIRECTORY_FILE
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert ipc.read_directory(path) is None
    assert str(path) in caplog.text


def test_a_directory_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / ipc.DIRECTORY_FILE
    path.mkdir()  # rename(2) onto a directory fails
    with pytest.raises(OSError, match=ipc.DIRECTORY_FILE):
        ipc.write_directory(path, DIRECTORY)
    assert [each.name for each in tmp_path.iterdir()] == [ipc.DIRECTORY_FILE]


def test_previous_control_ignores_awaited_brokers() -> None:
    """A supervisor of 0.2.0 may start a worker of this release. Found: control hung up at a new message."""
    sent = ipc.encode(BrokersSeenMessage((), wanted=(4, 2)))
    read = "ipc._MESSAGE.validate_json(sys.stdin.buffer.read())"
    program = f"import sys; from fleet.runtime import ipc; print({read})"
    assert previous_release.run(program, sent).decode().startswith("BrokersSeenMessage(brokers=()")
