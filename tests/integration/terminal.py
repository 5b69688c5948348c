"""A command of the fleet in a terminal: the screens that it shows, one after the other."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final

from tests.integration.clients import wait_for
from tests.integration.conftest import ROOT

LINES, COLUMNS = 50, 160
HOME: Final = "\x1b[H"
OTHER_SCREEN, FORMER_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Run `fleet` with some arguments until the block ends."""

    def __init__(self, *arguments: str) -> None:
        self._written = ""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
        for name in ("LINES", "COLUMNS", "NO_COLOR"):
            environ.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fleet", *arguments], stdin=slave, stdout=slave, stderr=slave, env=environ
        )
        os.close(slave)
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        while True:
            try:
                written = os.read(self._master, 1 << 16)
            except OSError:
                return  # the other end is closed
            if not written:
                return
            self._written += written.decode(errors="replace")

    @property
    def shown(self) -> str:
        """The newest screen."""
        return CONTROL.sub("", self._written.rpartition(HOME)[2])

    @property
    def left(self) -> bool:
        """Whether the command entered, and left, the alternate screen."""
        written = self._written
        return OTHER_SCREEN in written and written.rfind(FORMER_SCREEN) > written.rfind(HOME)

    def await_all(self, *patterns: str) -> None:
        """Wait until all texts are on one screen."""

        def there() -> bool:
            shown = self.shown
            return all(re.search(each, shown) for each in patterns)

        self._wait(there, f"{patterns} in the terminal")

    def await_none(self, pattern: str) -> None:
        """Wait until a text is missing from a screen that is not empty."""
        self._wait(lambda: self.shown.strip() and not re.search(pattern, self.shown), f"no {pattern}")

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        try:
            wait_for(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows:\n{self.shown}") from None

    def interrupt(self) -> int:
        """Send SIGINT, as Ctrl-C does. Returns: the exit code."""
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(30)
        self._reading.join(30)
        return code

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reading.join(30)
        os.close(self._master)
