"""See `tests.compiled.passing`."""

from __future__ import annotations

import pytest

from tests.compiled.passing import run_compiled


@pytest.mark.timeout(3600)
def test_compiled_plane_keeps_the_properties_of_its_modules() -> None:
    run_compiled("property")
