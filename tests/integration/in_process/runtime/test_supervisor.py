"""The supervisor as a separate process, with children that only report events."""

import errno
import fcntl
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pydantic import TypeAdapter

from fleet.config.settings import Limits, ListenerSettings, MemberSettings, Settings, Timing
from fleet.core.errors import StartError
from fleet.core.model import Endpoint, IdentitySpace
from fleet.drills.cluster.ports import free_ports
from fleet.runtime import child as process
from fleet.runtime import data_dir, sockets
from fleet.runtime.child import ChildSpec
from fleet.runtime.ephemeral_ports import EphemeralPorts
from fleet.runtime.supervisor import (
    BACKOFF_FIRST_S,
    BACKOFF_LIMIT_S,
    STEADY_S,
    Child,
    Supervisor,
    _python,
)

LIMIT_S = 30.0
ROOT = Path(__file__).parents[4]

DRIVER = """
import ctypes, logging, sys
from pydantic import TypeAdapter
from fleet.config.settings import Settings
from fleet.runtime.supervisor import Supervisor
from fleet.runtime.stderr_log import log_to_stderr

log_to_stderr("supervisor")
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans come to it, as they come to process 1
settings = TypeAdapter(Settings).validate_json(sys.argv[1])
sys.exit(Supervisor(settings, "p1", lambda spec: (sys.executable, sys.argv[2], sys.argv[3])).run())
"""

CHILD = """
import os, select, signal, socket, sys, time
from pathlib import Path
from fleet.runtime import child

spec = child.spec_from_argv(sys.argv)
child.die_with_parent(spec.parent_pid)
folder = Path(sys.argv[1])
name = spec.name

def say(what):
    with (folder / "events").open("a") as events:
        events.write(f"{name} {what}\\n")

def orphan():
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05)
            say(f"orphan {os.getpid()}")
            os._exit(0)
        os._exit(0)
    os.wait()

terminated = False
def on_term(number, frame):
    global terminated
    say("term")
    terminated = True

signal.signal(signal.SIGTERM, on_term)
listening = [socket.socket(fileno=each.fd) for each in spec.listeners]
if (folder / f"{name}.orphan").exists():
    orphan()
(folder / f"{name}.incarnation").write_text(str(spec.incarnation))
(folder / f"{name}.environment").write_text("\\n".join(sorted(os.environ)))
beats = 1
zero = os.open("/dev/zero", os.O_RDONLY)
say(f"start {os.getpid()} {len(listening)} {sorted(spec.fds)}")
try:
    while not (terminated and not (folder / f"{name}.stubborn").exists()):
        if beats and not (folder / f"{name}.silent").exists():
            os.write(spec.heartbeat_fd, b"." * beats)
            beats = 0
        if terminated:
            for each in listening:
                each.close()
            listening.clear()
        readable, _, _ = select.select([*listening, spec.lifeline_fd], [], [], 0.02)
        if spec.lifeline_fd in readable:
            asked = os.read(spec.lifeline_fd, 64)
            if not asked:
                os._exit(70)
            beats += len(asked)
            say("asked")
        if (folder / f"{name}.reading").exists():
            os.read(zero, 1)
        for each in set(readable) - {spec.lifeline_fd}:
            try:
                accepted, _ = each.accept()
            except BlockingIOError:
                continue
            accepted.send(str(os.getpid()).encode())
            accepted.close()
finally:
    if (folder / f"{name}.slow").exists():
        os.close(spec.heartbeat_fd)
        select.select([], [], [], float((folder / f"{name}.slow").read_text()))
    say("end")
"""


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s: {what}"
        time.sleep(0.01)


def make_settings(folder: Path, workers: int = 1, witness: bool = False, **timing: float) -> Settings:
    peer, admin, bootstrap, first = free_ports(4)
    listener = ListenerSettings("external", "127.0.0.1", bootstrap, first, "proxy1.example", 9100, 9101)
    member = MemberSettings(
        proxy_id="p1",
        rack=None,
        voter=True,
        witness=witness,
        peer=Endpoint("127.0.0.1", peer),
        admin=Endpoint("127.0.0.1", admin),
        data_dir=folder / "data",
        workers=workers,
        listeners=() if witness else (listener,),
    )
    return Settings(
        fleet="test",
        bootstrap_servers=(Endpoint("127.0.0.1", 1),),
        identities=IdentitySpace(first_id=1, count=1),
        members={"p1": member},
        timing=replace(Timing(freeze_timeout_s=1.0), **timing),
    )


@dataclass
class Node:
    """A supervisor under test, and the reports of its children."""

    folder: Path
    settings: Settings
    env: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> "Node":
        child = self.folder / "child.py"
        child.write_text(CHILD)
        settings = TypeAdapter(Settings).dump_json(self.settings).decode()
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, settings, str(child), str(self.folder)],
                stderr=log,
                env={**os.environ, **self.env, "PYTHONPATH": str(ROOT)},
            )
        names = ["control", *(f"worker-{index}" for index in range(self.settings.members["p1"].workers))]
        names = ["control"] if self.settings.members["p1"].witness else names
        eventually(lambda: all(self.pids(name) for name in names), "the children started")
        eventually(lambda: "ready" in self.log, "ready")
        return self

    @property
    def events(self) -> list[str]:
        path = self.folder / "events"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def pids(self, name: str) -> list[int]:
        return [int(each.split()[2]) for each in self.events if each.startswith(f"{name} start")]

    def all_pids(self) -> list[int]:
        return [int(each.split()[2]) for each in self.events if " start " in each]

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def exit_code(self) -> int:
        assert self.process is not None
        return self.process.wait(LIMIT_S)

    def mark(self, name: str) -> Path:
        path = self.folder / name
        path.touch()
        return path

    def connect(self) -> int:
        """The process that serves a new connection; 0 if the connection ends unserved."""
        port = self.settings.members["p1"].listeners[0].bootstrap_port
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as sock:
            return int(sock.recv(100) or b"0")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, make_settings(tmp_path))
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_children_get_their_sockets_and_only_those(node: Node) -> None:
    node.start()
    assert f"control start {node.pids('control')[0]} 0 ['admin', 'control', 'peer']" in node.events
    assert f"worker-0 start {node.pids('worker-0')[0]} 2 []" in node.events
    assert node.connect() == node.pids("worker-0")[0]


def test_worker_environment_has_no_token(node: Node) -> None:
    node.env = {"FLEET_READ_TOKEN": "r" * 16, "FLEET_TOKEN": "t" * 16, "LC_ALL": "C.UTF-8"}
    node.start()
    given = {
        name: set((node.folder / f"{name}.environment").read_text().splitlines())
        for name in ("control", "worker-0")
    }
    assert node.env.keys() <= given["control"]
    assert node.env.keys() & given["worker-0"] == {"LC_ALL"}


@pytest.mark.parametrize("kind", ["control", "worker"])
def test_children_import_nothing_from_the_working_directory(tmp_path: Path, kind: process.Kind) -> None:
    planted = "import pathlib; pathlib.Path(__file__).with_name('imported').touch()"
    for module in ("sitecustomize.py", "asyncio.py", "uvloop.py", "fleet/__init__.py"):
        (tmp_path / module).parent.mkdir(exist_ok=True)
        (tmp_path / module).write_text(planted)
    spec = ChildSpec(make_settings(tmp_path), "p1", kind, 0, 1, os.getpid(), -1, -1)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(("", ".", str(ROOT)))}
    child = subprocess.run(
        [*_python(spec), "-1"],  # no such descriptor: the child imports its modules and ends
        env=process.child_environment(kind, spec.settings, environ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "spec_from_argv" in child.stderr
    assert not list(tmp_path.rglob("imported"))


def test_sigterm_stops_control_then_workers_then_exits_zero(node: Node) -> None:
    node.start()
    control_holds, worker_holds = node.mark("control.stubborn"), node.mark("worker-0.stubborn")
    node.signal(signal.SIGHUP)
    node.signal(signal.SIGTERM)
    eventually(lambda: "control term" in node.events, "control is notified")
    assert node.connect() == node.pids("worker-0")[0]
    assert "worker-0 term" not in node.events
    control_holds.unlink()
    eventually(lambda: "worker-0 term" in node.events, "the worker is notified")

    def refused() -> bool:
        try:
            node.connect()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            return False
        return False

    eventually(refused, "new connections are refused")
    worker_holds.unlink()
    assert node.exit_code() == 0
    output = [each for each in node.events if each.endswith((" term", " end"))]
    assert output == ["control term", "control end", "worker-0 term", "worker-0 end"]
    assert not node.settings.members["p1"].control_socket.exists()


def test_a_socket_that_cannot_be_removed_does_not_spoil_the_stop(node: Node) -> None:
    """Like a disk that has become read-only."""
    node.start()
    path = node.settings.members["p1"].control_socket
    path.unlink()
    path.mkdir()
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert "Traceback" not in node.log


def test_interrupt_from_the_terminal_stops_in_the_same_order(node: Node) -> None:
    node.start()
    for pid in node.all_pids():
        os.kill(pid, signal.SIGINT)  # a terminal interrupts the whole process group
    node.signal(signal.SIGINT)
    assert node.exit_code() == 0
    output = [each for each in node.events if each.endswith((" term", " end"))]
    assert output == ["control term", "control end", "worker-0 term", "worker-0 end"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_second_signal_kills_and_exits_at_once(node: Node, number: signal.Signals, code: int) -> None:
    node.start()
    node.mark("control.stubborn")
    node.signal(signal.SIGTERM)
    eventually(lambda: "control term" in node.events, "control is notified")
    started_s = time.monotonic()
    node.signal(number)
    assert node.exit_code() == code
    assert time.monotonic() - started_s < node.settings.timing.drain_timeout_s / 2
    assert not any(alive(pid) for pid in node.all_pids())


def test_drain_timeout_kills_what_is_left_and_exits_zero(node: Node) -> None:
    node.settings = replace(node.settings, timing=replace(node.settings.timing, drain_timeout_s=1.0))
    node.start()
    node.mark("control.stubborn")
    node.mark("worker-0.stubborn")
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert "did not hand over in time: limit_s=0.5" in node.log
    assert "did not drain in time: children=worker-0 limit_s=1.0" in node.log
    assert not any(alive(pid) for pid in node.all_pids())


@pytest.mark.parametrize("name", ["control", "worker-0"])
def test_frozen_child_is_killed_and_replaced_alone(node: Node, name: str) -> None:
    node.start()
    frozen = node.pids(name)[0]
    os.kill(frozen, signal.SIGSTOP)
    eventually(lambda: len(node.pids(name)) == 2, "a new child in its place")
    assert not alive(frozen)
    assert f"killing a frozen child: child={name}" in node.log
    assert len(node.all_pids()) == 3


def test_busy_worker_is_not_pinged(node: Node) -> None:
    reading = node.mark("worker-0.reading")
    node.start()
    silent = node.mark("worker-0.silent")
    until = time.monotonic() + 3 * node.settings.timing.freeze_timeout_s
    eventually(lambda: time.monotonic() > until, "three times the freeze timeout")
    assert node.events.count("control asked") > 2
    assert "worker-0 asked" not in node.events
    assert "frozen" not in node.log
    silent.unlink()
    reading.unlink()
    eventually(lambda: node.events.count("worker-0 asked") > 2, "the child is pinged")
    assert "frozen" not in node.log


def test_control_is_pinged_even_if_it_reads(node: Node) -> None:
    """Threads of control read as well, which proves nothing about its event loop."""
    node.mark("control.reading")
    node.start()
    eventually(lambda: node.events.count("control asked") > 2, "the child is pinged")
    node.mark("control.silent")
    eventually(lambda: len(node.pids("control")) == 2, "a new child in its place")


def test_reads_of_a_worker_count_from_the_previous_check(tmp_path: Path) -> None:
    io_file = tmp_path / "io"
    io_file.write_text("rchar: 90\nwchar: 4\nsyscr: 7\nsyscw: 8\n")
    child = Child("worker", 0, io_fd=os.open(io_file, os.O_RDONLY), last_beat_s=10.0, checked_s=10.0, reads=7)
    child.is_pinged = True
    child.check_reads(10.2)
    assert (child.last_beat_s, child.is_pinged) == (10.0, True)
    io_file.write_text("rchar: 91\nwchar: 4\nsyscr: 9\nsyscw: 8\n")
    child.check_reads(10.4)
    assert (child.last_beat_s, child.is_pinged) == (10.2, False)
    child.record_beat(10.5)
    io_file.write_text("rchar: 91\nwchar: 4\nsyscr: 10\nsyscw: 8\n")
    child.check_reads(10.6)
    assert child.last_beat_s == 10.5  # the heartbeat is newer than the check
    io_file.write_text("nothing\n")
    child.check_reads(10.8)
    assert child.last_beat_s == 10.5


def test_worker_without_read_count_is_pinged(tmp_path: Path) -> None:
    child = Child("worker", 0, io_fd=os.open(tmp_path, os.O_RDONLY), last_beat_s=10.0)
    child.check_reads(11.0)  # a folder cannot be read
    assert (child.io_fd, child.last_beat_s) == (-1, 10.0)
    child.check_reads(12.0)


def test_late_ping_does_not_shorten_the_time_to_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a review: if the supervisor was late, a child was killed immediately after the ping."""
    supervisor = Supervisor(make_settings(tmp_path, freeze_timeout_s=2.0), "p1")
    reading, asking = os.pipe()
    os.set_blocking(asking, False)
    child = supervisor.control
    child.process = cast("subprocess.Popen[bytes]", SimpleNamespace(pid=0))
    child.lifeline_fd, child.last_beat_s, child.has_beaten = asking, 10.0, True
    killed: list[Child] = []
    monkeypatch.setattr(supervisor, "send_signal", lambda each, _: killed.append(each))
    for now_s in (10.5, 11.95, 12.9):
        supervisor.ping_silent(now_s)
        supervisor.kill_frozen(now_s)
        assert not killed
    assert os.read(reading, 10) == b"?"
    supervisor.kill_frozen(12.95)
    assert killed == [child]
    os.close(reading)
    os.close(asking)


def test_child_that_is_not_up_yet_is_not_frozen(node: Node) -> None:
    node.start()
    slow = node.mark("worker-0.silent")
    os.kill(node.pids("worker-0")[0], signal.SIGKILL)
    eventually(lambda: len(node.pids("worker-0")) == 2, "the next worker")
    until = time.monotonic() + 2 * node.settings.timing.freeze_timeout_s  # the time that must not count
    eventually(lambda: time.monotonic() > until, "twice the freeze timeout")
    slow.unlink()
    assert node.connect() == node.pids("worker-0")[-1]
    assert len(node.pids("worker-0")) == 2
    assert "frozen" not in node.log


@pytest.mark.parametrize("name", ["control", "worker-0"])
def test_child_that_takes_its_time_to_end_is_not_frozen(node: Node, name: str) -> None:
    """Found by a rolling restart of a busy machine: an interpreter that was ending was killed."""
    freeze_timeout_s = 3.0  # on a busy machine a child may be this late
    node.settings = replace(
        node.settings, timing=replace(node.settings.timing, freeze_timeout_s=freeze_timeout_s)
    )
    node.start()
    node.mark(f"{name}.slow").write_text(str(1.5 * freeze_timeout_s))
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert f"child={name} exit_code=0" in node.log
    assert "frozen" not in node.log


def test_paused_supervisor_kills_no_child(node: Node) -> None:
    node.start()
    node.signal(signal.SIGSTOP)
    children = node.all_pids()
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + 2 * node.settings.timing.freeze_timeout_s
    eventually(lambda: time.monotonic() > until, "a pause longer than the freeze timeout")
    node.signal(signal.SIGCONT)
    eventually(lambda: "was paused" in node.log, "the supervisor notices")
    for pid in children:
        os.kill(pid, signal.SIGCONT)
    assert node.connect() in children
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert node.all_pids() == children
    assert "frozen" not in node.log


def test_no_connection_is_refused_while_a_worker_restarts(node: Node) -> None:
    node.start()
    first = node.pids("worker-0")[0]
    os.kill(first, signal.SIGKILL)
    served: list[int] = []
    while first in served or not any(served):
        # A refused connection would raise. A connection accepted by the dying process may end unserved.
        served.append(node.connect())
        assert len(served) < 1000
    assert served[-1] == node.pids("worker-0")[1]
    assert len(node.pids("control")) == 1


def test_killed_supervisor_ends_its_children_and_can_restart(node: Node) -> None:
    node.start()
    children = node.all_pids()
    node.signal(signal.SIGKILL)
    node.exit_code()
    eventually(lambda: not any(alive(pid) for pid in children), "the children are gone")
    node.start()
    eventually(lambda: len(node.all_pids()) == 4, "new children")


def test_orphans_are_reaped(node: Node) -> None:
    node.mark("worker-0.orphan")
    node.start()
    eventually(lambda: any("orphan" in each for each in node.events), "an orphan ran")
    orphan = next(int(each.split()[2]) for each in node.events if "orphan" in each)
    eventually(lambda: not Path(f"/proc/{orphan}").exists(), "the orphan was waited for")


def test_systemd_is_notified_when_all_children_are_up(node: Node) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(node.folder / "notify"))
        notify.settimeout(LIMIT_S)
        node.env["NOTIFY_SOCKET"] = str(node.folder / "notify")
        node.start()
        assert notify.recv(100) == b"READY=1"
        node.signal(signal.SIGTERM)
        assert notify.recv(100) == b"STOPPING=1"


def test_witness_has_no_workers(tmp_path: Path, node: Node) -> None:
    node.settings = make_settings(tmp_path, witness=True)
    node.start()
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert {each.split()[0] for each in node.events} == {"control"}


def test_backoff_doubles_to_its_limit_and_resets_when_steady() -> None:
    child = Child("worker", 0)
    waits = [child.record_end(0.5) for _ in range(9)]
    assert waits[:4] == [BACKOFF_FIRST_S, 2 * BACKOFF_FIRST_S, 4 * BACKOFF_FIRST_S, 8 * BACKOFF_FIRST_S]
    assert waits[-1] == BACKOFF_LIMIT_S
    assert child.restart_at_s == 0.5 + BACKOFF_LIMIT_S
    child.started_s = 100.0
    assert child.record_end(100.0 + STEADY_S) == BACKOFF_FIRST_S


# ---- what keeps a member from starting


def refusal(settings: Settings) -> str:
    member = settings.members["p1"]
    with pytest.raises(StartError) as caught:
        sockets.open_all(settings, member)
    return str(caught.value)


@pytest.mark.parametrize(
    "field", ["peer", "admin", "listeners.external.bind", "listeners.external.first_port"]
)
def test_port_in_use_names_the_field_and_frees_the_others(tmp_path: Path, field: str) -> None:
    settings = make_settings(tmp_path)
    member = settings.members["p1"]
    member.private_dir.mkdir(parents=True)
    ports = {
        "peer": member.peer.port,
        "admin": member.admin.port,
        "listeners.external.bind": member.listeners[0].bootstrap_port,
        "listeners.external.first_port": member.listeners[0].first_port,
    }
    with socket.create_server(("127.0.0.1", ports[field])):
        output = refusal(settings)
    assert output.startswith(f"members.p1.{field}: cannot listen on 127.0.0.1:{ports[field]}")
    assert "another port" in output
    sockets.open_all(settings, member).close()


def test_missing_address_of_an_identity_is_explained(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    listener = replace(settings.members["p1"].listeners[0], first_address="192.0.2.11")
    member = replace(settings.members["p1"], listeners=(listener,))
    member.private_dir.mkdir(parents=True)
    output = refusal(replace(settings, members={"p1": member}))
    at = f"192.0.2.11:{listener.bootstrap_port}"
    assert output.startswith(f"members.p1.listeners.external.first_address: cannot listen on {at}")
    assert "add it to an interface (`ip address add`)" in output


def test_port_of_an_outgoing_connection_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(tmp_path)
    member = settings.members["p1"]
    member.private_dir.mkdir(parents=True)
    port = member.peer.port
    monkeypatch.setattr(sockets, "read_ephemeral_ports", lambda: EphemeralPorts(port - 1, port + 1))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.bind(("127.0.0.1", port))
        client.connect(server.getsockname())
        output = refusal(settings)
        monkeypatch.setattr(sockets, "read_ephemeral_ports", lambda: None)
        elsewhere = refusal(settings)
    assert "stop the process" not in output
    assert f"; find the other socket with `ss -tanp 'sport = :{port}'` and end its process" in output
    assert output.endswith(
        "if the other socket is an outgoing connection, reserve the port, which is in the ephemeral range "
        f"{port - 1}-{port + 1} (sysctl -w net.ipv4.ip_local_reserved_ports={port})"
    )
    assert elsewhere.endswith("or configure another port"), "on a system without such a range"


@pytest.mark.parametrize(
    ("port", "output"),
    [(1023, "configure a port above 1023"), (9100, "allow this port in the policy of SELinux")],
)
def test_forbidden_port_is_explained_by_its_number(port: int, output: str) -> None:
    assert output in sockets.bind_advice(PermissionError(errno.EACCES, "Permission denied"), port)


def test_full_disk_is_no_reason_to_remove_the_control_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(tmp_path)
    settings.members["p1"].private_dir.mkdir(parents=True)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "chmod", fail)
    output = refusal(settings)
    assert output.endswith("(no space left on device); check owner, mode and free space of its directory")


def test_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    settings.members["p1"].private_dir.mkdir(parents=True)
    member = replace(settings.members["p1"], peer=Endpoint("192.0.2.1", 7101))
    assert "192.0.2.1:7101" in refusal(replace(settings, members={"p1": member}))


def test_unix_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    settings = make_settings(tmp_path / ("x" * 100))
    output = refusal(settings)
    assert output.startswith("members.p1.data_dir: ")
    assert "shorter path" in output


def test_stale_control_socket_is_replaced(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    member = settings.members["p1"]
    member.private_dir.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(member.control_socket))
    opened = sockets.open_all(settings, member)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(member.control_socket))
    assert member.control_socket.stat().st_mode & 0o777 == 0o600
    opened.close()


def test_more_identities_than_open_files_are_refused(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = replace(make_settings(tmp_path), identities=IdentitySpace(first_id=1, count=hard))
    assert refusal(settings).startswith("identities.count: ")


def with_limits(settings: Settings, workers: int = 1, **limits: int) -> Settings:
    member = replace(settings.members["p1"], workers=workers)
    return replace(settings, members={"p1": member}, limits=Limits(**limits))


def test_more_connections_than_open_files_are_refused(tmp_path: Path) -> None:
    room = sockets.connection_capacity(settings := make_settings(tmp_path), settings.members["p1"])
    output = refusal(with_limits(settings, max_connections=room + 1))
    assert output.startswith(f"limits.max_connections: each worker of p1 needs {room + 1} connections, but ")
    fitting = with_limits(settings, workers=2, max_connections=2 * room)
    fitting.members["p1"].private_dir.mkdir(parents=True)
    sockets.open_all(fitting, fitting.members["p1"]).close()


def test_every_worker_has_its_share_of_the_connections(tmp_path: Path) -> None:
    settings = with_limits(make_settings(tmp_path), workers=3, max_connections=10)
    assert sockets.connections_per_worker(settings, settings.members["p1"]) == 4
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = with_limits(settings, workers=3)
    share = sockets.connections_per_worker(settings, settings.members["p1"])
    # Without a limit each worker may use all its files, less those that are not for clients.
    assert soft / 2 - 500 < share < soft / 2 - sockets.SPARE_CONNECTIONS / 2


def backlog_of(listening: socket.socket) -> int:
    """The maximum length of its queue: tcpi_sacked of a listening socket. Source: linux/tcp.h"""
    info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack_from("=8x5II", info)[5])


def test_listeners_have_the_backlog_that_is_configured(tmp_path: Path) -> None:
    settings = with_limits(make_settings(tmp_path), listen_backlog=37)
    settings.members["p1"].private_dir.mkdir(parents=True)
    opened = sockets.open_all(settings, settings.members["p1"])
    assert {backlog_of(each) for each in (opened.peer, *(each.socket for each in opened.data))} == {37}
    opened.close()


def test_data_dir_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    member = make_settings(tmp_path).members["p1"]
    member.data_dir.write_text("a file")
    with pytest.raises(StartError, match=r"members\.p1\.data_dir: .* cannot be written"):
        data_dir.acquire(member)


def test_second_supervisor_is_refused_and_names_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_dir, "LOCK_WAIT_S", 0.1)
    member = make_settings(tmp_path).members["p1"]
    first = data_dir.acquire(member)
    with pytest.raises(StartError, match=rf"another supervisor \(process {os.getpid()}\)"):
        data_dir.acquire(member)
    for fd in first.fds:
        fcntl.flock(fd, fcntl.LOCK_UN)
    data_dir.acquire(member).close()
    first.close()


def test_incarnation_grows_although_the_clock_was_set_back(node: Node) -> None:
    """By an hour: the clock of a member was wrong, and was corrected."""
    ahead = (time.time_ns() // 1_000_000) + 3_600_000
    (node.settings.members["p1"].data_dir).mkdir(parents=True, exist_ok=True)
    (node.settings.members["p1"].data_dir / "incarnation").write_text(str(ahead))
    node.start()
    assert int((node.folder / "control.incarnation").read_text()) == ahead + 1
    assert int((node.folder / "worker-0.incarnation").read_text()) == ahead + 1


def test_data_directory_is_locked_on_a_full_disk(tmp_path: Path) -> None:
    """Found: the process id could not be written into the lock, and the member did not start."""
    member = make_settings(tmp_path).member("p1")
    data_dir.acquire(member).close()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        held = data_dir.acquire(member)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert data_dir.is_locked(member)
    held.close()
    assert not data_dir.is_locked(member)
