"""What a frame costs, in counts that do not depend on the machine: `python -m benchmarks.instruction_counts`.

By case, for the hot path of a session and of the two connections around it: instructions of Python, and the
most bytes that are held. For a compiled worker by itself: instructions of the processor, as a multiple of a
bare forwarder's, and allocations. For a whole member under `sync`: system calls of its worker that read and
write. `benchmarks/instruction_counts.json` holds the baseline, by version of Python; `--write` updates it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

import click

from benchmarks import fetch, isolated_worker, patch_metadata
from benchmarks.cluster import Stage, Target, staged
from benchmarks.cpu import system_calls
from benchmarks.frames import FETCH, METADATA, PRODUCE, nothing_fetched, produce, produced, request
from benchmarks.patch_metadata import READ_BYTES, Limits, directory
from benchmarks.results import FLEET
from benchmarks.workloads import Spec, sync
from fleet.core.errors import FleetError, LimitExceeded, WireError
from fleet.proxy.addresses import AddressSource
from fleet.proxy.broker_connection import BrokerConnection
from fleet.proxy.budget import Backlogs, MemoryBudget
from fleet.proxy.connection import ClientConnection
from fleet.proxy.deadlines import Deadlines
from fleet.proxy.quota import Quota
from fleet.proxy.session import Session
from fleet.proxy.splice import Pipe
from fleet.proxy.traffic import Sampling, Traffic
from fleet.proxy.turns import TurnQueue
from fleet.proxy.wire.counters import WireCounters
from tools.compiled import NotCompiled

BASELINE: Final = Path(__file__).with_suffix(".json")
TOLERANCE: Final = 0.05
"""The fraction of itself by which a figure may grow."""
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
ANY: Final = "any"
SYSTEM_CALLS: Final = "a member under sync, per request"
WORKER: Final = "a compiled worker"
ROUNDS: Final = 3
REQUESTS: Final = 4_000
"""The number of requests for which a round counts system calls."""
LARGE_BYTES: Final = 1_000_000

Counts: TypeAlias = dict[str, dict[str, float]]
"""Figures by case and by measure."""


@dataclass(frozen=True, slots=True)
class Case:
    """Frames that pass through a session.

    Args:
        frames: how many frames pass with each call of `act`.
    """

    name: str
    frames: int
    act: Callable[[], None]


def cases() -> Iterator[Case]:
    """The usual work of a proxy, and its largest response."""
    to_fetch, for_metadata = request((FETCH, 16), bytes(80)), request((METADATA, 12), bytes(20))
    yield _connection_case("Produce through connections", produce(100), produced())
    yield _connect_case("Connecting, and Metadata", for_metadata, patch_metadata.response(3, 10))
    yield _case("Produce, 100 bytes", PRODUCE, produce(100), produced())
    yield _case("Produce, 16 at a time", PRODUCE, produce(100), produced(), 16)
    yield _case("Produce, 1 MB", PRODUCE, produce(LARGE_BYTES), produced())
    yield _case("Fetch, nothing new", FETCH, to_fetch, nothing_fetched())
    yield _case("Fetch, 1 KB", FETCH, to_fetch, fetch.response(1, 0))
    yield _case("Fetch, 1 KB, head first", FETCH, to_fetch, fetch.response(1, 0), head_bytes=fetch.HEAD_BYTES)
    yield _case("Fetch, 1 MB", FETCH, to_fetch, fetch.response(1_000, 0))
    yield _case("Fetch, endpoints", FETCH, to_fetch, fetch.response(1, 3))
    for brokers, partitions in ((3, 10), (100, 10_000)):
        answer = patch_metadata.response(brokers, partitions)
        yield _case(f"Metadata, {brokers} x {partitions}", METADATA, for_metadata, answer)


def _case(
    name: str, api_key: int, request_frame: bytes, answer: bytes, frames: int = 1, head_bytes: int = 0
) -> Case:
    """Args: head_bytes: how many bytes of the response the session reads first."""
    session = Session(AddressSource(directory(100), "external", "p1"), Limits(), WireCounters(), "192.0.2.7")
    requests = _reads(request_frame * frames)
    responses = (*_reads(answer[:head_bytes]), *_reads(answer[head_bytes:] * frames))

    def write(data: bytes | memoryview) -> None:
        pass

    def act() -> None:
        for read in requests:
            session.receive_from_client(read)
        for read in responses:
            session.receive_from_broker(read, write)

    act()  # the session examines the first request of a connection more closely
    assert session.is_idle, name
    return Case(name, frames, act)


def _connection_case(name: str, request_frame: bytes, answer: bytes) -> Case:
    host, counters = _Host(), WireCounters()
    addresses = AddressSource(directory(100), "external", "p1")
    client = ClientConnection(
        host, 1, Traffic(), "external", lambda peer: Session(addresses, Limits(), counters, peer)
    )
    client.connection_made(_Transport())
    broker = BrokerConnection(host, client)
    client.data_received(request_frame)
    broker.connection_made(_Transport())

    def act() -> None:
        client.data_received(request_frame)
        broker.data_received(answer)

    broker.data_received(answer)
    act()
    assert client.session.is_idle, name
    return Case(name, 1, act)


def _connect_case(name: str, request_frame: bytes, answer: bytes) -> Case:
    host, counters, traffic = _Host(), WireCounters(), Traffic()
    addresses = AddressSource(directory(100), "external", "p1")

    def make_session(peer: str) -> Session:
        return Session(addresses, Limits(), counters, peer)

    def act() -> None:
        client = ClientConnection(host, 1, traffic, "external", make_session)
        client.connection_made(_Transport())
        client.data_received(request_frame)
        broker = BrokerConnection(host, client)
        broker.connection_made(_Transport())
        broker.data_received(answer)

    act()  # the session scans the first response of its kind
    return Case(name, 1, act)


class _Host:
    """A worker that does nothing for its connections, and samples none of them."""

    write_buffer_bytes = 1 << 20
    backlogs: Backlogs[ClientConnection]
    responses: MemoryBudget[ClientConnection]
    requests: MemoryBudget[ClientConnection]
    turns: TurnQueue
    linger_s = 1.0
    leaving: Deadlines[BrokerConnection]
    sampling = Sampling()
    pipe: Pipe | None = None

    def opened(self, _: ClientConnection) -> None: ...
    def closed(self, _: ClientConnection) -> None: ...
    def dial(self, _: ClientConnection) -> None: ...
    def broker_closed(self, _: ClientConnection) -> None: ...
    def cut(self, _: ClientConnection) -> None: ...
    def client_returned(self, _: ClientConnection) -> None: ...
    def sampled(self, _: ClientConnection) -> None: ...
    def refused(self, _: ClientConnection, error: WireError | LimitExceeded) -> None:
        raise error

    def overdrawn(self, _: ClientConnection, __: Quota) -> None: ...


class _Transport(asyncio.Transport):
    """Accepts all writes, and is never full."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def write(self, data: bytes | bytearray | memoryview) -> None: ...
    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


def _reads(data: bytes) -> tuple[bytes, ...]:
    return tuple(data[at : at + READ_BYTES] for at in range(0, len(data), READ_BYTES))


def count(case: Case) -> dict[str, float]:
    """The figures of a case for each of its frames: a request and its response."""
    return {
        "instructions": round(instructions(case.act) / case.frames, 1),
        "held_bytes": round(held_bytes(case.act) / case.frames, 1),
    }


def instructions(act: Callable[[], object]) -> int:
    """How many instructions of Python a call executes."""
    return _count_by_monitoring(act) if sys.version_info >= (3, 12) else _count_by_tracing(act)


def _count_by_tracing(act: Callable[[], object]) -> int:
    counted = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return counted


def _count_by_monitoring(act: Callable[[], object]) -> int:
    # From 3.12 on a trace does not get every instruction of a frame. mypy knows the oldest Python only.
    monitoring: Any = sys.__dict__["monitoring"]
    counted = 0

    def count_one(*_: Any) -> None:
        nonlocal counted
        counted += 1

    tool = monitoring.PROFILER_ID
    monitoring.use_tool_id(tool, "counted")
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, count_one)
    monitoring.set_events(tool, monitoring.events.INSTRUCTION)
    try:
        act()
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    return counted


def held_bytes(act: Callable[[], None]) -> int:
    """The most memory that a call takes beyond the memory in use before: what the call copies, at one time.

    Returns: the least of several calls, less the figure of an empty call. A counter that leaves Python's
        small integers takes 32 bytes in the call in which it does so, and which call that is depends on what
        was counted before.
    """
    tracemalloc.start()
    try:
        act()
        least, of_nothing = (min(_peak_bytes(each) for _ in range(ROUNDS)) for each in (act, _nothing))
        return least - of_nothing
    finally:
        tracemalloc.stop()


def _nothing() -> None:
    pass


def _peak_bytes(act: Callable[[], None]) -> int:
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    act()
    _, peak = tracemalloc.get_traced_memory()
    return peak - before


def count_compiled_worker(folder: Path) -> dict[str, float]:
    """The figures of a request and a connection, over a forwarder's with the same Python and libraries.

    Raises: BenchError, NotCompiled: as `isolated_worker.executed`.
    """
    bare, worker = (isolated_worker.executed(target, folder) for target in isolated_worker.TARGETS)
    found: dict[str, float] = {}
    for per in ("per_request", "per_connection"):
        instructions, allocations = f"instructions_{per}", f"allocations_{per}"
        found[f"{instructions}_of_forwarder"] = round(worker[instructions] / bare[instructions], 3)
        found[allocations] = round(worker[allocations], 1)
    return found


def count_calls_per_request(stage: Stage) -> float:
    """System calls of the worker of a stage's one member, under `sync`, in the round with the fewest.

    The worker also sends heartbeats and reports, and their number varies.
    """
    (target,) = stage.targets
    return min(_count_calls_per_request(stage, target) for _ in range(ROUNDS))


def _count_calls_per_request(stage: Stage, target: Target) -> float:
    topic = stage.create_topic("sync", (1,))
    work = sync(Spec("sync", target.bootstrap_servers, topic, 1, REQUESTS))
    before = system_calls(target.proxies())
    done = work()
    calls = system_calls(target.proxies()) - before
    stage.delete_topic(topic)
    return round(calls / done.requests, 2)


def find_regressions(found: Counts, before: Counts) -> list[str]:
    """The figures that have grown by more than the tolerance, or have no baseline, in words."""
    wrong = []
    for name, figures in found.items():
        for measure, value in figures.items():
            counted = before.get(name, {}).get(measure)
            if counted is None:
                wrong.append(f"{name}: {measure} {value:g}, and not counted before: see --write")
            elif value > counted * (1 + TOLERANCE):
                wrong.append(f"{name}: {measure} {value:g}, before {counted:g}: {value / counted - 1:+.0%}")
    return wrong


def read(path: Path = BASELINE) -> dict[str, Counts]:
    """The baselines by version of Python; system calls are under `any`."""
    found: dict[str, Counts] = json.loads(path.read_text()) if path.exists() else {}
    return found


def known(path: Path = BASELINE) -> Counts:
    """The baseline of this Python; a case that was not counted is missing."""
    baselines = read(path)
    return {**baselines.get(PYTHON, {}), **baselines.get(ANY, {})}


def write(found: Counts, path: Path = BASELINE) -> None:
    """Make figures the baseline."""
    baselines = read(path)
    for name, figures in found.items():
        baselines.setdefault(ANY if name == SYSTEM_CALLS else PYTHON, {})[name] = figures
    path.write_text(json.dumps(baselines, indent=2, sort_keys=True) + "\n")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--core", is_flag=True, help="Count the session only: without Kafka, and in a second.")
@click.option("--write", "keep", is_flag=True, help="Make the new counts the baseline.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def main(core: bool, keep: bool, as_json: bool) -> None:
    """Count what a frame costs, and compare it with the baseline.

    Exit code 1: a figure has grown by more than 5 %.
    """

    found = {case.name: count(case) for case in cases()}
    try:
        if not core:
            with tempfile.TemporaryDirectory(prefix="fleet-counted-") as made:
                folder = Path(made)
                say("counting instructions and allocations of a compiled worker")
                found[WORKER] = count_compiled_worker(folder / "worker")
                with staged(folder, (FLEET,), {}, say) as stage:
                    say("counting system calls")
                    found[SYSTEM_CALLS] = {"system_calls": count_calls_per_request(stage)}
    except (FleetError, NotCompiled) as error:
        raise click.ClickException(str(error)) from error
    if keep:
        write(found)
    wrong = find_regressions(found, known())
    if as_json:
        click.echo(json.dumps({"python": PYTHON, "counted": found, "grown": wrong}))
    else:
        for name, figures in found.items():
            click.echo(f"{name:34}" + "".join(f"{value:>14,.6g} {what}" for what, value in figures.items()))
    for each in wrong:
        say(each)
    sys.exit(1 if wrong else 0)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
