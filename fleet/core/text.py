"""External text, made safe for logs and terminals.

Clients choose their ids, brokers their host names, and other machines the words of their errors. Logs and
terminals act on some characters: a line feed forges a log line, an escape sequence changes a window's title,
and a right-to-left mark reverses the text that an operator reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAX_SHOWN_CHARACTERS: Final = 4096
"""Limit for one line."""
_ELLIPSIS: Final = "…"


def make_printable(text: object, limit_characters: int = MAX_SHOWN_CHARACTERS) -> str:
    """Put text on one line, without characters on which a terminal or a log acts.

    Args:
        limit_characters: the most characters of the text to show.
    Returns: the text, with unprintable characters written as in a Python literal
    """
    shown = str(text)
    if len(shown) > limit_characters:
        shown = shown[:limit_characters] + _ELLIPSIS
    if shown.isprintable():
        return shown
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in shown
    )


def escape_json(document: bytes) -> bytes:
    """Escape the characters of a JSON document on which a terminal acts.

    Args:
        document: JSON on one line, with printable ASCII only outside its strings.
    """
    text = document.decode()
    if text.isprintable():
        return document
    return "".join(each if each.isprintable() else _json_escape(each) for each in text).encode()


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def no_port(broker_id: int, listeners: Sequence[str]) -> str:
    """The message about a broker without ports; the log and `fleet doctor` use the same words."""
    plural = "s" if len(listeners) > 1 else ""
    return f"broker {broker_id} has no port on listener{plural} {', '.join(listeners)}: widen `identities`"
