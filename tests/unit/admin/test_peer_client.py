"""fleet/admin/peer_client.py: whom a member asks, with what, and whom it believes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from fleet.admin import peer_client
from fleet.admin.peer_client import Peers
from fleet.admin.traffic import Counts
from fleet.config import Settings
from fleet.core.errors import AdminError, ConfigError
from fleet.core.model import ProxyId
from fleet.tls.access import Access, access_to
from tests.integration.in_process.tls.test_admin import READ, WRITE, secured, write_token
from tests.unit.admin.test_live import counts


class Asked:
    """In the place of the network, and of what is made of files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: Counts) -> None:
        self.answers = answers
        self.tokens: list[str | None] = []
        self.made_in: list[threading.Thread] = []
        monkeypatch.setattr(peer_client, "ask_traffic", self._ask)
        monkeypatch.setattr(peer_client, "access_to", self._make)

    async def _ask(self, urls: Mapping[ProxyId, str], timeout_s: float, access: Access) -> Counts:
        self.tokens.append(access.token)
        return {each: self.answers[each] for each in urls}

    def _make(self, settings: Settings, environ: Mapping[str, str]) -> Access:
        self.made_in.append(threading.current_thread())
        return access_to(settings, environ)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch, {each: counts(1.0, proxy_id=each) for each in ("p1", "p2", "p3")})


async def test_answer_of_another_member_is_refused(asked: Asked, tmp_path: Path) -> None:
    """Where all admin addresses are 0.0.0.0, each peer is asked at 127.0.0.1: a member counted itself."""
    asked.answers = {"p1": counts(1.0), "p2": counts(1.0), "p3": counts(1.0, proxy_id="p3")}
    told = await Peers(secured(tmp_path), "p1", {}).traffic()
    assert told["p3"] is asked.answers["p3"]
    assert isinstance(told["p2"], AdminError)
    assert str(told["p2"]).endswith("is p1, not p2")
    assert told.keys() == {"p2", "p3"}


async def test_changed_files_are_read_off_the_loop(asked: Asked, tmp_path: Path) -> None:
    others = Peers(secured(tmp_path), "p1", {})
    (tmp_path / "write-token").unlink()
    for _ in range(3):
        await others.traffic()
    assert len(asked.made_in) == 1
    write_token(tmp_path / "read-token", f"{READ}-anew")
    await others.traffic()
    assert asked.tokens == [READ] * 3 + [f"{READ}-anew"]
    assert threading.main_thread() not in asked.made_in


async def test_removed_token_is_no_longer_used(asked: Asked, tmp_path: Path) -> None:
    others = Peers(secured(tmp_path), "p1", {})
    await others.traffic()
    (tmp_path / "read-token").unlink()
    (tmp_path / "write-token").unlink()
    assert {type(each) for each in (await others.traffic()).values()} == {ConfigError}
    assert {type(each) for each in (await others.traffic()).values()} == {ConfigError}
    write_token(tmp_path / "write-token", WRITE)
    await others.traffic()
    assert asked.tokens == [READ, WRITE]


async def test_token_file_of_the_environment_is_reloaded(asked: Asked, tmp_path: Path) -> None:
    write_token(tmp_path / "mine", WRITE)
    others = Peers(secured(tmp_path), "p1", {"FLEET_TOKEN_FILE": str(tmp_path / "mine")})
    await others.traffic()
    write_token(tmp_path / "mine", f"{WRITE}-anew")
    await others.traffic()
    assert asked.tokens == [WRITE, f"{WRITE}-anew"]
