"""What commands print, and the codes that they exit with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, TypeVar

import click
from rich.console import Console

from fleet.core.codec import Codec
from fleet.core.text import make_printable

OK: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130

EXIT_CODES: Final = """\b
Exit codes:
  0  done
  1  it failed
  2  the command line or the configuration file is wrong
  3  no member answered, or there is no quorum
"""

T = TypeVar("T")


def print_progress(line: str) -> None:
    """One line about what a command is doing, which is no part of its result."""
    click.echo(make_printable(line), err=True)


def print_document(document: T, codec: Codec[T], as_json: bool, render: Callable[[T, Console], None]) -> None:
    """The one JSON object, or what `render` makes of it for people."""
    if as_json:
        click.echo(codec.encode(document))
    else:
        # A pipe has no width: lines are then as long as they need to be, and grep finds them whole.
        render(document, Console(width=None if sys.stdout.isatty() else 10_000, highlight=False))
