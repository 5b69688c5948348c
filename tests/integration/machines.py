"""An operator's machines, for lines of the pages: a folder, a fleet with a file there, and programs on PATH.

All members run here. `Machines.run` gives one line to a shell and meanwhile does what its `systemctl` says:
members have to be started from the main thread (see `fleet.drills.cluster.spawn`).
"""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from fleet.admin.rolling_restart import unrest
from fleet.config.file import load
from fleet.core.errors import AdminError
from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.tls.access import access_to
from tests.chaos.harness import is_fully_linked
from tests.chaos.manager import Manager
from tests.conftest import restore_fleet
from tests.integration import stand_in
from tools.bootstrap import KCAT, ROOT

LIMIT_S: Final = 240.0
RESTARTED_AFTER_S: Final = 1.0
"""The restart delay of a killed member, like RestartSec of deploy/systemd."""


class Machines:
    """All machines of an operator in one object.

    Args:
        fleet: in whose folder lines are run; it need not run yet.
    """

    def __init__(self, fleet: LocalFleet, kafka: KafkaCluster) -> None:
        self.fleet = fleet
        self.kafka = kafka
        self.folder = fleet.config.parent
        self._due: dict[ProxyId, float] = {}
        actions = (self._start, self._start, self._restart, self._stop, self._kill)
        self._actions = dict(zip(stand_in.VERBS, actions, strict=True))
        self._make()

    def _make(self) -> None:
        self.fleet.data.mkdir(exist_ok=True)
        for place in ("etc/systemd/system", "opt/fleet", "var/lib/fleet"):
            (self.folder / place).mkdir(parents=True)
        self._bin = self.folder / "bin"
        self._bin.mkdir()
        stand_in_py = str(Path(stand_in.__file__).resolve())
        programs: dict[str, tuple[str, ...]] = {
            name: (sys.executable, stand_in_py, name) for name in stand_in.STAND_INS
        }
        programs |= {
            "fleet": (sys.executable, "-m", "fleet"),
            "kcat": (str(KCAT),),
        }
        for name, command in programs.items():
            self.script(f"bin/{name}", f'exec {shlex.join(command)} "$@"')
        for name in ("deploy", "requirements"):
            (self.folder / name).symlink_to(ROOT / name)
        # An answer that reports a failing check is a failure here, though not for curl.
        (self.folder / ".curlrc").write_text("fail\nsilent\nshow-error\n")

    def script(self, name: str, text: str) -> None:
        """Put a program into the folder."""
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    # ------------------------------------------------------------------------------------------- lines

    def run(self, line: str, *, answer: str | None = None, until: str | None = None) -> tuple[int, str]:
        """Run a line in a shell, and carry out its requests to the service manager meanwhile.

        Args:
            answer: what is typed on a terminal; without one there is none.
            until: what it prints before Ctrl-C is pressed.
        Returns: its exit code, and all that it has printed.
        """
        output_file = self.folder / "said"
        deadline_s = time.monotonic() + LIMIT_S
        manager = Manager(self.fleet, self.fleet.data, self._actions)  # its path is short enough for a socket
        with output_file.open("w") as output, _typed(answer) as typed, manager:
            process = subprocess.Popen(
                ["bash", "-c", f"set -o pipefail\n{line}"],
                cwd=self.folder,
                env=self._environment(),
                stdin=typed,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

            awaited = until

            def is_running() -> bool:
                nonlocal awaited
                self._restart_the_killed()
                if awaited is not None and awaited in output_file.read_text(errors="replace"):
                    awaited = None
                    os.killpg(process.pid, signal.SIGINT)
                assert time.monotonic() < deadline_s, output_file.read_text(errors="replace")
                return process.poll() is None

            try:
                manager.serve_while(is_running)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
        return code, output_file.read_text(errors="replace")

    def _environment(self) -> Mapping[str, str]:
        file_descriptors = {
            "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "STAND_INS": str(self.fleet.data),
            "HOME": str(self.folder),
            "TERM": "xterm",
            "FORCE_COLOR": "1",  # for `fleet top`, whose output is not a terminal here
        }
        return {**os.environ, **file_descriptors}

    # ----------------------------------------------------------------------------------------- members

    def up(self) -> None:
        """Start all members, and wait until they are linked and at rest."""
        self._due.clear()
        self._let_in()
        restore_fleet(self.fleet, self.kafka)
        self.fleet.wait_until(lambda: is_fully_linked(self.fleet) and self._at_rest(), "every link, and rest")

    def _at_rest(self) -> bool:
        """Check the fleet once, as a game day does before it begins."""
        documents = {each: self.fleet.try_ownership(each) for each in self.fleet.members}
        answers = {each: document for each, document in documents.items() if document is not None}
        return len(answers) == len(documents) and not unrest(answers)

    def begin(self, proxy_id: ProxyId) -> None:
        """Run ``fleet node`` for one member, which answers before the others exist."""
        self._let_in()
        self.end(proxy_id)
        self.fleet.start(proxy_id)
        self.fleet.wait_until(lambda: self._answers(proxy_id), f"{proxy_id} answers")

    def end(self, proxy_id: ProxyId) -> None:
        if proxy_id in self.fleet.running:
            self.fleet.kill(proxy_id)

    def installed(self, proxy_id: ProxyId, file: Path) -> None:
        """Let a member use its own configuration file from its next start on."""
        self.fleet.own_config[proxy_id] = file

    def _let_in(self) -> None:
        """Use the present tokens and authority: the lines of a page may have made them."""
        self.fleet.access = access_to(self.fleet.settings, {})

    def _answers(self, proxy_id: ProxyId) -> bool:
        try:
            return self.fleet.get(proxy_id, "/healthz")[0] > 0
        except AdminError:
            return False

    def _start(self, proxy_id: ProxyId) -> None:
        assert proxy_id in self.fleet.members, f"there is no member {proxy_id}"
        if proxy_id not in self.fleet.running:
            self.fleet.start(proxy_id)

    def _restart(self, proxy_id: ProxyId) -> None:
        self._stop(proxy_id)
        self._start(proxy_id)

    def _stop(self, proxy_id: ProxyId) -> None:
        assert self.fleet.stop(proxy_id) == 0

    def _kill(self, proxy_id: ProxyId) -> None:
        self.fleet.kill(proxy_id)
        self._due[proxy_id] = time.monotonic() + RESTARTED_AFTER_S

    def _restart_the_killed(self) -> None:
        for proxy_id in [each for each, at_s in self._due.items() if at_s <= time.monotonic()]:
            del self._due[proxy_id]
            self._start(proxy_id)


@contextmanager
def _typed(answer: str | None) -> Iterator[int]:
    if answer is None:
        yield subprocess.DEVNULL
        return
    terminal, theirs = pty.openpty()
    try:
        os.write(terminal, answer.encode())
        yield theirs
    finally:
        os.close(theirs)
        os.close(terminal)


@contextmanager
def opened(fleet: LocalFleet, kafka: KafkaCluster) -> Iterator[Machines]:
    """Run the machines of a fleet until the block ends."""
    machines = Machines(fleet, kafka)
    try:
        yield machines
    finally:
        fleet.close()
        fleet.remove_data()


def with_file(fleet: LocalFleet, change: Callable[[dict[str, Any]], None]) -> LocalFleet:
    """Set another configuration file for a fleet that does not run yet."""
    document = yaml.safe_load(fleet.config.read_text())
    change(document)
    fleet.config.write_text(yaml.safe_dump(document, sort_keys=False))
    fleet.settings = load(fleet.config, {})
    return fleet
