"""A workload's process: an idempotent librdkafka producer and a Java share group (KIP-932)."""

from __future__ import annotations

import json
import signal
import sys
import threading

from fleet.drills.workload.clients import WorkloadSpec, produce
from tests.chaos.seeded.client_kafka_tools import Member


def main() -> None:
    """Run the workload of the command line's one argument until SIGTERM."""
    spec = WorkloadSpec(**json.loads(sys.argv[1]))
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    member = Member("VerifiableShareConsumer", spec, "--offset-reset-strategy", "earliest")
    produce(spec, stopping)
    member.stop()


if __name__ == "__main__":
    main()
