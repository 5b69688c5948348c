"""Runs the operator's own commands, for one member at a time, with its name and host filled in. No shell."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
from contextlib import suppress
from urllib.parse import urlsplit

from fleet.core.errors import CommandFailed, CommandTemplateError
from fleet.core.model import ProxyId

_PLACEHOLDER = re.compile(r"\{[a-z_]+\}")


def command_for(template: str, proxy_id: ProxyId, url: str, option: str = "--command") -> list[str]:
    """The words of a command for one member.

    Args:
        template: the command line; ``{proxy_id}`` and ``{host}`` (of the member's admin address) are
            replaced.
        option: the option with the template, for errors.

    Raises:
        CommandTemplateError: the template is no command line, or has an unknown name in braces.
    """
    values = {"{proxy_id}": proxy_id, "{host}": urlsplit(url).hostname or ""}
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise CommandTemplateError(f"{option} {template!r}: {error}") from error
    if not words:
        raise CommandTemplateError(f"{option} is empty")
    unknown = set(_PLACEHOLDER.findall(template)) - values.keys()
    if unknown:
        raise CommandTemplateError(
            f"{option} {template!r}: unknown {', '.join(sorted(unknown))}; use {' and '.join(values)}"
        )
    return [_PLACEHOLDER.sub(lambda found: values[found.group()], word) for word in words]


def check_program(words: list[str], option: str) -> None:
    """Check that the program of a command is on this machine. Raises: CommandTemplateError: it is not."""
    if shutil.which(words[0]) is None:
        raise CommandTemplateError(
            f"{option}: no program {words[0]} on this machine; install it or fix the path"
        )


async def run_command(words: list[str], proxy_id: ProxyId, limit_s: float | None = None) -> None:
    """Run a command to its end, even if the caller is cancelled: half a command could do harm.

    A Ctrl-C on the terminal does not reach the command.

    Raises:
        CommandFailed: the command cannot be started, fails, or does not end in time.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise CommandFailed(f"{proxy_id}: cannot start {words[0]}: {error.strerror}") from error
    ending = asyncio.ensure_future(process.communicate())
    try:
        output, _ = await asyncio.wait_for(asyncio.shield(ending), limit_s)
    except TimeoutError:
        raise CommandFailed(f"{proxy_id}: {shlex.join(words)} did not end within {limit_s:g} s") from None
    except asyncio.CancelledError:
        await asyncio.wait({ending}, timeout=limit_s)
        raise
    finally:
        if not ending.done():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await ending
    if process.returncode != 0:
        last_line = output.decode(errors="replace").strip().splitlines()[-1:]
        raise CommandFailed(
            f"{proxy_id}: {shlex.join(words)} exited with {process.returncode}: {''.join(last_line)}"
        )
