"""The number of examples of a property test: a tenth in `make test`, all of them everywhere else.

@settings(max_examples=examples(600))
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

DEFAULT_EXAMPLES: Final = 100
"""The number of examples of a test that sets none."""
QUICK_SHARE: Final = 0.1
MIN_EXAMPLES: Final = 5

share = 1.0


def examples(thorough: int) -> int:
    """The number of examples of this run, from the number of a thorough run."""
    return thorough if share == 1.0 else max(min(thorough, MIN_EXAMPLES), round(thorough * share))


def use_profile(quick: bool) -> None:
    """Choose how much property tests try. To be called before their modules are imported."""
    global share
    share = QUICK_SHARE if quick else 1.0
    # Every run on a build machine tries the same examples: what passed once passes again.
    settings.register_profile(
        "chosen",
        max_examples=examples(DEFAULT_EXAMPLES),
        deadline=None,
        derandomize=bool(os.environ.get("CI")),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("chosen")
