"""A workload's process: the Java client with an idempotent producer and a group that commits all records."""

from __future__ import annotations

import json
import signal
import sys
import threading

from fleet.drills.workload.clients import WorkloadSpec
from tests.chaos.seeded.client_kafka_tools import Member, Producer

_EVERY_S = 0.1


def main() -> None:
    """Run the workload of the command line's one argument until SIGTERM."""
    spec = WorkloadSpec(**json.loads(sys.argv[1]))
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    member = Member("VerifiableConsumer", spec, "--group-protocol", spec.group_protocol)
    producer = Producer(spec)
    while not stopping.wait(_EVERY_S):
        member.check()
        producer.check()
    producer.stop()
    member.stop()


if __name__ == "__main__":
    main()
