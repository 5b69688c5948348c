"""The live page in a real browser, through a real takeover; and the same in a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet
from fleet.model import ProxyId
from tests.browser import chromium, complaints, text
from tests.conftest import fleets
from tests.integration.clients import Load, wait_for
from tests.integration.conftest import FleetCommand
from tools.bootstrap import BUILD

MakeTopic = Callable[..., str]
ARTEFACTS: Final = BUILD / "screenshots"
WIDE, NARROW = (1200, 900), (360, 780)
AXE: Final = resources.files("axe_core_python").joinpath("axe.min.js")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def own(kafka: KafkaCluster, tmp_path: Path) -> Iterator[LocalFleet]:
    with fleets(kafka, tmp_path) as make:
        yield make()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chrome]:
    with chromium(tmp_path / "profile") as driver:
        yield driver


def address(fleet: LocalFleet, proxy_id: ProxyId) -> str:
    return f"http://{fleet.settings.member(proxy_id).admin}/"


def owners(browser: Chrome) -> dict[str, ProxyId]:
    """Broker → the member that the matrix shows as its owner."""
    found: dict[str, ProxyId] = {}
    try:
        names = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "#owners thead th")]
        for row in browser.find_elements(By.CSS_SELECTOR, "#owners tbody tr"):
            broker, *cells = (each.text for each in row.find_elements(By.CSS_SELECTOR, "th, td"))
            for name, cell in zip(names[1:], cells, strict=False):
                if cell.startswith("owner"):
                    found[broker] = name
    except StaleElementReferenceException:
        return {}  # it is being filled anew
    return found


def states(browser: Chrome) -> dict[ProxyId, str]:
    table = browser.find_elements(By.CSS_SELECTOR, "#members tbody tr")
    cells = [[each.text for each in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in table]
    return {row[0]: row[1] for row in cells}


def violations(browser: Chrome) -> list[tuple[str, list[str]]]:
    """What axe-core finds wrong with the page as it is shown."""
    browser.execute_script(AXE.read_text())
    found: dict[str, Any] = browser.execute_async_script("axe.run().then(arguments[0])")
    assert found["passes"], "axe has looked at nothing"
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found["violations"]]


def serious(browser: Chrome) -> list[dict[str, Any]]:
    """What the browser has to say against the page, but for its hints about login forms."""
    return [each for each in complaints(browser) if each["level"] != "DEBUG"]


def picture(browser: Chrome, name: str) -> None:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    assert browser.save_screenshot(str(ARTEFACTS / f"{name}.png"))


def look(browser: Chrome, size: tuple[int, int], scheme: str) -> None:
    """Have it shown in that size and scheme, whatever the window's least width is."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    preferred = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})


def press(browser: Chrome, *keys: str) -> None:
    ActionChains(browser).send_keys(*keys).perform()


def test_a_takeover_is_seen_as_it_happens(
    own: LocalFleet, browser: Chrome, make_topic: MakeTopic, fleet_command: FleetCommand
) -> None:
    told_by, victim = own.members[0], own.members[1]
    with Load(own.bootstrap(), make_topic()) as load:
        browser.get(address(own, told_by))
        wait_for(lambda: sorted(owners(browser).values()) == sorted(own.members), "each member has a broker")
        (lost,) = (broker for broker, owner in owners(browser).items() if owner == victim)
        wait_for(lambda: "kB/s" in text(browser, "owners"), "rates are shown")
        assert text(browser, "alarm") == ""
        assert text(browser, "fact-quorum") == "yes"
        generation = int(text(browser, "fact-generation"))
        for name, size, scheme in (
            ("live", WIDE, "light"),
            ("live-dark", WIDE, "dark"),
            ("live-phone", NARROW, "light"),
            ("live-phone-dark", NARROW, "dark"),
        ):
            look(browser, size, scheme)
            picture(browser, name)
            assert violations(browser) == [], name
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= size[0], name
        look(browser, WIDE, "light")

        own.kill(victim)
        wait_for(
            lambda: owners(browser).get(lost) not in (None, victim), "another one has it, without a reload"
        )
        wait_for(lambda: re.search(r"\d ms", text(browser, "takeovers")), "the takeover is told")
        assert f"broker {lost}" in text(browser, "takeovers")
        wait_for(lambda: states(browser).get(victim) in ("down", "suspect"), "it is shown as dead")
        wait_for(lambda: int(text(browser, "fact-generation")) > generation, "it is committed")
        assert f"Broker {lost}: {victim} to" in text(browser, "news")
        picture(browser, "live-takeover")
        assert violations(browser) == []
        load.await_flow()

        shown = fleet_command(own, "top", "--once")
        now = {str(each["broker_id"]): each["advertised"] for each in shown["ownership"]["identities"]}
        assert now == {broker: [owner] for broker, owner in owners(browser).items()}
        assert sum(each["to_broker_bytes_per_s"] for each in shown["rates"]) > 0
    assert load.failures == []
    script = "return performance.getEntriesByType('resource').map(each => each.name)"
    asked: list[str] = browser.execute_script(script)
    assert [each for each in asked if not each.startswith(address(own, told_by))] == []
    assert serious(browser) == []


def test_a_member_is_drained_by_keyboard(own: LocalFleet, browser: Chrome) -> None:
    told_by, other = own.members[0], own.members[1]
    browser.get(address(own, told_by))
    wait_for(lambda: len(owners(browser)) == 3, "the matrix is there")
    focused = "return document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"

    def tab_to(label: str) -> None:
        for _ in range(40):
            press(browser, Keys.TAB)
            if browser.execute_script(focused) == label:
                return
        raise AssertionError(f"{label} cannot be reached")

    tab_to(f"Drain {other}")
    press(browser, Keys.ENTER)
    wait_for(lambda: "Drain" in text(browser, "confirm-title"), "it asks")
    picture(browser, "live-confirm")
    assert violations(browser) == []
    assert browser.execute_script(focused) == "cancel"
    press(browser, Keys.ESCAPE)
    assert not browser.find_element(By.ID, "confirm").is_displayed()
    assert other in owners(browser).values()

    tab_to(f"Drain {other}")
    press(browser, Keys.ENTER)
    press(browser, Keys.TAB)
    press(browser, Keys.ENTER)
    wait_for(lambda: other not in owners(browser).values() and owners(browser), "its brokers have gone")
    wait_for(lambda: states(browser).get(other) == "drained", "it is shown as drained")
    assert f"{other} is drained." in text(browser, "news") or "Broker" in text(browser, "news")
    assert serious(browser) == []


def test_a_member_that_is_gone_is_said_to_be(own: LocalFleet, browser: Chrome) -> None:
    told_by = own.members[0]
    browser.get(address(own, told_by))
    wait_for(lambda: len(owners(browser)) == 3, "the matrix is there")
    own.freeze(told_by)
    try:
        wait_for(lambda: "Nothing is heard of this member" in text(browser, "alarm"), "it says so")
        assert violations(browser) == []
    finally:
        own.thaw(told_by)
    wait_for(lambda: "Nothing is heard" not in text(browser, "alarm"), "it is back")


def test_a_pin_is_made_and_taken_away(own: LocalFleet, browser: Chrome) -> None:
    told_by, other = own.members[0], own.members[1]
    browser.get(address(own, told_by))
    wait_for(lambda: other in owners(browser).values(), "the matrix is there")
    (broker,) = (broker for broker, owner in owners(browser).items() if owner == other)

    def choose(label: str, member: str = "") -> None:
        browser.find_element(By.CSS_SELECTOR, f"button[aria-label='{label}']").click()
        wait_for(lambda: browser.find_element(By.ID, "confirm").is_displayed(), "it asks")
        if member:
            field = browser.find_element(By.ID, "choice")
            field.clear()
            field.send_keys(member)
        browser.find_element(By.ID, "do").click()

    choose(f"Pin broker {broker}", "p9")
    wait_for(lambda: "Not done: no member 'p9'" in text(browser, "news"), "a mistake is told")
    choose(f"Pin broker {broker}", told_by)
    wait_for(lambda: owners(browser).get(broker) == told_by, "it goes where it is pinned to")
    wait_for(lambda: "owner, pinned" in text(browser, "owners"), "it is shown as pinned")
    choose(f"Unpin broker {broker}")
    wait_for(lambda: "owner, pinned" not in text(browser, "owners"), "it is not any more")
