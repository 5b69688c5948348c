"""Text for a terminal, by rich: what comes from outside is neither markup nor a control sequence."""

from __future__ import annotations

from rich.markup import escape as escape_markup  # noqa: TID251

from fleet.core.text import make_printable


def escape(text: object) -> str:
    """Text from outside as it stands: on one line, without control characters, and no markup."""
    return escape_markup(make_printable(text))
