"""See `tests.compiled.passing`."""

from __future__ import annotations

import pytest

from tests.compiled.passing import run_compiled


@pytest.mark.timeout(900)
def test_compiled_plane_passes_the_unit_tests_of_its_modules() -> None:
    run_compiled("unit", "integration/in_process")
