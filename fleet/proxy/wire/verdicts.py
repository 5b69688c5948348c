"""The verdicts on a frame of a client. Other values are the position where the frame ends."""

from __future__ import annotations

from typing import Final

INCOMPLETE: Final = -1
"""The frame stays with the caller until more bytes arrive, or until it may pass."""
ORDINARY: Final = -2
"""The frame passes."""
