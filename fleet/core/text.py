"""Text from outside, made safe to show.

Clients choose their ids, brokers their host names, and other machines the words of their errors. A log or a
terminal acts on some characters: a line feed forges a log line, an escape sequence changes a window's title,
and a mark for right-to-left text reverses what an operator reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAX_SHOWN_CHARACTERS: Final = 4096
"""Of one line."""
_ELLIPSIS: Final = "…"


def make_printable(text: object, limit_characters: int = MAX_SHOWN_CHARACTERS) -> str:
    """The text on one line, with nothing in it that a terminal or a log acts on.

    Args:
        limit_characters: how many characters of the text are shown.
    Returns: the text; characters that are not printable are written as in a Python literal
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
    """The same JSON document, without characters that a terminal acts on.

    Args:
        document: JSON on one line; outside its strings only printable ASCII.
    """
    text = document.decode()
    if text.isprintable():
        return document
    return "".join(each if each.isprintable() else _json_escape(each) for each in text).encode()


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def no_port(broker_id: int, listeners: Sequence[str]) -> str:
    """What is said of a broker that no client is sent to; the same words in the log and in `fleet doctor`."""
    plural = "s" if len(listeners) > 1 else ""
    return f"broker {broker_id} has no port on listener{plural} {', '.join(listeners)}: widen `identities`"
