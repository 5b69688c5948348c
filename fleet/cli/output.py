"""How commands print, and their exit codes."""

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
  0    success
  1    failure
  2    the command line or the configuration file is wrong
  3    no member answered, or there is no quorum
  130  interrupted by Ctrl-C
"""

T = TypeVar("T")


def print_progress(line: str) -> None:
    """Print a line about the progress of a command on standard error. It is no part of the result."""
    click.echo(make_printable(line), err=True)


def print_document(document: T, codec: Codec[T], as_json: bool, render: Callable[[T, Console], None]) -> None:
    """Print a document as one JSON object, or as `render` shows it to people."""
    if as_json:
        click.echo(codec.encode(document))
    else:
        # A pipe has no width: long lines are not wrapped there, so that grep finds them whole.
        render(document, Console(width=None if sys.stdout.isatty() else 10_000, highlight=False))
