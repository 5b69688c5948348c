"""The process of one worker: `python -m fleet.proxy DESCRIPTOR`, started by the supervisor."""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from fleet.proxy.worker import Worker
from fleet.runtime import child, stderr_log
from fleet.runtime.child import ChildSpec


async def serve(spec: ChildSpec) -> None:
    """Run a worker in this process until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    heart = child.Heart(spec.heartbeat_fd, spec.lifeline_fd)
    try:
        await Worker(spec).run(stop)
    finally:
        heart.stop()


def main() -> None:
    spec = child.spec_from_argv(sys.argv)
    child.die_with_parent(spec.parent_pid)
    stderr_log.log_to_stderr(f"{spec.proxy_id}/{spec.name}")
    child.prepare_for_connections()
    uvloop.run(serve(spec))


if __name__ == "__main__":
    main()
