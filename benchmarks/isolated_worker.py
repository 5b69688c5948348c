"""One proxy process in front of a scripted broker: what a request makes it do, counted and not timed.

    python -m benchmarks.isolated_worker                        of a bare forwarder and of a compiled worker
    python -m benchmarks.isolated_worker --worker PORT BROKER    that worker, until SIGTERM

At a few requests a second no memory page is in a cache, and pages determine the cost. Instructions and
allocations are counted by valgrind's callgrind, with the C library's allocator in place of Python's. Two runs
differ by less than a thousandth for a request, and by half a hundredth for a connection.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click
import psutil
import uvloop

from benchmarks.callgrind import Callgrind, ExecutionCounts, find
from benchmarks.errors import BenchError
from benchmarks.frames import produce
from benchmarks.metadata_client import ROOT, await_answer
from benchmarks.scripted import host_of
from fleet.config.settings import ListenerSettings, MemberSettings, Settings
from fleet.core.errors import FleetError
from fleet.core.model import Broker, Directory, Endpoint, IdentitySpace
from fleet.drills.cluster.ports import free_ports
from fleet.drills.cluster.spawn import end, spawn
from fleet.proxy.wire.metadata import metadata_request
from fleet.proxy.worker import Worker
from fleet.runtime import child, ipc
from fleet.runtime.child import ChildSpec, ListenerFd
from tools import compiled

TARGETS: Final = ("forwarder", "fleet")
_BROKERS: Final = (1, 2, 3)
_RECORD_BYTES: Final = 100
_SAMPLES: Final = 5
_REQUESTS: Final = 200
_CONNECTIONS: Final = 100
_COUNTABLE_ALLOCATOR: Final = {"PYTHONMALLOC": "malloc"}
"""Python's own allocator rarely calls the C library. With the C library's allocator every call is counted."""
_LIMIT_S: Final = 120.0
_START_LIMIT_S: Final = 600.0
"""Under valgrind a worker was up after 27 s, and after 106 s a minute before, on the same machine."""
_PAUSE_S: Final = 0.05
_SETTLE_S: Final = 1.5


# ---- the worker


async def serve(port: int, broker_port: int, folder: Path) -> None:
    """Run a worker that owns broker 1 and listens at a port; its directory has three brokers."""
    here = "127.0.0.1"
    listener = ListenerSettings("external", here, port - 1, port, here, port - 1, port, None)
    links = Endpoint(here, 1), Endpoint(here, 2)  # nothing listens there: the worker has no such links
    member = MemberSettings("p1", None, True, False, *links, folder, 1, (listener,))
    known = {number: Broker(number, host_of(number), broker_port) for number in _BROKERS}
    settings = Settings(
        "alone", (Endpoint(host_of(1), broker_port),), IdentitySpace(1, len(known)), {"p1": member}
    )
    owned = {number: ("p1",) for number in known}
    members = {"p1": member.advertised(settings)}
    directory = Directory(1, 1, advertised=owned, members=members, brokers=known)
    ipc.write_directory(folder / ipc.DIRECTORY_FILE, directory)
    control = socket.socket(socket.AF_UNIX)  # takes what the worker sends, and sends nothing
    listening = socket.create_server((here, port), backlog=4096)
    listening.setblocking(False)
    fds = (ListenerFd("external", 1, listening.detach()),)
    spec = ChildSpec(settings, "p1", "worker", 0, 1, os.getppid(), -1, -1, listeners=fds, private_dir=folder)
    control.bind(str(spec.control_socket))
    control.listen()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await Worker(spec).run(stop)


# ---- the client


class Client:
    """One connection; sends a request, and waits for the response."""

    def __init__(self, at: Endpoint) -> None:
        self._socket = socket.create_connection((at.host, at.port), _LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reading = self._socket.makefile("rb")

    def ask(self, frame: bytes) -> None:
        """Raises: BenchError: the worker closes the connection."""
        self._socket.sendall(frame)
        size = self._reading.read(4)
        if len(size) < 4 or len(self._reading.read(int.from_bytes(size, "big"))) < 4:
            raise BenchError("no answer")

    def close(self) -> None:
        self._reading.close()
        self._socket.close()


@contextmanager
def running(
    target: str,
    folder: Path,
    through: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[int, Endpoint]]:
    """A running target in front of its broker. Yields: the process, and the address where it listens.

    Args:   through: a program that becomes the target, and its arguments.
            environment: further variables, for the target only.
    Raises: BenchError: the target does not come up. NotCompiled: as `compiled.launcher`.
    """
    broker_port, _, port = free_ports(3)
    at, upstream = Endpoint("127.0.0.1", port), Endpoint(host_of(1), broker_port)
    with ExitStack() as ending:
        scripted = ("-m", "benchmarks.scripted", str(broker_port), str(len(_BROKERS)), "10")
        broker = spawn([sys.executable, *scripted], folder / "broker.log", cwd=ROOT)
        ending.callback(end, [broker], 0.0)
        await_answer(upstream)
        if target == "forwarder":
            command = [*through, sys.executable, "-m", "benchmarks.forwarder", f"{at}/{upstream}"]
        else:
            both = f"PYTHONPATH={compiled.build()}{os.pathsep}{ROOT}"
            module = ("-m", "benchmarks.isolated_worker", "--worker", str(port), str(broker_port))
            command = [*compiled.launcher(), both, *through, sys.executable, *module]
        # Without a fixed seed each start hashes, and samples up, in another way.
        whole = {**os.environ, "PYTHONHASHSEED": "0", **environment}
        proxy = spawn(command, folder / f"{target}.log", env=whole, cwd=ROOT)
        ending.callback(end, [proxy], _LIMIT_S)
        await_answer(at, limit_s=_START_LIMIT_S)
        yield proxy.pid, at


# ---- what is counted


def pages(target: str, folder: Path) -> float:
    """How many pages of memory a request and its response touch; the median."""
    with running(target, folder) as (pid, at):
        client, frame = Client(at), produce(_RECORD_BYTES)
        for _ in range(_SAMPLES):
            client.ask(frame)
        return statistics.median(count_touched_pages(pid, lambda: client.ask(frame)) for _ in range(_SAMPLES))


def count_touched_pages(pid: int, act: Callable[[], None]) -> int:
    """How many pages of a process's memory are read or written during a call.

    Source: proc_pid_clear_refs(5), proc_pid_smaps(5): Referenced
    """
    # The processor marks a page when it looks the page up, and does not look it up again for a while.
    # After a pause it does, as at a few requests a second.
    time.sleep(_PAUSE_S)
    Path(f"/proc/{pid}/clear_refs").write_text("1")
    act()
    _await_rest(psutil.Process(pid))
    referenced = re.findall(r"^Referenced: +(\d+) kB$", Path(f"/proc/{pid}/smaps").read_text(), re.MULTILINE)
    return sum(map(int, referenced)) * 1024 // os.sysconf("SC_PAGE_SIZE")


def executed(target: str, folder: Path) -> dict[str, float]:
    """What a request with its response costs, and a connection with one Metadata request, until it ends.

    Raises: BenchError: as `running` and `callgrind.find`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    counting = Callgrind(find(), folder / f"{target}.callgrind")
    with running(target, folder, counting.through, {**counting.environment, **_COUNTABLE_ALLOCATOR}) as (
        pid,
        at,
    ):
        proxy = psutil.Process(pid)

        def of(act: Callable[[], None]) -> ExecutionCounts:
            counting.reset(pid)
            act()
            return counting.read_counts(pid)

        def requests() -> None:
            for _ in range(_REQUESTS):
                client.ask(frame)
            _await_rest(proxy)

        def connections() -> None:
            made = [Client(at) for _ in range(_CONNECTIONS)]
            for each in made:
                each.ask(metadata_request(1))
            for each in made:
                each.close()
            _await_same(proxy.num_fds)  # all have ended

        client, frame = Client(at), produce(_RECORD_BYTES)
        counting.begin(pid)
        requests()
        # The median: at times the process also does periodic work, or two wake-ups become one.
        samples = sorted((of(requests) for _ in range(_SAMPLES)), key=lambda each: each.instructions)
        request = samples[_SAMPLES // 2]
        client.close()
        connections()
        connection = of(connections)
    return {
        "instructions_per_request": request.instructions / _REQUESTS,
        "allocations_per_request": _allocations(request) / _REQUESTS,
        "instructions_per_connection": connection.instructions / _CONNECTIONS,
        "allocations_per_connection": _allocations(connection) / _CONNECTIONS,
    }


def _allocations(done: ExecutionCounts) -> int:
    return sum(done.calls[name] for name in ("malloc", "calloc", "realloc"))


def _await_rest(proxy: psutil.Process) -> None:
    """Wait until the process is idle: its response arrives earlier."""
    while proxy.status() != psutil.STATUS_SLEEPING:
        time.sleep(_PAUSE_S)


def _await_same(number: Callable[[], int]) -> None:
    """Wait until a number has not changed for a while. Raises: BenchError: it keeps changing."""
    deadline_s = time.monotonic() + _LIMIT_S
    last, since_s = number(), time.monotonic()
    while time.monotonic() - since_s < _SETTLE_S:
        time.sleep(_PAUSE_S)
        now = number()
        if now != last:
            last, since_s = now, time.monotonic()
        if since_s > deadline_s:
            raise BenchError("connections do not end")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--worker", nargs=2, type=int, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def main(worker: tuple[int, int] | None, as_json: bool) -> None:
    """Count what one request makes a bare forwarder and a compiled worker do."""
    with tempfile.TemporaryDirectory(prefix="fleet-alone-") as made:
        folder = Path(made)
        if worker is not None:
            child.prepare_for_connections()
            uvloop.run(serve(*worker, folder))
            return
        found: dict[str, dict[str, float]] = {}
        try:
            for target in TARGETS:
                found[target] = {"pages_per_request": pages(target, folder)}
                found[target] |= executed(target, folder)
        except (FleetError, compiled.NotCompiled, OSError, subprocess.SubprocessError) as error:
            raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(found))
        return
    for target, figures in found.items():
        click.echo(f"{target:12}" + "".join(f"{value:>12,.0f} {what}" for what, value in figures.items()))


if __name__ == "__main__":
    main()
