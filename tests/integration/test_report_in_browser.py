"""The page of a report in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from fleet.pipeline.report_charts import CHARTS
from fleet.pipeline.report_page import write
from tests.browser import browser_log, pictures, rows, text
from tests.unit.pipeline.sample_report import sample

pytestmark = pytest.mark.size("test-all")


def test_browser_shows_the_content_of_the_report(browser: Chrome, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write(sample(), page)
    browser.get(page.as_uri())
    assert browser.title == "Fleet report, 2026-11-21 00:00:00 to 2026-11-23 00:00:00"
    assert {name: text(browser, name) for name in ("brokers", "takeovers", "missed", "lost")} == {
        "brokers": "2",
        "takeovers": "2",
        "missed": "1",
        "lost": "1",
    }
    assert rows(browser, "takeover-table") == [
        ["1", "2026-11-22 05:59:59", "90", "240", "290", "570", "p2"],
        ["2", "2026-11-22 06:00:00", "", "60000", "210", "", "p3"],
    ]
    assert rows(browser, "audit-table")[1] == ["<i>prices", "500", "499", "0", "1", "2", "3"]
    assert rows(browser, "hot-table") == [["2", "75.0", "900", "7000"], ["1", "25.0", "300", "900"]]
    shown = pictures(browser)
    assert len(shown) == len(CHARTS)
    assert min(shown.values()) > 300, shown
    assert browser_log(browser) == []
