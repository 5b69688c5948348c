"""Child processes that never outlive the process that started them.

A child gets its own session (so that Ctrl-C on the terminal reaches the parent alone, which then stops things
in order) and Linux's parent-death signal (so that it ends even when the parent is killed and stops nothing).
"""

from __future__ import annotations

# Imported for its fork hooks alone: they take and release a lock around each fork that runs Python code in
# the child. asyncio imports the module at its first use of an executor, and where that falls into a fork of
# another thread, the lock is released without having been taken ("release unlocked lock").
import concurrent.futures.thread  # noqa: F401
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

import fleet
from fleet.core.errors import DemoError
from fleet.runtime.child import die_with_parent, python_command, with_absolute_import_path


def spawn(
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    piped: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a child that dies with this process and writes its output to a file.

    Args:
        command: program and arguments.
        log: where standard output and error are appended to.
        env: its whole environment; this process's where None.
        cwd: its working directory; this process's where None.
        piped: leave standard output to the caller to read.
    Raises:
        DemoError: called outside the main thread (the kernel sends the death signal when the *thread* that
            started the child ends), or the program cannot be started.
    """
    if threading.current_thread() is not threading.main_thread():
        raise DemoError(f"{command[0]} must be started from the main thread")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else output,
                stderr=output,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        except OSError as error:
            raise DemoError(f"cannot start {command[0]}: {error.strerror or error}") from error


def spawn_module(
    module: str,
    *arguments: str,
    log: Path,
    through: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """`spawn` for `python -m module`, with this interpreter and this very code of the project.

    Args:
        through: a program that becomes the module, and its arguments, as nsenter does.
        env: what its environment has more than this process's; a path for Python comes first in it.
    """
    more, environ = dict(env or {}), with_absolute_import_path(os.environ)
    here = str(Path(fleet.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (more.get("PYTHONPATH"), here, environ.get("PYTHONPATH"))))
    command = (*through, *python_command(module), *arguments)
    return spawn(command, log, env={**environ, **more, "PYTHONPATH": path})


def tree(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """A child and all its descendants, the child first; empty where it is gone."""
    try:
        root = psutil.Process(process.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def signal_trees(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> float:
    """Send a signal to children and all their descendants, in one go.

    A process group gets it in one system call; descendants that have left the group follow.

    Returns: the monotonic time right before the first one.
    """
    trees = {process.pid: tree(process) for process in processes if process.poll() is None}
    at_s = time.monotonic()
    for group in trees:
        with suppress(ProcessLookupError):
            os.killpg(group, number)
    for group, everyone in trees.items():
        for member in everyone:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(member.pid) != group:
                    member.send_signal(number)
    return at_s


def end(processes: Sequence[subprocess.Popen[bytes]], patience_s: float) -> None:
    """Ask children to end, and kill with all their descendants those that have not in time.

    Args:
        processes: children made by `spawn`.
        patience_s: how long they have between SIGTERM and SIGKILL; 0 kills at once.
    """
    descendants = [member for process in processes for member in tree(process)[1:]]
    if patience_s > 0:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        deadline_s = time.monotonic() + patience_s
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.0, deadline_s - time.monotonic()))
    signal_trees(processes, signal.SIGKILL)
    for member in descendants:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    for process in processes:
        process.wait()
    psutil.wait_procs(descendants, timeout=5)


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, for an error message."""
    if not log.exists():
        return "(no log was written)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
