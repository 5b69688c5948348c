"""The page of a report: its content, and that it loads no other file."""

from __future__ import annotations

import itertools
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fleet.core.errors import PipelineError
from fleet.pipeline.report_charts import CHARTS
from fleet.pipeline.report_page import write
from tests.unit.pipeline.sample_report import sample

PNG = b"\x89PNG\r\n\x1a\n"


VOID_TAGS = ("meta", "img")
INLINE_TAGS = ("li",)
"""Elements whose text belongs to the element around them."""


class Page(HTMLParser):
    """Text by the id of the element around it, rows of tables, and URLs of other files."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.rows: dict[str, list[list[str]]] = {}
        self.broken: list[str] = []
        self.sources: list[str] = []
        self._ids = [""]
        self._table = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag not in VOID_TAGS:
            self._ids.append(attributes.get("id") or "" if tag not in INLINE_TAGS else self._ids[-1])
        self.sources += [attributes[name] or "" for name in ("src", "href") if name in attributes]
        if tag == "table":
            self._table = attributes["id"] or ""
            self.rows[self._table] = []
        if tag == "tr":
            self.rows[self._table].append([])
            if attributes.get("class") == "broken":
                self.broken.append(self._table)
        if tag in ("td", "th"):
            self.rows[self._table][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._ids.pop()
        if tag == "table":
            self._table = ""

    def handle_data(self, data: str) -> None:
        if self.rows.get(self._table) and self.rows[self._table][-1]:
            self.rows[self._table][-1][-1] += data.strip()
        self.texts[self._ids[-1]] = self.texts.get(self._ids[-1], "") + data.strip()


def test_page_has_content_of_report(tmp_path: Path) -> None:
    files = write(sample(), tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert {name: page.texts[name] for name in ("brokers", "takeovers", "objective", "missed")} == {
        "brokers": "2",
        "takeovers": "2",
        "objective": "99.99 %",
        "missed": "1",
    }
    assert page.texts["available"] == f"{100 * (1 - 60_150 / (96 * 3_600_000)):.5f} %"
    assert page.rows["takeover-table"][1:] == [
        ["1", "2026-11-22 05:59:59", "90", "240", "290", "570", "p2"],
        ["2", "2026-11-22 06:00:00", "", "60000", "210", "", "p3"],
    ]
    assert [row[1:] for row in page.rows["outage-table"][1:]] == [
        ["1", "2500", "40"],
        ["2", "ongoing", "1"],
    ]
    assert {name: page.texts[name] for name in ("acknowledged", "lost", "duplicated", "out-of-order")} == {
        "acknowledged": "1500",
        "lost": "1",
        "duplicated": "2",
        "out-of-order": "3",
    }
    assert page.rows["audit-table"][2] == ["<i>prices", "500", "499", "0", "1", "2", "3"]
    assert page.rows["audit-by-takeover"][1:] == [
        ["before all takeovers", "", "0", "1", "0"],
        ["2026-11-22 06:00:00", "1, 2", "1", "1", "3"],
    ]
    assert page.rows["stall-table"][1] == ["orders", "acknowledgements", "3", "2026-11-22 06:00:00", "640"]
    assert [row[2:] for row in page.rows["attainment-table"][1:]] == [
        ["100.00000", "0.000", "17.280"],
        ["99.96520", "60.150", "-42.870"],
    ]
    broken = ["outage-table"] * 2, ["attainment-table", "audit-table"], ["audit-by-takeover"] * 2
    assert page.broken == [*itertools.chain(*broken)]
    assert page.rows["hot-table"][1:] == [["2", "75.0", "900", "7000"], ["1", "25.0", "300", "900"]]
    assert "client <b>& at 192.0.2.9" in page.texts["odd"], "the client id is escaped"
    assert all(each.startswith("data:image/png;base64,") for each in page.sources)
    assert len(page.sources) == len(CHARTS)
    assert {path.name for path in files} == {"report.html", *(f"report.{name}.png" for name in CHARTS)}
    for name in CHARTS:
        assert (tmp_path / f"report.{name}.png").read_bytes().startswith(PNG)


def test_empty_report_gives_page(tmp_path: Path) -> None:
    full = sample()
    availability = replace(full.availability, takeovers=(), outages=(), fleets=())
    anomalies = replace(full.anomalies, flapping=(), one_sided=(), stale_clients=())
    write(
        replace(full, availability=availability, anomalies=anomalies, intervals=(), hot_brokers=()),
        tmp_path / "r.html",
    )
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert (page.texts["brokers"], page.texts["available"], page.texts["oddities"]) == (
        "0",
        "100.00000 %",
        "0",
    )


def test_unwritable_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot write the report: No such file"):
        write(sample(), tmp_path / "none" / "report.html")
