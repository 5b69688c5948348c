"""Text for rich terminals: external text must act neither as markup nor as a control sequence."""

from __future__ import annotations

from rich.markup import escape as escape_markup  # noqa: TID251

from fleet.core.text import make_printable


def escape(text: object) -> str:
    """Escape external text: one line, no control characters, no markup."""
    return escape_markup(make_printable(text))
