"""Old names of commands and options: they work for one release, and each use prints a warning.

An old option name is replaced before the arguments are parsed. Help, errors and suggestions therefore show
the new name only, and a command has one parameter for both names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import click


def warn(ctx: click.Context, old: str, new: str) -> None:
    """Print one line on standard error: an object that ``--json`` prints on standard output stays whole.

    A shell that completes a command line parses the line, too; then nothing is printed.
    """
    if not ctx.resilient_parsing:
        click.echo(f"`{old}` is deprecated; use `{new}`", err=True)


class RenamedOptions(click.Command):
    """A command that still accepts the old names of some of its options.

    Args:
        renamed: old option name -> new option name, both with their dashes.
    """

    def __init__(self, *args: Any, renamed: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.renamed = renamed

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(self._with_new_names(ctx, args)))

    def _with_new_names(self, ctx: click.Context, args: list[str]) -> Iterator[str]:
        """The arguments, with new names for old ones.

        A value of another option, and everything after ``--``, pass unchanged.
        """
        with_value = _names_with_value(self.get_params(ctx))
        remaining = iter(args)
        for word in remaining:
            if word == "--":
                yield word
                yield from remaining
                return
            name, equals, value = word.partition("=")
            new = self.renamed.get(name)
            if new is not None:
                warn(ctx, name, new)
                name, word = new, f"{new}{equals}{value}"
            yield word
            if not equals and name in with_value:
                yield from islice(remaining, 1)


def _names_with_value(params: Iterable[click.Parameter]) -> frozenset[str]:
    """The option names after which the next argument is a value."""
    return frozenset(
        name
        for param in params
        if isinstance(param, click.Option) and not param.is_flag and not param.count
        for name in param.opts
    )


class HiddenAlias(RenamedOptions):
    """The old name of a command: the same options and the same action, but no line in ``fleet --help``.

    Args:
        command: what the new name runs.
        old, new: the command lines, such as ``fleet chaos`` and ``fleet game-day``.
    """

    def __init__(self, command: RenamedOptions, old: str, new: str) -> None:
        super().__init__(
            name=old.rpartition(" ")[2],
            callback=command.callback,
            params=command.params,
            help=command.help,
            short_help=command.short_help,
            epilog=command.epilog,
            hidden=True,
            renamed=command.renamed,
        )
        self._names = (old, new)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        warn(ctx, *self._names)
        return super().parse_args(ctx, args)
