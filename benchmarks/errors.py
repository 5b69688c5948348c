"""The error that stops a benchmark."""

from __future__ import annotations

from fleet.core.errors import FleetError


class BenchError(FleetError):
    """A peer or a client failed, so there is nothing to compare."""
