"""Faults of files that an operator has named: the broken rule, and the fix.

Each configuration error names one field, its value, the rule and the fix. The rule and the fix for a file do
not depend on the field that names the file, so this module has them.
"""

from __future__ import annotations

import codecs
from typing import Final, TypeAlias

Fault: TypeAlias = tuple[str, str]
"""Rule and fix, without the name of the file."""

_WITHOUT_BOM: Final = "save it as UTF-8 without BOM"
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_fault(error: OSError | ValueError) -> Fault:
    """Why a file cannot be read. A ValueError means that no file can have this path."""
    if isinstance(error, IsADirectoryError):
        return "cannot be read (is a directory)", "name the file in it"
    reason = str(getattr(error, "strerror", None) or error).lower()
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return f"cannot be read ({reason})", "check its path"
    return f"cannot be read ({reason})", "check its path, owner and mode"


def encoding_fault(raw: bytes) -> Fault | None:
    """The fault in the first bytes of a text file; None if there is no fault."""
    if raw.startswith(codecs.BOM_UTF8):
        return "the file begins with a byte-order mark", _WITHOUT_BOM
    if raw.startswith(_UTF_16):
        return "the file is UTF-16 text with a byte-order mark", _WITHOUT_BOM
    return None
