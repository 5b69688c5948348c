"""The limits of frames."""

from __future__ import annotations

from typing import Protocol


class Limits(Protocol):
    """The part of ``fleet.config.settings.Limits`` that a session needs."""

    @property
    def max_request_bytes(self) -> int: ...

    @property
    def max_patched_response_bytes(self) -> int: ...
