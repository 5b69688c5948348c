"""What `pip install 'kafka-proxy-fleet[…]'` installs, with today's versions instead of the locked ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fleet.pipeline.jobs import Site
from fleet.pipeline.streams import Kafka
from fleet.pipeline.timeline import Row
from fleet.pipeline.timeline_job import ROW_SCHEMA
from tests.integration.test_install import PIP, build_wheel, run

BEGIN_MS = 1_790_000_000_000
LIMIT_S = 1500.0

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Path:
    """A takeover, as the jobs write it."""
    row = Row("interval", 7, ("p2",), "takeover", BEGIN_MS, None, BEGIN_MS + 9, BEGIN_MS - 5, BEGIN_MS + 4)
    values = ("f", 1, *(getattr(row, name) for name in Row.__dataclass_fields__), 1)
    takeovers = spark.createDataFrame([values], ROW_SCHEMA)
    by_day = takeovers.withColumn("day", F.to_date(F.timestamp_millis("from_ms")))
    by_day.write.partitionBy("day").parquet(Site(Kafka(""), "fleet.", str(tmp_path / "tables")).timeline)
    return tmp_path / "tables"


def install(wheel: Path, extra: str, folder: Path) -> Path:
    """Make an environment that has only this, without a version conflict. Returns: its folder of commands."""
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", *PIP, "install", f"{wheel}[{extra}]", limit_s=LIMIT_S)
    run(folder / "bin" / "python", *PIP, "check")
    return folder / "bin"


def test_pipeline_extra_suffices_for_a_report(wheel: Path, tables: Path, tmp_path: Path) -> None:
    commands, page = install(wheel, "pipeline", tmp_path / "venv"), tmp_path / "report.html"
    when = ("--from", "2026-09-21", "--to", "2026-09-22", "--master", "local[1]")
    run(commands / "fleet", "report", "--tables", tables, "--out", page, *when, cwd=tmp_path)
    assert "p2" in page.read_text()


def test_extras_of_tests_fit_together(wheel: Path, tmp_path: Path) -> None:
    install(wheel, "dev", tmp_path / "venv")
