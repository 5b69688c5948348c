"""The live page in a real browser, for simulated fleets in states that real fleets seldom reach."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from fleet.admin import live
from fleet.admin.documents import LIVE, LiveDocument
from fleet.admin.live import LiveFeed, Watcher
from fleet.admin.snapshot import FleetView
from fleet.core.model import BrokerId, Directory, ProxyId
from fleet.core.renamed_keys import RENAMED_KEYS
from fleet.core.takeover import Moment, Takeover, TakeoverLog
from fleet.tls import admin
from fleet.tls.tokens import Gate
from tests.browser import (
    NARROW,
    focused,
    inspect,
    press_keys,
    resize,
    serious_log_entries,
    tab_to,
    text,
    texts,
    violations,
)
from tests.integration.clients import wait_for
from tests.integration.in_process.cli.test_commands import Served, served
from tests.integration.in_process.tls.test_admin import READ, WRITE, secured
from tests.unit.admin.sample_snapshot import Source, view

pytestmark = [pytest.mark.size("test-all"), pytest.mark.timeout(300)]


@pytest.fixture
def member() -> Iterator[Served]:
    with served(Source()) as one:
        yield one


def buttons(browser: Chrome) -> list[str]:
    """The buttons in the tables, which change something."""
    script = "return [...document.querySelectorAll('td button')].map(each => each.ariaLabel)"
    return list(map(str, browser.execute_script(script)))


def shown(browser: Chrome) -> list[str]:
    """The brokers in the table."""
    return texts(browser, "#owners tbody th")


def enter(browser: Chrome, token: str) -> None:
    field = browser.find_element(By.ID, "token")
    field.send_keys(token)
    browser.find_element(By.ID, "enter").click()


def test_tokens_decide_rights(browser: Chrome, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        settings, source = secured(tmp_path, sock.getsockname()[1]), Source()
        assert settings.admin.tls is not None
        assert settings.admin.tokens is not None
        gate = Gate(settings.admin.tokens, settings.source, {})
        with served(
            source, sock, gate, admin.reloading_context(settings.admin.tls.for_member("p1"))
        ) as member:
            browser.get(member.url)
            dialog = browser.find_element(By.ID, "ask")
            wait_for(dialog.is_displayed, "the request for a token")
            assert violations(browser) == []
            enter(browser, "wrong-0123456789abcdef")
            wait_for(lambda: "not in admin.tokens" in text(browser, "ask-why"), "the error message")
            enter(browser, READ)
            wait_for(lambda: shown(browser) == ["1", "2", "3"], "the fleet for the read token")
            wait_for(lambda: "No rates yet: p1." in text(browser, "counted"), "its clock stands still")
            assert "–" in text(browser, "owners")  # noqa: RUF001 (as the page says what is not known)
            assert "B/s" not in text(browser, "owners")
            assert not dialog.is_displayed()
            assert buttons(browser) == []

            # Formerly, closing the tab was the only way to drop the write token.
            other = browser.find_element(By.ID, "other")
            other.click()
            assert dialog.is_displayed()
            assert violations(browser) == []
            browser.find_element(By.ID, "keep").click()
            assert not dialog.is_displayed()
            assert buttons(browser) == []
            other.click()
            enter(browser, WRITE)
            wait_for(lambda: "Drain p2" in buttons(browser), "buttons for the write token")
            browser.find_element(By.CSS_SELECTOR, "[aria-label='Drain p2']").click()
            browser.find_element(By.ID, "do").click()
            wait_for(lambda: source.asked == [("p2", True)], "the operation of the button")
            assert READ not in browser.current_url + browser.page_source
            assert WRITE not in browser.current_url + browser.page_source


def large(moved: dict[BrokerId, ProxyId], generation: int) -> FleetView:
    """Three hundred brokers, all but some of them owned by p1."""
    owned = {broker_id: (moved.get(broker_id, "p1"),) for broker_id in range(1, 301)}
    known = view().directory
    directory = Directory(generation, generation, owned, owned, known.members, {})
    return view(directory=directory)


def test_moves_are_reported_for_brokers_out_of_view(browser: Chrome, member: Served) -> None:
    """Rows after the first 200 were not updated, and a cleared filter showed hidden rows as new."""

    def shows_generation(generation: int) -> bool:
        return text(browser, "fact-generation") == str(generation)

    member.source.shown = large({}, 7)
    browser.get(member.url)
    wait_for(lambda: len(shown(browser)) == 200, "the first two hundred are shown")
    member.source.shown = large({250: "p3"}, 8)
    wait_for(lambda: text(browser, "news") == "Broker 250: p1 to p3.", "another row has moved")

    field = browser.find_element(By.ID, "filter")
    field.send_keys("25")
    wait_for(lambda: "250" in shown(browser) and "1" not in shown(browser), "the filtered rows")
    member.source.shown = large({250: "p3", 7: "p2"}, 9)
    wait_for(lambda: text(browser, "news") == "Broker 7: p1 to p2.", "a hidden row has moved")
    member.source.shown = large({250: "p3", 7: "p2", 251: "p2"}, 10)
    wait_for(lambda: text(browser, "news") == "Broker 251: p1 to p2.", "a shown row has moved")
    assert browser.find_elements(By.CSS_SELECTOR, "#owners .moved")
    field.clear()
    wait_for(lambda: "7" in shown(browser), "all are shown")
    member.source.shown = large({250: "p3", 7: "p2", 251: "p2"}, 11)
    wait_for(lambda: shows_generation(11), "nothing has moved")
    assert text(browser, "news") == "Broker 251: p1 to p2."
    assert serious_log_entries(browser) == []


def test_silently_lost_host_is_requested_again(
    browser: Chrome, member: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pending read never ended."""
    operations, follow = 0, LiveFeed.follow

    async def lost(live: LiveFeed, watcher: Watcher) -> AsyncGenerator[bytes, None]:
        nonlocal operations
        operations += 1
        this = operations
        async for document in follow(live, watcher):
            yield document
            if this == 1:
                await asyncio.Event().wait()

    monkeypatch.setattr(LiveFeed, "follow", lost)
    browser.get(member.url)
    wait_for(lambda: shown(browser) == ["1", "2", "3"], "the rows are shown")
    member.source.shown = view(directory=replace(view().directory, generation=99))
    wait_for(lambda: "No update" in text(browser, "alarm"), "the page says that the state is old")
    wait_for(lambda: text(browser, "fact-generation") == "99", "the next update")
    wait_for(lambda: "No update" not in text(browser, "alarm"), "the page reports updates again")
    assert operations >= 2


def test_document_of_the_previous_release_is_shown(
    browser: Chrome, member: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rollback, or behind an address that members of two releases share."""

    def only_old_keys(document: LiveDocument) -> bytes:
        def without_new(value: Any) -> Any:
            if isinstance(value, list):
                return [without_new(each) for each in value]
            if isinstance(value, dict):
                return {key: without_new(each) for key, each in value.items() if key not in RENAMED_KEYS}
            return value

        return json.dumps(without_new(json.loads(LIVE.encode(document)))).encode()

    stopping = replace(view().members[0], stopping=True)
    member.source.shown = replace(
        view(raft=replace(view().raft, error="its disk is full")),
        members=(stopping, *view().members[1:]),
    )
    monkeypatch.setattr(live, "LIVE", SimpleNamespace(encode=only_old_keys))
    browser.get(member.url)
    wait_for(lambda: shown(browser) == ["1", "2", "3"], "its brokers are shown")
    assert "its disk is full" in text(browser, "alarm")
    assert "leaving" in texts(browser, "#members tbody td")


NOW_MS = 1_790_000_000_000
AGO_S = {"p1": 270, "p2": 265, "p3": 30}


@dataclass
class ServerThread(Source):
    """Its clock advances by a second after every ten looks."""

    looks: int = 0

    def view(self) -> FleetView:
        self.looks += 1
        takeover_log = TakeoverLog()
        for proxy_id, ago_s in AGO_S.items():
            at = Moment(NOW_MS - 1000 * ago_s, 1000.0 - ago_s)
            soon = Moment(at.wall_ms + 40, at.mono_s + 0.04)
            takeover_log = takeover_log.put(Takeover(proxy_id, "silent", at, (2,), soon, soon))
        now = Moment(NOW_MS + 100 * self.looks, 1000.0 + self.looks / 10)
        return replace(self.shown, now=now, takeovers=takeover_log)


def places(browser: Chrome, selector: str) -> list[dict[str, Any]]:
    """The positions of elements in the window, and their texts."""
    found = browser.find_elements(By.CSS_SELECTOR, selector)
    return [{**each.rect, "says": each.text} for each in found if each.is_displayed()]


def test_takeovers_are_on_a_time_line(browser: Chrome) -> None:
    with served(ServerThread()) as member:
        browser.get(member.url)
        wait_for(lambda: places(browser, "#axis button"), "the line in the log")
        assert text(browser, "span").startswith("From ")
        # Two takeovers within five seconds of five minutes are one mark.
        assert [each["says"] for each in places(browser, "#axis button")] == ["2", "1"]
        (axis,) = places(browser, "#axis")
        marks = places(browser, "#axis li")
        for mark, ago_s in zip(marks, (AGO_S["p1"], AGO_S["p3"]), strict=True):
            middle = (mark["x"] + mark["width"] / 2 - axis["x"]) / axis["width"]
            assert 1 - (ago_s + 20) / 300 < middle < 1 - (ago_s - 5) / 300
        labels = [
            each.get_attribute("aria-label")
            for each in browser.find_elements(By.CSS_SELECTOR, "#axis button")
        ]
        assert ["p1, p2" in str(labels[0]), "p3" in str(labels[1])] == [True, True]

        tab_to(browser, str(labels[1]))
        before = text(browser, "span")
        wait_for(lambda: text(browser, "span") != before, "time goes on")
        assert focused(browser) == labels[1]
        press_keys(browser, Keys.ENTER)
        assert "p3 (silent): broker 2" in browser.switch_to.active_element.text

        inspect(browser, "live-takeovers")
        resize(browser, NARROW, "light")
        for row in (places(browser, "#axis li"), places(browser, "#ticks span")):
            edges = [(each["x"], each["x"] + each["width"]) for each in row]
            assert len(edges) >= 2
            assert all(end <= begin for (_, end), (begin, _) in pairwise(edges)), edges
        assert serious_log_entries(browser) == []
