"""The generated tables of metrics and settings match the code and are complete."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from fleet.admin.metrics import FleetCollector
from fleet.config import schema
from fleet.config.settings import Limits, Timing
from tests.unit.admin.sample_snapshot import view
from tools import gen_reference

PAGES = (gen_reference.METRICS, gen_reference.SETTINGS, gen_reference.ARCHITECTURE)


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A copy of the project's pages that a test may change."""
    for name in (*PAGES, gen_reference.GUIDE):
        shutil.copy(gen_reference.DOCS / name, tmp_path)
    return tmp_path


def rows(name: str) -> dict[str, list[str]]:
    """First column → the other columns, of the generated part of a page."""
    text = (gen_reference.DOCS / name).read_text(encoding="utf-8")
    table = text.split(gen_reference.BEGIN)[1].split(gen_reference.END)[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "| `" in line]
    return {first.strip("`"): rest for first, *rest in cells}


def test_pages_are_up_to_date() -> None:
    assert gen_reference.main(["--check"]) == 0


@pytest.mark.parametrize("name", PAGES)
def test_difference_is_reported_and_fixed(pages: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = pages / name
    right = page.read_text(encoding="utf-8")
    page.write_text(right.replace(gen_reference.END, f"| a row |\n{gen_reference.END}"), encoding="utf-8")
    assert gen_reference.main(["--check"], pages) == 1
    assert name in capsys.readouterr().err
    assert gen_reference.main([], pages) == 0
    assert page.read_text(encoding="utf-8") == right


def test_missing_markers_and_undescribed_fields_are_reported(pages: Path) -> None:
    guide = pages / gen_reference.GUIDE
    text = guide.read_text(encoding="utf-8")
    guide.write_text(re.sub(r"^\| `timing.grace_s`.*\n", "", text, flags=re.MULTILINE), encoding="utf-8")
    with pytest.raises(ValueError, match=r"no row for timing\.grace_s"):
        gen_reference.main([], pages)
    with pytest.raises(ValueError, match="markers"):
        gen_reference.between("a page", "a table")


def test_every_metric_is_listed_with_its_exported_labels() -> None:
    found = rows(gen_reference.METRICS)
    families = list(FleetCollector(view()).collect())
    assert len(found) == len(families) > 30
    for family in families:
        kind, labels, _, meaning = found[f"{family.name}_total" if family.type == "counter" else family.name]
        exported = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert (kind, set(re.findall(r"\w+", labels)), meaning) == (
            family.type,
            exported,
            family.documentation,
        )
    assert found["fleet_takeover_duration_seconds"][2] == "seconds"
    assert found["fleet_bytes_total"][2] == "bytes"
    assert found["fleet_certificate_expiry_timestamp_seconds"][2] == "Unix time in seconds"
    assert found["fleet_raft_term"][2] == ""


def test_every_setting_is_listed() -> None:
    assert set(gen_reference.SHAPES.values()) == set(schema.Shape.__subclasses__())
    found = rows(gen_reference.SETTINGS)
    expected = {
        prefix + name for prefix, shape in gen_reference.SHAPES.items() for name in shape.model_fields
    }
    assert set(found) == expected
    assert len(found) > 90
    for kind, default, _, meaning in found.values():
        assert kind
        assert default
        assert meaning


@pytest.mark.parametrize(
    ("field", "kind", "default", "limits"),
    [
        ("timing.suspect_after_s", "number", f"`{Timing().suspect_after_s}`", "above 0, at most 3600"),
        ("limits.max_request_bytes", "whole number", f"`{Limits().max_request_bytes}`", None),
        ("limits.max_connections", "whole number", None, "at least 1, at most 1 000 000"),
        ("members.ID.peer", "`host:port`", "required", ""),
        ("members.ID.rack", "text", "none", "not empty, at most 255 characters"),
        ("members.ID.witness", "`true` or `false`", "`false`", ""),
        ("bootstrap_servers", "list of `host:port`", "required", "not empty"),
        ("listener_tls.NAME.min_version", "`1.2` or `1.3`", "`1.2`", ""),
        ("upstream.sasl.password", "`{file: PATH}` or `{env: NAME}`", None, ""),
        ("balance.min_gain", "number", "`0.2`", "at least 0, below 1"),
    ],
)
def test_types_defaults_and_limits_match_the_code(
    field: str, kind: str, default: str | None, limits: str | None
) -> None:
    found = rows(gen_reference.SETTINGS)[field]
    for cell, expected in zip(found, (kind, default, limits), strict=False):
        assert expected is None or cell == expected


@pytest.mark.parametrize(
    ("meaning", "words"),
    [
        ("one thing; and another", "one thing"),
        ("one thing. Another", "one thing"),
        ("as `a; b` has it (1. or 2.; or so); not more", "as `a; b` has it (1. or 2.; or so)"),
        ("version 1.2 alone", "version 1.2 alone"),
    ],
)
def test_meaning_ends_with_its_first_sentence(meaning: str, words: str) -> None:
    assert gen_reference.first_words(meaning) == words
