"""Members in network namespaces of their own, each at the end of a cable that can be pulled.

    with Cables(fleet) as cables:     # before the fleet starts
        cables.pull("p2")             # all packets are lost, without an error
        cables.plug("p2")
        with cables.losing(20):       # members randomly lose one of 20 received packets
            cables.lost()

Needs root and iproute2. Brokers and clients stay outside: a route leads to 127.77.0.0/16.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

import yaml

from fleet.config.file import load
from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LISTENER, LocalFleet

BROKERS = "127.77.0.0/16"
_SUBNET = f"10.213.{os.getpid() % 256}"


class Unavailable(Exception):
    """This machine cannot create network namespaces."""


class Cables:
    """A switch, and a cable from it to each member of a fleet, whose links must be secured.

    Raises: Unavailable: on entering.
    """

    def __init__(self, fleet: LocalFleet) -> None:
        self._fleet = fleet
        self._switch = f"flt{os.getpid()}"
        self._spaces = {each: f"{self._switch}-{each}" for each in fleet.members}
        self._ports = {each: f"{self._switch}{each}" for each in fleet.members}
        self._hosts = {each: f"{_SUBNET}.{10 + number}" for number, each in enumerate(fleet.members)}

    def pull(self, proxy_id: ProxyId) -> float:
        """Unplug a member. Returns: the monotonic time before, in seconds."""
        pulled_s = time.monotonic()
        _ip("link", "set", self._ports[proxy_id], "down")
        return pulled_s

    def plug(self, proxy_id: ProxyId) -> None:
        _ip("link", "set", self._ports[proxy_id], "up")

    @contextmanager
    def losing(self, one_in: int) -> Iterator[None]:
        """Let every cable lose one of N packets to its member. Raises: RuntimeError"""
        with ExitStack() as stack:
            for proxy_id in self._fleet.members:
                _run(*self._loss(proxy_id), "lose", str(one_in))
                stack.callback(_run, *self._loss(proxy_id), "heal")
            yield

    def lost(self) -> dict[ProxyId, int]:
        """Number of lost packets, by member."""
        return {each: int(_run(*self._loss(each), "lost")) for each in self._fleet.members}

    def __enter__(self) -> Cables:
        if shutil.which("ip") is None or shutil.which("nsenter") is None:
            raise Unavailable("there is no ip, or no nsenter")
        try:
            _ip("link", "add", self._switch, "type", "bridge")
        except RuntimeError as error:
            raise Unavailable(str(error)) from error
        try:
            _ip("addr", "add", f"{_SUBNET}.1/24", "dev", self._switch)
            _ip("link", "set", self._switch, "up")
            _allow_loopback(self._switch)
            for proxy_id in self._fleet.members:
                self._lay(proxy_id)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self._move_in()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A cable ends with its namespace, too, but only after the kernel has removed the namespace.
        for port in (*self._ports.values(), self._switch):
            subprocess.run(["ip", "link", "del", port], capture_output=True, check=False)
        for space in self._spaces.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def _lay(self, proxy_id: ProxyId) -> None:
        """Create a namespace with one cable, and a route to the brokers."""
        space, port = self._spaces[proxy_id], self._ports[proxy_id]
        _ip("netns", "add", space)
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", port, "master", self._switch, "up")
        _ip("-n", space, "addr", "add", f"{self._hosts[proxy_id]}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", space, "link", "set", device, "up")
        _ip("-n", space, "route", "del", "local", "127.0.0.0/8", "dev", "lo", "table", "local")
        _ip("-n", space, "route", "add", BROKERS, "via", f"{_SUBNET}.1")
        _allow_loopback("eth0", *self._enter(proxy_id))

    def _enter(self, proxy_id: ProxyId) -> tuple[str, ...]:
        return ("nsenter", f"--net=/run/netns/{self._spaces[proxy_id]}")

    def _loss(self, proxy_id: ProxyId) -> tuple[str, ...]:
        return (*self._enter(proxy_id), sys.executable, "-m", "tests.chaos.loss")

    def _move_in(self) -> None:
        """Let members bind and advertise the address at the end of their cable."""
        document = yaml.safe_load(self._fleet.config.read_text())
        document["admin"] = {"open_to_read": True}
        for proxy_id, host in self._hosts.items():
            member = document["members"][proxy_id]
            listener = member["listeners"][LISTENER]
            for place, key in ((member, "peer"), (member, "admin"), (listener, "bind")):
                place[key] = f"{host}:{place[key].rpartition(':')[2]}"
            self._fleet.through[proxy_id] = self._enter(proxy_id)
        self._fleet.config.write_text(yaml.safe_dump(document, sort_keys=False))
        self._fleet.settings = load(self._fleet.config, {})


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _allow_loopback(device: str, *through: str) -> None:
    """Allow packets from and to 127.0.0.0/8 on a device."""
    _run(*through, "sh", "-c", f"echo 1 > /proc/sys/net/ipv4/conf/{device}/route_localnet")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
