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
from fleet.admin.access import Access, access_to
from fleet.admin.documents import LIVE, LiveDocument
from fleet.admin.top import print_live, screen
from fleet.cli.asked import settings_of, urls_of
from fleet.cli.options import member_options
from fleet.cli.output import OK, UNREACHABLE, print_document
from fleet.errors import AdminError, FleetError

AGAIN_S: Final = 1.0
"""After all have been asked, and none has answered."""
COUNTED: Final = 2
"""Rates are known from the second count on, a second after the first document."""


@click.command(
    short_help="Watch the fleet as it changes.",
    epilog="\b\nExamples:\n  fleet top\n  fleet top --once --json\n  fleet top --admin 127.0.0.1:7201 --json",
)
@click.option("--once", is_flag=True, help="Print it once, as soon as rates are known, and end.")
@member_options
def top(config: str, admin: str | None, as_json: bool, once: bool) -> int:
    """Show who stands for which broker, what passes them and what moves, until Ctrl-C.

    One member tells it; when that one goes, another one does. The same is on the page of every admin
    address. With --json a line is one document. Exits with 3 where no member answers at the start.
    """
    settings = settings_of(config, admin)
    urls = tuple(urls_of(settings, admin).values())
    access = access_to(settings, os.environ)
    if once:
        document = asyncio.run(_counted(urls, access))
        print_document(document, LIVE, as_json, print_live)
        return OK if document.ownership.quorum.present else UNREACHABLE
    if as_json:
        asyncio.run(_show(urls, access, lambda document: click.echo(LIVE.encode(document))))
        return OK
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as display:

        def show(document: LiveDocument) -> None:
            # What does not fit would push the head out of sight.
            room = console.height - len(document.ownership.members) - 14
            display.update(screen(document, max(3, room)), refresh=True)

        asyncio.run(_show(urls, access, show))
    return OK


async def _counted(urls: tuple[str, ...], access: Access) -> LiveDocument:
    """The first document that has rates in it."""
    async with aclosing(_told(urls, access)) as documents:
        first = None
        async for document in documents:
            first = first or document
            if document.ownership.now_mono_s - first.ownership.now_mono_s >= COUNTED:
                return document
    raise AdminError("no member tells anything")


async def _show(urls: tuple[str, ...], access: Access, show: Callable[[LiveDocument], None]) -> None:
    async with aclosing(_told(urls, access)) as documents:
        async for document in documents:
            show(document)


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
