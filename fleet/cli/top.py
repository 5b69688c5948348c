"""``fleet top``: the live state of the fleet in a terminal."""

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

RETRY_AFTER_S: Final = 1.0
"""How long to wait after no member has answered, and how often to check for silence."""
STALE_AFTER_S: Final = 3.0
"""How long without an update until the screen says so. A member sends an update at least once a second."""
ONCE_TIMEOUT_S: Final = 15.0
"""How long ``--once`` waits for rates: the time-out for an unreachable member takes a part of it."""

Show = Callable[[LiveDocument, float], None]
"""Receives the newest document, and the seconds since it came: 0 for a new document."""


@click.command(
    short_help="Watch owners, traffic and takeovers live.",
    epilog="\b\nExamples:\n  fleet top\n  fleet top --once --json\n  fleet top --admin 127.0.0.1:7201 --json",
)
@click.option("--once", is_flag=True, help="Print one update as soon as the rates are known, and exit.")
@member_options
def top(config: str, admin: str | None, as_json: bool, once: bool) -> int:
    """Show which member owns which broker, the traffic, and moves, until Ctrl-C.

    One member sends the updates; when it stops, another member takes over. The page of every admin address
    shows the same. With --json, each line is one JSON object. Exits with 3 if no member answers at the start,
    and with --once if the rates are not known within 15 s.
    """
    settings = load_settings(config, admin)
    urls = tuple(target_urls(settings, admin).values())
    access = access_to(settings, os.environ)
    if once:
        document = asyncio.run(first_with_rates(urls, access))
        print_document(document, LIVE, as_json, print_live)
        return OK if document.ownership.quorum.present else UNREACHABLE
    if as_json:
        asyncio.run(show_updates(urls, access, print_line))
        return OK
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as display:

        def show(document: LiveDocument, silent_s: float) -> None:
            silent_s = silent_s if silent_s >= STALE_AFTER_S else 0.0
            display.update(screen(document, console.height, silent_s), refresh=True)

        asyncio.run(show_updates(urls, access, show))
    return OK


def print_line(document: LiveDocument, silent_s: float) -> None:
    if not silent_s:
        click.echo(LIVE.encode(document))
    elif silent_s >= STALE_AFTER_S:
        print_progress(f"no update for {duration(silent_s)}")


async def first_with_rates(urls: tuple[str, ...], access: Access) -> LiveDocument:
    """The first document with all rates.

    Raises: AdminError: no such document came in time
    """
    document: LiveDocument | None = None
    try:
        async with asyncio.timeout(ONCE_TIMEOUT_S), aclosing(updates(urls, access)) as documents:
            async for document in documents:
                if document.rates_known:
                    return document
    except TimeoutError:
        pass
    if document is None:
        raise AdminError(f"no member has sent an update within {ONCE_TIMEOUT_S:g} s")
    unrated = ", ".join(document.unrated) or "any member"
    me = document.ownership.proxy_id
    raise AdminError(f"{me} has no traffic rates of {unrated} within {ONCE_TIMEOUT_S:g} s")


async def show_updates(urls: tuple[str, ...], access: Access, show: Show) -> None:
    """Show each update, and each second without one how old the last update is."""
    loop = asyncio.get_running_loop()
    document, updated_s = None, 0.0
    async with aclosing(updates(urls, access)) as documents:
        next_document = asyncio.ensure_future(anext(documents))
        try:
            while True:
                await asyncio.wait({next_document}, timeout=RETRY_AFTER_S)
                if next_document.done():
                    document, updated_s = next_document.result(), loop.time()
                    next_document = asyncio.ensure_future(anext(documents))
                    show(document, 0.0)
                elif document is not None:
                    show(document, loop.time() - updated_s)
        finally:
            next_document.cancel()
            await asyncio.gather(next_document, return_exceptions=True)


async def updates(urls: tuple[str, ...], access: Access) -> AsyncGenerator[LiveDocument, None]:
    """The updates of one member after the other, without an end.

    Raises: AdminError: no member has ever answered; the message has the reason of each
    """
    has_answer = False
    while True:
        errors = []
        for url in urls:
            try:
                async with access.session() as session, aclosing(client.follow(session, url)) as documents:
                    async for document in documents:
                        has_answer = True
                        yield document
            except FleetError as error:
                errors.append(error)
        if not has_answer:
            raise AdminError("no member answered: " + "; ".join(map(str, errors)))
        await asyncio.sleep(RETRY_AFTER_S)
