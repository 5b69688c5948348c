"""A real browser without a window, for the pages that people open."""

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

QUIET = (
    "--headless=new",
    "--no-sandbox",  # Chromium's own wants another user than root
    "--disable-gpu",
    "--disable-dev-shm-usage",  # a container's has 64 MB: tabs crash
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


AXE: Final = resources.files("axe_core_python").joinpath("axe.min.js")
ARTEFACTS: Final = BUILD / "screenshots"
WIDE, NARROW = (1200, 900), (360, 780)
LOOKS: Final = (
    ("", WIDE, "light"),
    ("-dark", WIDE, "dark"),
    ("-phone", NARROW, "light"),
    ("-phone-dark", NARROW, "dark"),
)
"""What they are called, the window's size, and what its owner prefers."""


@contextmanager
def chromium(profile: Path, *, insecure: bool = False) -> Iterator[Chrome]:
    """Chromium, until the block ends.

    Args:
        profile: a folder that is not there yet.
        insecure: whether any certificate is believed.
    """
    options = ChromeOptions()
    options.accept_insecure_certs = insecure
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


def texts(driver: Chrome, selector: str) -> list[str]:
    """What all elements of a kind say at one moment, however often the page is filled anew."""
    script = "return [...document.querySelectorAll(arguments[0])].map(each => each.innerText.trim())"
    return list(map(str, driver.execute_script(script, selector)))


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


def serious(driver: Chrome) -> list[dict[str, Any]]:
    """The same, but for its hints about login forms."""
    return [each for each in complaints(driver) if each["level"] != "DEBUG"]


def violations(driver: Chrome) -> list[tuple[str, list[str]]]:
    """What axe-core finds wrong with the page as it is shown."""
    if not driver.execute_script("return Boolean(window.axe)"):
        driver.execute_script(AXE.read_text())
    found: dict[str, Any] = driver.execute_async_script("axe.run().then(arguments[0])")
    assert found["passes"], "axe has looked at nothing"
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found["violations"]]


def look(driver: Chrome, size: tuple[int, int], scheme: str) -> None:
    """Have it shown in that size and scheme, whatever the window's least width is."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    preferred = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})


def inspect(driver: Chrome, name: str) -> None:
    """Fails where somebody cannot use the page, on any screen; leaves pictures of it."""
    for suffix, size, scheme in LOOKS:
        look(driver, size, scheme)
        picture(driver, name + suffix)
        assert violations(driver) == [], name + suffix
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= size[0], name + suffix
    look(driver, WIDE, "light")


def picture(driver: Chrome, name: str) -> None:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    assert driver.save_screenshot(str(ARTEFACTS / f"{name}.png"))


def press(driver: Chrome, *keys: str) -> None:
    ActionChains(driver).send_keys(*keys).perform()


def focused(driver: Chrome) -> str:
    """What has the focus: its label, or its id."""
    script = "return document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"
    return str(driver.execute_script(script))


def tab_to(driver: Chrome, label: str) -> None:
    """Press Tab until something has the focus. Fails where it cannot be reached."""
    passed = []
    for _ in range(60):
        press(driver, Keys.TAB)
        passed.append(focused(driver))
        if passed[-1] == label:
            return
    raise AssertionError(f"{label} cannot be reached, but {passed}")
