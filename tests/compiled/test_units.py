"""See `tests.compiled.passing`."""

from __future__ import annotations

import pytest

from tests.compiled.passing import passes


@pytest.mark.timeout(900)
def test_compiled_plane_passes_the_unit_tests_of_its_modules() -> None:
    passes("unit", "integration/in_process")
