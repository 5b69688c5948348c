"""What stops a benchmark."""

from __future__ import annotations

from fleet.core.errors import FleetError


class BenchError(FleetError):
    """A peer or a client did not do its part, so there is nothing to compare."""
