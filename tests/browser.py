"""A real browser without a window, for the pages that people open."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By

QUIET = (
    "--headless=new",
    "--no-sandbox",  # Chromium's own wants another user than root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium(profile: Path) -> Iterator[Chrome]:
    """Chromium, until the block ends.

    Args:
        profile: a folder that is not there yet.
    """
    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in (*QUIET, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, ChromeService(str(shutil.which("chromedriver"))))
    try:
        yield driver
    finally:
        driver.quit()


def text(driver: Chrome, element_id: str) -> str:
    """What a reader sees of one element."""
    return str(driver.find_element(By.ID, element_id).text)


def rows(driver: Chrome, table_id: str) -> list[list[str]]:
    """The rows of a table behind its head, as a reader sees them."""
    found = driver.find_elements(By.CSS_SELECTOR, f"#{table_id} tr")
    return [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in found[1:]]


def pictures(driver: Chrome) -> dict[str, int]:
    """The width in pixels of what each picture holds; 0 where it cannot be shown."""
    images = driver.find_elements(By.TAG_NAME, "img")
    return {str(each.get_attribute("id")): int(str(each.get_property("naturalWidth"))) for each in images}


def complaints(driver: Chrome) -> list[dict[str, Any]]:
    """What the browser has to say of the page."""
    return list(driver.get_log("browser"))  # type: ignore[no-untyped-call]
