"""One Spark session for commands that would each start a session of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import pytest

from fleet.cli import pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def commands_use(spark: SparkSession) -> Iterator[None]:
    """Make the commands of this process use a session: starting a second one takes longer than most
    commands."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pipeline, "_spark", lambda *_: nullcontext(spark))
        yield
