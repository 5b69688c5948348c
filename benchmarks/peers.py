"""The other proxies of the benchmark, as `peers.yaml` describes them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Final, TypeVar

import psutil
import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from benchmarks import haproxy
from benchmarks.errors import BenchError
from fleet.core.model import BrokerId, Endpoint
from fleet.drills.cluster.spawn import end, spawn, tail, tree

PEERS: Final = Path(__file__).with_name("peers.yaml")
TLS_PEERS: Final = PEERS.with_name("peers_tls.yaml")
_Read = TypeVar("_Read")


@validated(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class PeerLine:
    """One entry of the file; the head of the file explains the fields."""

    start: str | None = None
    process: int | str | None = None
    forwards: bool = False
    bootstrap: str = "$listen_1,$listen_2,$listen_3"
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.start is None and self.process is None:
            raise ValueError("a peer requires start, the command, or process, the id of a running process")


_PEERS: Final = TypeAdapter(dict[str, PeerLine])
_SIDES: Final = TypeAdapter(dict[str, dict[str, PeerLine]])


def load(path: Path = PEERS) -> dict[str, PeerLine]:
    """The peers of a file, by name. Raises: BenchError: the file is not valid."""
    return _load(path, _PEERS)


def load_sides(path: Path = TLS_PEERS) -> dict[str, dict[str, PeerLine]]:
    """The peers that speak TLS, by the sides on which they do, and by name. Raises: BenchError: as `load`."""
    return _load(path, _SIDES)


def _load(path: Path, kind: TypeAdapter[_Read]) -> _Read:
    try:
        return kind.validate_python(yaml.safe_load(path.read_text()) or {})
    except (OSError, yaml.YAMLError, ValidationError, RecursionError) as error:
        raise BenchError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True)
class PeerPlaces:
    """The addresses and files of one peer.

    Args:
        listens: by broker, the free address at which the peer listens.
        brokers: the address of each broker.
        files: further files that its command or configuration may name, by name.
    """

    listens: Mapping[BrokerId, Endpoint]
    brokers: Mapping[BrokerId, Endpoint]
    folder: Path
    files: Mapping[str, Path] = field(default_factory=dict)


class Peer:
    """One peer as a process."""

    def __init__(self, name: str, line: PeerLine, places: PeerPlaces) -> None:
        self.name = name
        self._line = line
        self._folder = places.folder
        self._log = places.folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._values = {
            **{f"listen_{broker_id}": str(at) for broker_id, at in places.listens.items()},
            **{f"broker_{broker_id}": str(at) for broker_id, at in places.brokers.items()},
            **{name: str(path) for name, path in places.files.items()},
            "folder": str(places.folder),
            "python": sys.executable,
        }
        if line.start is not None and "$haproxy" in line.start:
            self._values["haproxy"] = str(haproxy.find())

    @property
    def bootstrap_servers(self) -> str:
        return self.fill(self._line.bootstrap)

    def fill(self, text: str) -> str:
        """Replace the `$names`. Raises: BenchError: there is no such name."""
        try:
            return Template(text).substitute(self._values)
        except (KeyError, ValueError) as error:
            raise BenchError(f"peer {self.name}: {error} in {text!r}") from error

    def start(self) -> None:
        """Write its files and start its command, if it has one; does not wait; from the main thread."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, text in self._line.files.items():
            (self._folder / name).write_text(self.fill(text))
        if self._line.start is not None:
            self._process = spawn(shlex.split(self.fill(self._line.start)), self._log)

    def pids(self) -> tuple[int, ...]:
        """Its processes. Raises: BenchError: the peer has ended, or its process cannot be found."""
        if self._line.process is not None:
            return self._named_pids(str(self._line.process))
        if self._process is None or self._process.poll() is not None:
            raise BenchError(f"{self.name} does not run; {self._log} ends with:\n{tail(self._log)}")
        return tuple(each.pid for each in tree(self._process))

    def _named_pids(self, process: str) -> tuple[int, ...]:
        """The processes of an id, or of a file that holds an id."""
        named = self.fill(process)
        try:
            root = psutil.Process(int(named if named.isdigit() else Path(named).read_text()))
            return tuple(each.pid for each in (root, *root.children(recursive=True)))
        except (OSError, ValueError, psutil.NoSuchProcess) as error:
            raise BenchError(f"peer {self.name}: process {named}: {error}") from error

    def stop(self) -> None:
        if self._process is not None:
            end([self._process], 0.0)
