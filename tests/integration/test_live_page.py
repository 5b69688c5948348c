"""The live page in a real browser, through a real takeover, and the same in a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.browser import (
    focused,
    inspect,
    picture,
    press_keys,
    serious_log_entries,
    tab_to,
    text,
    violations,
)
from tests.conftest import fleets, restore_fleet
from tests.integration.clients import Load, wait_for
from tests.integration.conftest import PATIENT, FleetCommand
from tests.integration.terminal import Terminal

MakeTopic = Callable[..., str]

OWNERS = """
const names = [...document.querySelectorAll("#owners thead th")].map(each => each.innerText), found = {};
for (const row of document.querySelectorAll("#owners tbody tr"))
  [...row.children].forEach((cell, index) => {
    if (cell.innerText.startsWith("owner")) found[row.children[0].innerText] = names[index];
  });
return found;
"""
STATES = """
const rows = [...document.querySelectorAll("#members tbody tr")];
return Object.fromEntries(rows.map(each => [each.children[0].innerText, each.children[1].innerText]));
"""
KEEP_NEWS = """
window.heard = [];
const news = document.getElementById("news");
new MutationObserver(() => window.heard.push(news.textContent)).observe(news, { childList: true });
"""

pytestmark = [pytest.mark.size("test-all"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def started(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    with fleets(kafka, tmp_path_factory.mktemp("live")) as make:
        yield make(timing=PATIENT)


@pytest.fixture
def own(started: LocalFleet, kafka: KafkaCluster) -> LocalFleet:
    """One fleet for all tests here, restored before each test."""
    restore_fleet(started, kafka)
    return started


def show(browser: Chrome, fleet: LocalFleet, told_by: ProxyId) -> None:
    """Open a member's page, and keep all news that it receives."""
    browser.get(address(fleet, told_by))
    wait_for(lambda: len(owners(browser)) == 3, "the matrix is shown")
    browser.execute_script(KEEP_NEWS)


def heard(browser: Chrome) -> str:
    """All news since then: the page itself shows only the newest."""
    return "\n".join(browser.execute_script("return window.heard"))


def address(fleet: LocalFleet, proxy_id: ProxyId) -> str:
    return f"http://{fleet.settings.member(proxy_id).admin}/"


def owners(browser: Chrome) -> dict[str, ProxyId]:
    """The owner of each broker in the page's matrix."""
    found: dict[str, ProxyId] = browser.execute_script(OWNERS)
    return found


def states(browser: Chrome) -> dict[ProxyId, str]:
    found: dict[ProxyId, str] = browser.execute_script(STATES)
    return found


def choose(browser: Chrome, label: str, member: str = "") -> None:
    """Press a button of the tables, and confirm."""
    browser.find_element(By.CSS_SELECTOR, f"button[aria-label='{label}']").click()
    wait_for(lambda: browser.find_element(By.ID, "confirm").is_displayed(), "the confirmation dialog")
    if member:
        field = browser.find_element(By.ID, "choice")
        field.clear()
        field.send_keys(member)
    browser.find_element(By.ID, "do").click()


def test_member_is_drained_by_keyboard_and_undrained_by_click(own: LocalFleet, browser: Chrome) -> None:
    told_by, other = own.members[0], own.members[1]
    show(browser, own, told_by)
    tab_to(browser, f"Drain {other}")
    press_keys(browser, Keys.ENTER)
    wait_for(lambda: "Drain" in text(browser, "confirm-title"), "the confirmation dialog")
    picture(browser, "live-confirm")
    assert violations(browser) == []
    assert focused(browser) == "cancel"
    press_keys(browser, Keys.ESCAPE)
    assert not browser.find_element(By.ID, "confirm").is_displayed()
    assert other in owners(browser).values()

    tab_to(browser, f"Drain {other}")
    press_keys(browser, Keys.ENTER)
    press_keys(browser, Keys.TAB)
    press_keys(browser, Keys.ENTER)
    wait_for(
        lambda: other not in owners(browser).values() and owners(browser), "the drained member owns nothing"
    )
    wait_for(lambda: states(browser).get(other) == "drained", "the member is shown as drained")
    wait_for(lambda: f"{other} is drained." in heard(browser), "the news of the operation")

    choose(browser, f"Undrain {other}")
    wait_for(lambda: f"{other} is undrained." in heard(browser), "the news of the operation")
    wait_for(lambda: states(browser).get(other) == "up", "the member is shown as up")
    wait_for(lambda: other in owners(browser).values(), "the member owns a broker again")
    assert serious_log_entries(browser) == []


def test_a_pin_is_made_and_taken_away(own: LocalFleet, browser: Chrome) -> None:
    told_by, other = own.members[0], own.members[1]
    show(browser, own, told_by)
    (broker,) = (broker for broker, owner in owners(browser).items() if owner == other)
    choose(browser, f"Pin broker {broker}", "p9")
    wait_for(lambda: "Not done: no member 'p9'" in heard(browser), "an error message")
    choose(browser, f"Pin broker {broker}", told_by)
    wait_for(lambda: owners(browser).get(broker) == told_by, "the identity is at its pinned owner")
    wait_for(lambda: "owner, pinned" in text(browser, "owners"), "the identity is shown as pinned")
    choose(browser, f"Unpin broker {broker}")
    wait_for(lambda: "owner, pinned" not in text(browser, "owners"), "the identity is no longer pinned")


def test_a_takeover_is_seen_as_it_happens(
    own: LocalFleet, browser: Chrome, make_topic: MakeTopic, fleet_command: FleetCommand
) -> None:
    told_by, victim = own.members[0], own.members[1]
    with Load(own.bootstrap(), make_topic()) as load:
        show(browser, own, told_by)
        wait_for(lambda: sorted(owners(browser).values()) == sorted(own.members), "each member has a broker")
        (lost,) = (broker for broker, owner in owners(browser).items() if owner == victim)
        wait_for(lambda: "kB/s" in text(browser, "owners"), "rates are shown")
        wait_for(lambda: text(browser, "alarm") == "", "nothing is wrong")
        wait_for(lambda: text(browser, "fact-quorum") == "yes", "there is a quorum")
        generation = int(text(browser, "fact-generation"))
        inspect(browser, "live")

        own.kill(victim)
        wait_for(
            lambda: owners(browser).get(lost) not in (None, victim), "another one has it, without a reload"
        )
        takeover_text = rf"{victim} \((?!drain).*: broker {lost};.* \d+ ms"
        wait_for(lambda: re.search(takeover_text, text(browser, "takeovers")), "the takeover on the page")
        wait_for(lambda: states(browser).get(victim) in ("down", "suspect"), "the member is shown as dead")
        wait_for(lambda: int(text(browser, "fact-generation")) > generation, "the change is committed")
        assert f"Broker {lost}: {victim} to" in heard(browser)
        assert text(browser, "axis") != ""
        picture(browser, "live-takeover")
        assert violations(browser) == []
        load.await_flow()

        def flows() -> bool:
            """The first document may be of the second in which no records flowed."""
            shown = fleet_command(own, "top", "--once")
            now = {str(each["broker_id"]): each["advertised"] for each in shown["ownership"]["identities"]}
            if now != {broker: [owner] for broker, owner in owners(browser).items()}:
                return False  # one of the two was queried before something moved
            assert [
                each for each in shown["rate_sources"] if not each["rated"] and each["error"] is None
            ] == []
            return any(each["to_broker_bytes_per_s"] > 0 for each in shown["rates"])

        wait_for(flows, "the same state and the traffic in a terminal")
    assert load.failures == []
    script = "return performance.getEntriesByType('resource').map(each => each.name)"
    request_count: list[str] = browser.execute_script(script)
    assert [each for each in request_count if not each.startswith(address(own, told_by))] == []
    assert serious_log_entries(browser) == []


def test_page_shows_a_fleet_that_dies_member_by_member(started: LocalFleet, browser: Chrome) -> None:
    """A page reports in red that its state grows old, and then that it is old.

    A terminal switches from one reporter to the next, and reports the same. The number of live members at the
    beginning does not matter.
    """
    *reporters, last = started.running
    show(browser, started, last)
    stale = browser.find_element(By.ID, "fact-stale")
    assert (stale.text, stale.get_attribute("class")) == ("no", "")
    with Terminal("top", "--config", str(started.config)) as terminal:
        for reporter in reporters:
            terminal.await_all(f"reported by {reporter}", "not stale", "B/s")
            started.kill(reporter)
        terminal.await_all(
            f"reported by {last}", "no quorum for", r"stale for \d", rf"\d\d:\d\d:\d\d +{reporter}"
        )
        wait_for(lambda: "No quorum" in text(browser, "alarm"), "the page shows the message, too")
        wait_for(lambda: stale.get_attribute("class") == "bad", "in red")
        assert re.fullmatch(r"\d.* s", stale.text)
        wait_for(lambda: set(owners(browser).values()) == {last}, "the last member owns all identities")
        picture(browser, "live-no-quorum")
        assert violations(browser) == []

        looks = "return getComputedStyle(document.querySelector('.scroll')).filter"
        assert browser.execute_script(looks) == "none"
        started.freeze(last)
        try:
            terminal.await_all("no update for", f"reported by {last}")
            wait_for(
                lambda: "No update from this member" in text(browser, "alarm"),
                "the page reports the missing updates",
            )
            assert browser.execute_script(looks) == "grayscale(1)"
            picture(browser, "live-old")
            assert violations(browser) == []
        finally:
            started.thaw(last)
        terminal.await_none("no update for")
        assert terminal.interrupt() == 130
    assert terminal.left, "the screen is as it was before"
    wait_for(lambda: "No update" not in text(browser, "alarm"), "the member is back")
    assert browser.execute_script(looks) == "none"
