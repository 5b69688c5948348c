"""The limits of frames."""

from __future__ import annotations

from typing import Final, Protocol

HEADER_LIMIT_BYTES: Final = 36 * 1024
"""The longest part of a request that must be read at once: 32 KiB of client and transactional id, and more.
Bytes that a session leaves unconsumed are always fewer."""

PROBE_LIMIT_BYTES: Final = 4 * 1024
"""The longest ApiVersions request that is answered here and not by the broker."""


class Limits(Protocol):
    """The part of ``fleet.config.settings.Limits`` that a session needs."""

    @property
    def max_request_bytes(self) -> int: ...

    @property
    def max_patched_response_bytes(self) -> int: ...
