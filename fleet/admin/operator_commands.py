"""The operator's own commands: for one member after the other, with its name and host put in. No shell."""

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
        template: ``{proxy_id}`` and ``{host}`` (of the member's admin address) are put in.
        option: where the operator has written it.

    Raises:
        TemplateError: it is no command line, or names something else in braces.
    """
    values = {"{proxy_id}": proxy_id, "{host}": urlsplit(url).hostname or ""}
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise CommandTemplateError(f"{option} {template!r}: {error}") from error
    if not words:
        raise CommandTemplateError(f"{option} is empty")
    strange = set(_PLACEHOLDER.findall(template)) - values.keys()
    if strange:
        raise CommandTemplateError(
            f"{option} {template!r}: knows {' and '.join(values)}, not {', '.join(sorted(strange))}"
        )
    return [_PLACEHOLDER.sub(lambda found: values[found.group()], word) for word in words]


def check_program(words: list[str], option: str) -> None:
    """Raises: TemplateError: the program of a command is not on this machine."""
    if shutil.which(words[0]) is None:
        raise CommandTemplateError(f"{option}: there is no program {words[0]} here")


async def run_command(words: list[str], proxy_id: ProxyId, limit_s: float | None = None) -> None:
    """Run a command to its end, also where the caller is cancelled meanwhile: half of it could do harm.

    A Ctrl-C on the terminal does not reach it.

    Raises:
        CommandFailed: it cannot be started, fails, or is not through in time.
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
        raise CommandFailed(f"{proxy_id}: {words[0]} cannot be started: {error.strerror}") from error
    ending = asyncio.ensure_future(process.communicate())
    try:
        said, _ = await asyncio.wait_for(asyncio.shield(ending), limit_s)
    except TimeoutError:
        raise CommandFailed(f"{proxy_id}: {shlex.join(words)} is not through after {limit_s:g} s") from None
    except asyncio.CancelledError:
        await asyncio.wait({ending}, timeout=limit_s)
        raise
    finally:
        if not ending.done():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await ending
    if process.returncode != 0:
        last = said.decode(errors="replace").strip().splitlines()[-1:]
        raise CommandFailed(
            f"{proxy_id}: {shlex.join(words)} exited with {process.returncode}: {''.join(last)}"
        )
