import asyncio
import json
import os
import select
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.config.secrets import Secret
from fleet.config.settings import (
    AdminSettings,
    ListenerSettings,
    MemberSettings,
    SaslSettings,
    Settings,
    Timing,
    TokenSettings,
    TracingSettings,
    UpstreamSettings,
)
from fleet.core.model import Endpoint, IdentitySpace
from fleet.runtime import child as process
from fleet.runtime.child import ChildSpec, ListenerFd
from tests.integration.in_process.proxy.test_worker import eventually

MEMBER = MemberSettings(
    proxy_id="p1",
    rack=None,
    voter=True,
    witness=False,
    peer=Endpoint("127.0.0.1", 7101),
    admin=Endpoint("127.0.0.1", 7201),
    data_dir=Path("data/p1"),
    workers=2,
    listeners=(ListenerSettings("external", "0.0.0.0", 9100, 9101, "proxy1.example", 9100, 9101),),
)
SETTINGS = Settings(
    fleet="demo",
    bootstrap_servers=(Endpoint("kafka-1", 9092),),
    identities=IdentitySpace(explicit=((1001, 0),)),
    members={"p1": MEMBER},
    timing=Timing(heartbeat_s=0.25),
)
SPEC = ChildSpec(
    settings=SETTINGS,
    proxy_id="p1",
    kind="worker",
    index=1,
    incarnation=1_700_000_000_000,
    parent_pid=7,
    heartbeat_fd=5,
    lifeline_fd=6,
    fds={process.PEER_FD: 9},
    listeners=(ListenerFd("external", None, 10), ListenerFd("external", 1, 11)),
)


def test_spec_is_read_back_from_its_descriptor() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(SPEC.encode())
        file.flush()
        assert process.spec_from_argv(["-m", str(os.dup(file.fileno()))]) == SPEC
    assert SPEC.name == "worker-1"
    assert SPEC.member == MEMBER


def test_child_of_previous_supervisor_uses_existing_files() -> None:
    """A supervisor of 0.2.0 starts a child after an upgrade on disk, before any file is moved."""
    told = json.loads(SPEC.encode())
    assert told.pop("private_dir") is None
    spec = ChildSpec.decode(json.dumps(told).encode())
    assert spec.folder == MEMBER.data_dir
    assert spec.control_socket == MEMBER.data_dir / "control.sock"
    spec = replace(SPEC, private_dir=MEMBER.private_dir)
    assert ChildSpec.decode(spec.encode()).folder == MEMBER.private_dir == MEMBER.data_dir / "member"
    assert spec.control_socket == MEMBER.control_socket


async def test_heart_answers_each_ping_and_ignores_a_full_pipe() -> None:
    reading, writing = os.pipe()
    lifeline, asking = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    loop, failures = asyncio.get_running_loop(), list[dict[str, object]]()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    heart = process.Heart(writing, lifeline)
    await asyncio.sleep(0)  # the first heartbeat finds a full pipe
    os.set_blocking(reading, False)

    def heard() -> bytes:
        with suppress(BlockingIOError):
            return os.read(reading, 1 << 20)
        return b""

    while heard():
        pass
    for _ in range(3):
        os.write(asking, b"?")
        await eventually(lambda: heard() == b".", "an answer")
    heart.stop()
    assert os.read(reading, 1) == b""  # the supervisor sees the end of the heartbeats
    os.write(asking, b"?")  # the supervisor may ping before it sees the end
    await eventually(lambda: not select.select([lifeline], [], [], 0)[0], "it is read")
    assert not failures
    loop.remove_reader(lifeline)
    for fd in (reading, lifeline, asking):
        os.close(fd)


CHILD = """
import asyncio, os, sys
from fleet.runtime import child
from fleet.config.secrets import Secret
from fleet.config.settings import (
    AdminSettings,
    ListenerSettings,
    MemberSettings,
    SaslSettings,
    Settings,
    Timing,
    TokenSettings,
    TracingSettings,
    UpstreamSettings,
)
from fleet.core.model import Endpoint, IdentitySpace
async def main():
    print(os.getpid(), flush=True)
    if {lifeline} >= 0:
        heart = child.Heart({heartbeat}, {lifeline})
        if {stopped}:
            asyncio.get_running_loop().call_soon(heart.stop)
    await asyncio.sleep(60)
if {parent}:
    child.die_with_parent({parent})
asyncio.run(main())
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_child_exits_when_the_lifeline_closes(stopped: bool) -> None:
    lifeline, ours = os.pipe()
    reading, heartbeat = os.pipe()
    program = CHILD.format(lifeline=lifeline, heartbeat=heartbeat, stopped=stopped, parent=0)
    with subprocess.Popen([sys.executable, "-c", program], pass_fds=[lifeline, heartbeat]) as child:
        os.close(lifeline)
        os.close(heartbeat)
        assert os.read(reading, 1) == b"."
        assert not stopped or os.read(reading, 1) == b""
        assert child.poll() is None
        os.close(ours)
        assert child.wait(20) == 70
    os.close(reading)


def test_child_exits_when_nobody_can_hear_it() -> None:
    lifeline, asking = os.pipe()
    reading, heartbeat = os.pipe()
    program = CHILD.format(lifeline=lifeline, heartbeat=heartbeat, stopped=False, parent=0)
    with subprocess.Popen([sys.executable, "-c", program], pass_fds=[lifeline, heartbeat]) as child:
        os.close(heartbeat)
        assert os.read(reading, 1) == b"."
        os.close(reading)
        os.write(asking, b"?")
        assert child.wait(20) == 70
    for fd in (lifeline, asking):
        os.close(fd)


def test_child_of_another_parent_exits_at_once() -> None:
    program = CHILD.format(lifeline=-1, heartbeat=-1, stopped=False, parent=os.getppid())
    assert subprocess.run([sys.executable, "-c", program], timeout=20, check=False).returncode == 70


def test_child_dies_with_its_parent() -> None:
    child = CHILD.format(lifeline=-1, heartbeat=-1, stopped=False, parent="os.getppid()")
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\n"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as between:
        assert between.stdout is not None
        grandchild = os.pidfd_open(int(between.stdout.readline()))
        between.kill()
        # The grandchild holds the other end of standard output: it ends when that process ends.
        assert between.stdout.read() == b""
    os.close(grandchild)


def test_loaded_objects_are_not_scanned_again() -> None:
    script = (
        "import gc; from fleet.runtime import child; from fleet.proxy import worker; child.freeze_garbage(); "
        "print(gc.get_freeze_count(), len(gc.get_objects()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    frozen, left = map(int, done.stdout.split())
    assert frozen > 10_000
    assert left < 100


def test_freed_memory_is_kept_for_the_next_read() -> None:
    code = (
        "import resource; from fleet.runtime import child; child.keep_freed_memory(); "
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt; "
        "turn = lambda: [b'x' * (256 << 10) for _ in range(8)].clear(); turn(); "
        "before = faults(); [turn() for _ in range(100)]; print(faults() - before)"
    )
    kept = python(code)
    given_back = python(code.replace("child.keep_freed_memory(); ", ""))
    assert kept < 100 * 8  # a fault for every 4 KiB would be 51,200
    assert given_back > 10 * kept


def python(code: str) -> int:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def secret_in(variable: str) -> Secret:
    return Secret(None, variable, (), 0)


SECRET_VARIABLES = ("FLEET_READ_TOKEN", "LC_WRITE_TOKEN", "MALLOC_PASSWORD", "PYTHON_TRACES", "LOGNAME")
"""Some of these names would be passed to a worker if they contained no secret."""
WITH_SECRETS = replace(
    SETTINGS,
    admin=AdminSettings(tokens=TokenSettings(*map(secret_in, SECRET_VARIABLES[:2]))),
    upstream=UpstreamSettings(sasl=SaslSettings("PLAIN", "fleet", secret_in(SECRET_VARIABLES[2]))),
    tracing=TracingSettings(
        "http://127.0.0.1:4318",
        {"first": secret_in(SECRET_VARIABLES[3]), "second": secret_in(SECRET_VARIABLES[4])},
    ),
)


def test_worker_environment_holds_no_secret() -> None:
    unknown = {"FLEET_TOKEN": "token", "AWS_SECRET_ACCESS_KEY": "key", "KAFKA_PASSWORD": "password"}
    environ = {**dict.fromkeys(SECRET_VARIABLES, "secret"), **unknown, "LC_ALL": "C.UTF-8"}
    assert process.child_environment("worker", WITH_SECRETS, environ) == {"LC_ALL": "C.UTF-8"}


def test_control_environment_keeps_its_secrets() -> None:
    environ = {**dict.fromkeys(SECRET_VARIABLES, "secret"), "OTEL_RESOURCE_ATTRIBUTES": "a=b"}
    systemd = {"NOTIFY_SOCKET": "/run/systemd/notify"}
    assert process.child_environment("control", WITH_SECRETS, {**environ, **systemd}) == environ


def test_worker_environment_keeps_settings_of_libraries() -> None:
    environ = {
        "PATH": "/usr/bin",
        "TZ": "UTC",
        "LC_CTYPE": "C",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": "/opt/fleet",
        "SSL_CERT_FILE": "/etc/ssl/ca.pem",
        "OPENSSL_CONF": "/etc/ssl/fips.cnf",
        "RES_OPTIONS": "timeout:1",
        "LD_PRELOAD": "/usr/lib/libjemalloc.so.2",
        "MALLOC_ARENA_MAX": "1",
        "UV_THREADPOOL_SIZE": "8",
    }
    assert process.child_environment("worker", WITH_SECRETS, environ) == environ


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", None),
        (":", None),
        (".:lib", None),
        ("/opt/a::./b:/opt/c:", "/opt/a:/opt/c"),
    ],
)
@pytest.mark.parametrize("kind", ["control", "worker"])
def test_relative_import_path_is_dropped(kind: process.Kind, given: str, kept: str | None) -> None:
    assert process.child_environment(kind, SETTINGS, {"PYTHONPATH": given}).get("PYTHONPATH") == kept
