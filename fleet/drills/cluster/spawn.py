"""Starts child processes that never outlive this process.

A child gets a session of its own: Ctrl-C on the terminal reaches only the parent, which stops its children
cleanly. A child also gets Linux's parent-death signal: the child ends even if the parent is killed.
"""

from __future__ import annotations

# Imported only for its fork hooks: they take and release a lock around each fork that runs Python code in the
# child. asyncio imports this module at its first use of an executor. If another thread forks meanwhile, the
# hook releases a lock that was not taken ("release unlocked lock").
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
        log: file to which standard output and standard error are appended.
        env: the child's whole environment; None for this process's.
        cwd: the child's working directory; None for this process's.
        piped: whether standard output is a pipe for the caller to read.
    Raises:
        DemoError: the caller is not in the main thread (the kernel sends the death signal when the *thread*
            that started the child ends), or the program cannot be started.
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
    """`spawn` for `python -m module`, with this interpreter and this copy of the project.

    Args:
        through: command that starts the module by exec, such as nsenter with its arguments.
        env: variables to add to this process's environment; a PYTHONPATH is put in front.
    """
    more, environ = dict(env or {}), with_absolute_import_path(os.environ)
    here = str(Path(fleet.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (more.get("PYTHONPATH"), here, environ.get("PYTHONPATH"))))
    command = (*through, *python_command(module), *arguments)
    return spawn(command, log, env={**environ, **more, "PYTHONPATH": path})


def tree(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """A child and all its descendants, the child first; empty if the child has ended."""
    try:
        root = psutil.Process(process.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def signal_trees(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> float:
    """Send a signal to children and all their descendants.

    One system call signals a whole process group. Descendants that have left the group follow.

    Returns: the monotonic time before the first system call, in seconds.
    """
    trees = {process.pid: tree(process) for process in processes if process.poll() is None}
    at_s = time.monotonic()
    for group in trees:
        with suppress(ProcessLookupError):
            os.killpg(group, number)
    for group, members in trees.items():
        for member in members:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(member.pid) != group:
                    member.send_signal(number)
    return at_s


def end(processes: Sequence[subprocess.Popen[bytes]], patience_s: float) -> None:
    """Send SIGTERM to children, and SIGKILL to all that are left of their process trees after a while.

    Args:
        processes: children that `spawn` started.
        patience_s: seconds between SIGTERM and SIGKILL; 0 kills at once.
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
