"""The fleet as it changes, in a terminal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

import click
from rich.console import Console
from rich.live import Live

from fleet.admin import client
from fleet.admin.documents import LIVE, LiveDocument
from fleet.cli.options import member_options
from fleet.cli.output import OK, UNREACHABLE, print_document, print_progress
from fleet.cli.render.tables import duration
from fleet.cli.render.top import print_live, screen
from fleet.cli.targets import load_settings, target_urls
from fleet.core.errors import AdminError, FleetError
from fleet.tls.access import Access, access_to

AGAIN_S: Final = 1.0
"""After all have been asked, and none has answered."""
SILENT_S: Final = 3.0
"""Without a word for that long, what is shown is said to be old; who tells says something every second."""
ONCE_LIMIT_S: Final = 15.0
"""For rates to be known: a member that is asked in vain takes some of it."""

Show = Callable[[LiveDocument, float], None]
"""Is told the newest document, and for how long nothing has come after it: 0 when it is new."""


@click.command(
    short_help="Watch the fleet as it changes.",
    epilog="\b\nExamples:\n  fleet top\n  fleet top --once --json\n  fleet top --admin 127.0.0.1:7201 --json",
)
@click.option("--once", is_flag=True, help="Print it once, as soon as rates are known, and end.")
@member_options
def top(config: str, admin: str | None, as_json: bool, once: bool) -> int:
    """Show who stands for which broker, what passes them and what moves, until Ctrl-C.

    One member tells it; when that one goes, another one does. The same is on the page of every admin
    address. With --json a line is one document. Exits with 3 where no member answers at the start, and
    with --once where rates are not known in time.
    """
    settings = load_settings(config, admin)
    urls = tuple(target_urls(settings, admin).values())
    access = access_to(settings, os.environ)
    if once:
        document = asyncio.run(_counted(urls, access))
        print_document(document, LIVE, as_json, print_live)
        return OK if document.ownership.quorum.present else UNREACHABLE
    if as_json:
        asyncio.run(_show(urls, access, _print_line))
        return OK
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as display:

        def show(document: LiveDocument, silent_s: float) -> None:
            shown = screen(document, console.height, silent_s if silent_s >= SILENT_S else 0.0)
            display.update(shown, refresh=True)

        asyncio.run(_show(urls, access, show))
    return OK


def _print_line(document: LiveDocument, silent_s: float) -> None:
    if not silent_s:
        click.echo(LIVE.encode(document))
    elif silent_s >= SILENT_S:
        print_progress(f"not heard for {duration(silent_s)}")


async def _counted(urls: tuple[str, ...], access: Access) -> LiveDocument:
    """The first document in which rates are known.

    Raises: AdminError: there is none in time
    """
    document: LiveDocument | None = None
    try:
        async with asyncio.timeout(ONCE_LIMIT_S), aclosing(_told(urls, access)) as documents:
            async for document in documents:
                if document.rates_known:
                    return document
    except TimeoutError:
        pass
    if document is None:
        raise AdminError(f"no member has told anything within {ONCE_LIMIT_S:g} s")
    unrated = ", ".join(document.unrated) or "any member"
    raise AdminError(f"{document.ownership.proxy_id} knows no rates of {unrated} within {ONCE_LIMIT_S:g} s")


async def _show(urls: tuple[str, ...], access: Access, show: Show) -> None:
    """Shows what is told, and each second in which nothing is that there was nothing."""
    loop = asyncio.get_running_loop()
    document, heard_s = None, 0.0
    async with aclosing(_told(urls, access)) as documents:
        coming = asyncio.ensure_future(anext(documents))
        try:
            while True:
                await asyncio.wait({coming}, timeout=AGAIN_S)
                if coming.done():
                    document, heard_s = coming.result(), loop.time()
                    coming = asyncio.ensure_future(anext(documents))
                    show(document, 0.0)
                elif document is not None:
                    show(document, loop.time() - heard_s)
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _told(urls: tuple[str, ...], access: Access) -> AsyncGenerator[LiveDocument, None]:
    """What one member after the other tells, without an end.

    Raises:
        FleetError: none has ever answered; the first one's reason.
    """
    heard = False
    while True:
        errors = []
        for url in urls:
            try:
                async with access.session() as session, aclosing(client.follow(session, url)) as documents:
                    async for document in documents:
                        heard = True
                        yield document
            except FleetError as error:
                errors.append(error)
        if not heard:
            raise AdminError("no member answered: " + "; ".join(map(str, errors)))
        await asyncio.sleep(AGAIN_S)
