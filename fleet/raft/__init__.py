"""What stands between pysyncobj and the fleet: journal, snapshots, messages, transport and the guards around
them.
"""

from __future__ import annotations

import _socket
import socket

import pysyncobj.win_inet_pton  # noqa: F401

# That module replaces this function by one for Windows, on every system. psutil, for one, fails with it.
socket.inet_ntop = _socket.inet_ntop
