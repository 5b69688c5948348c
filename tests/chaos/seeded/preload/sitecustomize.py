"""Makes a member's control process fail on command. Python imports this module first if it is on its path.

A file that the environment names lists the present failures as JSON: ``{"names": "gone" | "slow"}``,
``{"routes": "gone"}``, or nothing. See `tests.chaos.seeded.local_faults`.
"""

import errno
import json
import os
import socket
import sys
import time
from typing import Any

SLOW_S = 5.0

_FILE = os.environ.get("PYTHONFLEETFAULTS")


def _faults() -> dict[str, str]:
    try:
        with open(_FILE or "", encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return {}


def _install() -> None:
    import uvloop

    look_up, sock_connect = socket.getaddrinfo, uvloop.Loop.sock_connect

    def getaddrinfo(*arguments: Any, **named: Any) -> Any:
        if named.get("flags", 0) & socket.AI_NUMERICHOST:
            return look_up(*arguments, **named)  # no name: no resolver is used
        names = _faults().get("names")
        if names == "gone":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if names == "slow":
            time.sleep(SLOW_S)
        return look_up(*arguments, **named)

    async def connect(self: Any, sock: socket.socket, address: Any) -> Any:
        if _faults().get("routes") == "gone":
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        return await sock_connect(self, sock, address)

    socket.getaddrinfo, uvloop.Loop.sock_connect = getaddrinfo, connect


if _FILE and "fleet.control" in sys.orig_argv:
    _install()
