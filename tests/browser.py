"""A headless browser for the pages that people open."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Final

from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tools.bootstrap import BUILD

CHROMIUM_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # Chromium's sandbox requires a user other than root
    "--disable-gpu",
    "--disable-dev-shm-usage",  # a container's shared memory has 64 MB: tabs crash
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


AXE: Final = resources.files("axe_core_python").joinpath("axe.min.js")
ARTEFACTS: Final = BUILD / "screenshots"
WIDE, NARROW = (1200, 900), (360, 780)
SCREENS: Final = (
    ("", WIDE, "light"),
    ("-dark", WIDE, "dark"),
    ("-phone", NARROW, "light"),
    ("-phone-dark", NARROW, "dark"),
)
"""Name, size and preferred color scheme of each tested window."""


@contextmanager
def chromium(profile: Path, *, insecure: bool = False) -> Iterator[Chrome]:
    """Run Chromium until the block ends.

    Args:
        profile: a folder that is not there yet.
        insecure: whether any certificate is believed.
    """
    options = ChromeOptions()
    options.accept_insecure_certs = insecure
    options.binary_location = str(shutil.which("chromium"))
    for argument in (*CHROMIUM_OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, ChromeService(str(shutil.which("chromedriver"))))
    try:
        yield driver
    finally:
        driver.quit()


def text(driver: Chrome, element_id: str) -> str:
    """The text of an element as a reader sees it."""
    return str(driver.find_element(By.ID, element_id).text)


def texts(driver: Chrome, selector: str) -> list[str]:
    """The texts of all matching elements at one moment, however often the page is filled again."""
    script = "return [...document.querySelectorAll(arguments[0])].map(each => each.innerText.trim())"
    return list(map(str, driver.execute_script(script, selector)))


def rows(driver: Chrome, table_id: str) -> list[list[str]]:
    """The rows of a table below its head, as a reader sees them."""
    found = driver.find_elements(By.CSS_SELECTOR, f"#{table_id} tr")
    return [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in found[1:]]


def pictures(driver: Chrome) -> dict[str, int]:
    """The width in pixels of each loaded picture; 0 if the picture cannot be shown."""
    images = driver.find_elements(By.TAG_NAME, "img")
    return {str(each.get_attribute("id")): int(str(each.get_property("naturalWidth"))) for each in images}


def browser_log(driver: Chrome) -> list[dict[str, Any]]:
    """The browser's log entries for the page."""
    return list(driver.get_log("browser"))  # type: ignore[no-untyped-call]


def serious_log_entries(driver: Chrome) -> list[dict[str, Any]]:
    """The log entries, except hints about login forms."""
    return [each for each in browser_log(driver) if each["level"] != "DEBUG"]


def violations(driver: Chrome) -> list[tuple[str, list[str]]]:
    """The accessibility violations that axe-core finds on the page."""
    if not driver.execute_script("return Boolean(window.axe)"):
        driver.execute_script(AXE.read_text())
    found: dict[str, Any] = driver.execute_async_script("axe.run().then(arguments[0])")
    assert found["passes"], "axe has checked nothing"
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found["violations"]]


def resize(driver: Chrome, size: tuple[int, int], scheme: str) -> None:
    """Show the page in a size and scheme, even if the window's minimum width is larger."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    preferred = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})


def inspect(driver: Chrome, name: str) -> None:
    """Fail if the page is unusable on any screen. Save pictures of it."""
    for suffix, size, scheme in SCREENS:
        resize(driver, size, scheme)
        picture(driver, name + suffix)
        assert violations(driver) == [], name + suffix
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= size[0], name + suffix
    resize(driver, WIDE, "light")


def picture(driver: Chrome, name: str) -> None:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    assert driver.save_screenshot(str(ARTEFACTS / f"{name}.png"))


def press_keys(driver: Chrome, *keys: str) -> None:
    ActionChains(driver).send_keys(*keys).perform()


def focused(driver: Chrome) -> str:
    """The focused element: its label, or its id."""
    script = "return document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"
    return str(driver.execute_script(script))


def tab_to(driver: Chrome, label: str) -> None:
    """Press Tab until an element has the focus. Fails if the element is unreachable."""
    passed = []
    for _ in range(60):
        press_keys(driver, Keys.TAB)
        passed.append(focused(driver))
        if passed[-1] == label:
            return
    raise AssertionError(f"{label} is unreachable with Tab, after {passed}")
