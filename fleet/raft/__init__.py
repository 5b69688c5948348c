"""The fleet's Raft on top of pysyncobj: journal, snapshots, messages, transport and guards."""

from __future__ import annotations

import _socket
import socket

import pysyncobj.win_inet_pton  # noqa: F401

# That module replaces this function by one for Windows, on every system. psutil, for example, fails with it.
socket.inet_ntop = _socket.inet_ntop
