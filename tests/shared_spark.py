"""A Spark for commands that would start one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import pytest

from fleet.cli import pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def borrowed(spark: SparkSession) -> Iterator[None]:
    """Commands of this process use this one: to start another takes longer than they do."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pipeline, "_spark", lambda *_: nullcontext(spark))
        yield
