"""A rolling restart: when the fleet is at rest, whom to restart next, and what ends it."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from fleet.admin import client, rolling_restart
from fleet.admin.documents import OwnershipDocument
from fleet.admin.ownership import ownership_document
from fleet.admin.rolling_restart import choose_next, restart_all, unrest
from fleet.core.errors import AdminError, FleetError, RestartFailed
from fleet.core.model import Liveness
from fleet.tls.access import Access
from tests.unit.admin.sample_snapshot import COMMITTED, view

URLS = {"p1": "http://10.0.0.1:7201", "p2": "http://10.0.0.2:7201", "p3": "http://10.0.0.3:7201"}


def told(proxy_id: str, **changes: object) -> OwnershipDocument:
    """What a member of a fleet at rest says."""
    seen = view(upstream_up={1: True, 2: True, 3: True})
    members = tuple(replace(each, liveness=Liveness.UP, ready=True) for each in seen.members)
    directory = replace(seen.directory, advertised=COMMITTED, suspects=())
    whole = ownership_document(replace(seen, members=members, directory=directory))
    return replace(whole, proxy_id=proxy_id, **changes)  # type: ignore[arg-type]


def fleet(**changes: OwnershipDocument | FleetError) -> dict[str, OwnershipDocument | FleetError]:
    return {proxy_id: told(proxy_id) for proxy_id in URLS} | changes


def test_whole_fleet_is_at_rest() -> None:
    assert unrest(fleet()) == ""


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (fleet(p2=AdminError("refused")), "p2 does not answer: refused"),
        (fleet(p2=replace(told("p2"), quorum=replace(told("p2").quorum, present=False))), "p2 has no quorum"),
        (fleet(p2=replace(told("p2"), raft_error="disk full")), "p2 cannot vote: disk full"),
        (fleet(p3=told("p3", generation=6)), "p3 is not at generation 7 yet"),
        ({each: told(each, leader=None) for each in URLS}, "there is no leader"),
        ({each: ownership_document(view()) for each in URLS}, "p2 is suspect"),
        (
            {
                each: told(
                    each, identities=tuple(replace(i, advertised=("p3",)) for i in told(each).identities)
                )
                for each in URLS
            },
            "identity 1 is not advertised at its committed owner",
        ),
        (
            {
                each: told(
                    each,
                    identities=tuple(
                        replace(i, advertised=("p3",), committed=("p3",), pinned_to=None)
                        for i in told(each).identities
                    ),
                )
                for each in URLS
            },
            "is about to move",
        ),
    ],
)
def test_unrest_is_explained(answers: dict[str, OwnershipDocument | FleetError], why: str) -> None:
    assert why in unrest(answers)


def test_leader_is_restarted_last() -> None:
    assert choose_next({"p1", "p2", "p3"}, "p1") == "p2"
    assert choose_next({"p1", "p3"}, "p1") == "p3"
    assert choose_next({"p1"}, "p1") == "p1"
    assert choose_next({"p2", "p1"}, None) == "p1"


class Script:
    """Members that are asked over and over; a restarted one has another incarnation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, returns: bool = True) -> None:
        self.lives = dict.fromkeys(URLS, 1)
        self.restarted: list[str] = []
        self.said: list[str] = []
        self._returns = returns
        monkeypatch.setattr(client, "ask_all", self.ask_all)
        monkeypatch.setattr(rolling_restart, "POLL_INTERVAL_S", 0.001)
        monkeypatch.setattr(rolling_restart, "SETTLE_TIME_S", 0.002)

    async def ask_all(self, urls: dict[str, str], access: Access) -> dict[str, OwnershipDocument]:
        return {proxy_id: told(proxy_id, incarnation=self.lives[proxy_id]) for proxy_id in urls}

    def say(self, line: str) -> None:
        self.said.append(line)
        proxy_id, _, what = line.partition(": ")
        if what.startswith("restarting"):
            self.restarted.append(proxy_id)
            self.lives[proxy_id] += self._returns


async def test_members_are_restarted_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch)
    done = await restart_all(URLS, URLS, f"{sys.executable} -c pass", 30.0, script.say)
    assert script.restarted == ["p2", "p3", "p1"]
    assert [(each.proxy_id, each.was_leader) for each in done.members] == [
        ("p2", False),
        ("p3", False),
        ("p1", True),
    ]
    assert "p1: restarting, the Raft leader" in script.said


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (f"{sys.executable} -c 'import sys; sys.exit(\"no such unit\")'", "exited with 1: no such unit"),
        ("/no/such/command", "cannot start /no/such/command: No such file"),
    ],
)
async def test_failed_command_ends_the_rolling_restart(
    monkeypatch: pytest.MonkeyPatch, command: str, why: str
) -> None:
    script = Script(monkeypatch)
    with pytest.raises(RestartFailed, match=why):
        await restart_all(URLS, URLS, command, 30.0, script.say)
    assert script.restarted == ["p2"]


async def test_member_that_does_not_restart_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, returns=False)
    with pytest.raises(RestartFailed, match="it has not restarted; check the command"):
        await restart_all(URLS, URLS, f"{sys.executable} -c pass", 0.05, script.say)
    assert script.restarted == ["p2"]
