"""Members whose standard error is a full pipe: they serve, take over and drain as usual."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.conftest import PATIENT_TIMING, StartLoad
from tests.chaos.harness import ADVERTISED_LIMIT_S

pytestmark = pytest.mark.size("test-all")

STALLED_IDS = ("p1", "p2")
HTTP_REQUEST = b"GET / HTTP/1.1\r\n\r\n"
BEHIND_A_FULL_PIPE = """
import os, sys
reading, writing = os.pipe()
os.set_blocking(writing, False)
try:
    while True:
        os.write(writing, b"x" * 4096)
except BlockingIOError:
    pass
os.set_blocking(writing, True)
os.set_inheritable(reading, True)
os.dup2(writing, 2)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_members_with_an_unread_log_keep_working(
    kafka: KafkaCluster, tmp_path: Path, start_load: StartLoad
) -> None:
    """Found: the first log line that blocked on a full pipe stopped each process, even for SIGTERM."""
    fleet = LocalFleet(tmp_path / "fleet", kafka.endpoints, timing=PATIENT_TIMING)
    for each in STALLED_IDS:
        fleet.through[each] = (sys.executable, "-c", BEHIND_A_FULL_PIPE)
    with fleet:
        fleet.await_settled(frozenset(kafka.brokers))
        with start_load(fleet) as harness:
            for each in STALLED_IDS:
                endpoint = fleet.bootstrap_endpoint(each)
                with socket.create_connection((endpoint.host, endpoint.port)) as stranger:
                    stranger.sendall(HTTP_REQUEST)
                    assert stranger.recv(1) == b""
            killed_at_s = fleet.kill("p3")
            harness.await_advertised(STALLED_IDS, killed_at_s, ADVERTISED_LIMIT_S)
            harness.await_flow()
            assert fleet.stop("p2") == 0
            harness.await_flow()
        assert fleet.stop("p1") == 0
    fleet.remove_data()
