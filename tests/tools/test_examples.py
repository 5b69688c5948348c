"""`make test` tries a tenth of the examples; all other commands try all examples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests import examples


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    share, profile = examples.share, settings.get_current_profile_name()
    yield
    examples.share = share
    settings.load_profile(profile)


@pytest.mark.parametrize(
    ("quick", "thorough", "tried"),
    [(False, 600, 600), (True, 600, 60), (True, 30, 5), (True, 3, 3), (False, 3, 3)],
)
def test_examples_are_a_tenth_of_a_thorough_run_or_five(quick: bool, thorough: int, tried: int) -> None:
    examples.use_profile(quick)
    assert examples.examples(thorough) == tried
    assert settings().max_examples == examples.examples(examples.DEFAULT_EXAMPLES)
