"""Peers that a benchmark starts, and the forwarder of its baseline: over sockets of this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.cpu import process_cpu_s
from benchmarks.errors import BenchError
from benchmarks.peers import Peer
from fleet.core.model import Endpoint
from fleet.drills.cluster.ports import free_ports
from tests.benchmarks.test_benchmarks import PEERS_OF_TWO, places


def test_a_peer_is_started_with_its_files_and_addresses_and_ends(tmp_path: Path) -> None:
    line = peers.PeerLine(
        start="$python -c 'import time; time.sleep(600)'", files={"conf": "$listen_2 -> $broker_2 at 5$$"}
    )
    where = places(tmp_path)
    peer = Peer("it", line, where)
    assert peer.bootstrap_servers == ",".join(map(str, where.listens.values()))
    peer.start()
    try:
        (pid,) = peer.pids()
        assert process_cpu_s(pid) >= 0
        assert (tmp_path / "conf").read_text() == f"{where.listens[2]} -> 127.0.0.9:9002 at 5$"
    finally:
        peer.stop()
    with pytest.raises(BenchError, match="it does not run"):
        peer.pids()


@pytest.mark.parametrize("in_a_file", [False, True])
def test_a_peer_that_runs_already_is_measured_by_its_process(tmp_path: Path, in_a_file: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        (tmp_path / "pid").write_text(f"{process.pid}\n")
        named = "$folder/pid" if in_a_file else process.pid
        peer = Peer("it", peers.PeerLine(process=named, bootstrap="127.0.0.1:9"), places(tmp_path))
        peer.start()
        assert peer.bootstrap_servers == "127.0.0.1:9"
        assert peer.pids() == (process.pid,)
        peer.stop()
        assert process.poll() is None, "it is not ours to end"
        process.kill()
    with pytest.raises(BenchError, match=r"peer it: process .*(pid|no longer)"):
        peer.pids()


@pytest.mark.parametrize("text", ["", "no number", "999999999"])
def test_invalid_process_file_of_a_peer_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "pid").write_text(text)
    peer = Peer("it", peers.PeerLine(process="$folder/pid"), places(tmp_path))
    with pytest.raises(BenchError, match="peer it: process"):
        peer.pids()


def test_a_peer_that_ends_by_itself_shows_what_it_said(tmp_path: Path) -> None:
    peer = Peer("it", peers.PeerLine(start="$python -c 'print(1 / 0)'"), places(tmp_path))
    peer.start()
    with pytest.raises(BenchError, match="ZeroDivisionError"):
        ask_until_it_has_ended(peer)


def ask_until_it_has_ended(peer: Peer) -> None:
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        peer.pids()
        time.sleep(0.01)


@pytest.mark.parametrize("text", ["$broker_4", "$", "${nothing}"])
def test_unknown_placeholder_of_a_peer_is_reported(tmp_path: Path, text: str) -> None:
    with pytest.raises(BenchError, match="peer it"):
        Peer("it", peers.PeerLine(start="x"), places(tmp_path)).fill(text)


@pytest.fixture
def upstream() -> Iterator[tuple[Endpoint, threading.Thread]]:
    """A server that returns, in upper case, all bytes of one client until end of file; and its thread."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data.upper())

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Endpoint(*listening.getsockname()[:2]), thread


@pytest.mark.parametrize("name", ["forwarder", "forwarder-2"])
def test_the_forwarder_forwards_both_ways_and_closes(
    upstream: tuple[Endpoint, threading.Thread], tmp_path: Path, name: str
) -> None:
    endpoint, serving = upstream
    lines = peers.load(PEERS_OF_TWO)
    (port,) = free_ports(1)
    route = f"127.0.0.1:{port}/{endpoint}"
    start = lines[name].start
    assert start is not None
    line = peers.PeerLine(start=start.partition("$listen_1")[0] + route)
    peer = Peer(name, line, places(tmp_path))
    peer.start()
    try:
        client = connect(port)
        client.settimeout(20)
        with client:
            sent = b"a kafka request" * 5_000
            client.sendall(sent)  # before the connection can have reached the upstream
            received = b""
            while len(received) < len(sent):
                received += client.recv(1 << 16)
            assert received == sent.upper()
        serving.join(20)
        assert not serving.is_alive()
        assert len(peer.pids()) == (2 if name == "forwarder-2" else 1)
    finally:
        peer.stop()


def connect(port: int) -> socket.socket:
    deadline_s = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=20)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
