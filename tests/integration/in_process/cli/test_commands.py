"""fleet/cli: commands that ask members over HTTP and HTTPS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from fleet import cli
from fleet.admin.snapshot import Check, RaftView
from fleet.config.file import load
from fleet.core import errors
from fleet.core.model import Endpoint
from fleet.tls import admin as tls
from fleet.tls.tokens import Gate
from tests.integration.in_process.admin.test_server import listening
from tests.integration.in_process.tls import test_admin as admin_tls
from tests.unit.admin.sample_snapshot import MEMBERS, Source, view
from tests.unit.cli.test_commands import Out, config, run_json, secured
from tests.unit.config.test_file import tree

__all__ = ["config"]


@dataclass
class Served:
    source: Source
    url: str


@contextlib.contextmanager
def served(
    source: Source,
    sock: socket.socket | None = None,
    gate: Gate | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Served]:
    """A member's admin interface in a thread: commands bring event loops of their own."""
    import asyncio

    from fleet.admin.server import serve

    sock = listening() if sock is None else sock
    loop = asyncio.new_event_loop()
    runner = loop.run_until_complete(serve(source, sock, gate=gate, tls=tls))
    url = f"{'http' if tls is None else 'https'}://127.0.0.1:{sock.getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Served(source, url)
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture
def member() -> Iterator[Served]:
    with served(Source()) as one:
        yield one


def test_status_of_one_member(member: Served, capsys: Out) -> None:
    code, told = run_json(capsys, "status", "--admin", member.url)
    assert code == 0
    assert (told["leader"], told["generation"], told["agree"]) == ("p1", 7, True)
    assert [each["advertised"] for each in told["identities"]] == [["p1"], ["p3"], ["p3"]]
    assert told["answers"][0]["proxy_id"] == "p1"
    assert cli.run(["status", "--admin", member.url]) == 0
    out = capsys.readouterr().out
    assert "demo: generation 7, leader p1, term 4 (told by p1)" in out
    assert any(line.split()[:3] == ["2", "p2", "p3"] for line in out.splitlines())
    assert any(line.split()[:2] == ["p2", "suspect"] for line in out.splitlines())


def test_status_without_a_quorum_says_for_how_long_and_exits_with_3(member: Served, capsys: Out) -> None:
    member.source.shown = view(raft=RaftView(role="follower", quorum_lost_mono_s=25.5))
    code, told = run_json(capsys, "status", "--admin", member.url)
    assert (code, told["quorum"]["present"], told["quorum"]["lost_s"]) == (3, False, 75.0)
    assert cli.run(["status", "--admin", member.url]) == 3
    out = capsys.readouterr().out
    assert "no quorum for 1 min 15 s" in out
    assert "leader none" in out


def test_status_asks_all_members_and_shows_who_did_not_answer(
    config: Path, member: Served, capsys: Out
) -> None:
    data = tree()
    for number, settings in enumerate(data["members"].values()):
        settings["admin"] = member.url.removeprefix("http://") if number == 0 else f"127.0.0.1:{number}"
    config.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    code, told = run_json(capsys, "status", "-c", str(config))
    assert code == 0
    assert [each["proxy_id"] for each in told["answers"]] == ["p1", "p2", "p3"]
    assert [each["error"] is None for each in told["answers"]] == [True, False, False]
    assert cli.run(["status", "-c", str(config)]) == 0
    assert capsys.readouterr().out.count("cannot be asked: connect") == 2


def test_status_exits_with_3_where_nobody_answers(config: Path, capsys: Out) -> None:
    data = tree()
    for number, settings in enumerate(data["members"].values(), start=1):
        settings["admin"] = f"127.0.0.1:{number}"
    config.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    code, told = run_json(capsys, "status", "-c", str(config))
    assert (code, told["error"]["kind"]) == (3, "unreachable")
    assert cli.run(["status", "-c", str(config)]) == 3
    assert capsys.readouterr().err.startswith("fleet: no member answered: ")


def test_drain_and_undrain(member: Served, capsys: Out) -> None:
    code, told = run_json(capsys, "drain", "p2", "--admin", member.url)
    assert (code, told) == (0, {"proxy_id": "p2", "drained": True, "applied": True, "generation": 8})
    assert cli.run(["undrain", "p2", "--admin", member.url]) == 0
    assert "p2 is undrained" in capsys.readouterr().out
    assert member.source.asked == [("p2", True), ("p2", False)]


def test_drain_without_a_quorum_exits_with_3(member: Served, capsys: Out) -> None:
    member.source.outcome = errors.NoQuorum("no majority")
    code, told = run_json(capsys, "drain", "p2", "--admin", member.url)
    assert (code, told["error"]) == (3, {"kind": "no_quorum", "message": "no majority"})


def test_error_of_another_machine_is_shown_on_one_line(member: Served, capsys: Out) -> None:
    member.source.outcome = errors.NoQuorum("none\nfleet: all is well\x1b[2J\x9b31m")
    assert cli.run(["drain", "p2", "--admin", member.url]) == 3
    assert capsys.readouterr().err == "fleet: none\\nfleet: all is well\\x1b[2J\\x9b31m\n"


def test_plan_shows_what_would_move(member: Served, capsys: Out) -> None:
    code, told = run_json(capsys, "plan", "--without", "p1", "--admin", member.url)
    assert code == 0
    assert [(move["broker_id"], move["before"]) for move in told["moves"]] == [(1, ["p1"])]
    assert told["moves"][0]["after"][0] in ("p2", "p3")
    assert told["stays"] == [2, 3]
    assert next(load for load in told["loads"] if load["proxy_id"] == "p1") == {
        "proxy_id": "p1",
        "before": 1,
        "after": 0,
        "weight_before": None,
        "weight_after": None,
    }
    assert cli.run(["plan", "--without", "p1", "--admin", member.url]) == 0
    assert "Without p1, from generation 7" in capsys.readouterr().out
    assert member.source.asked == []


def test_plan_without_everybody_moves_nothing(member: Served, capsys: Out) -> None:
    arguments = [part for proxy_id in MEMBERS for part in ("--without", proxy_id)]
    code, told = run_json(capsys, "plan", *arguments, "--admin", member.url)
    assert (code, told["served"], told["moves"]) == (0, False, [])


def test_plan_without_a_stranger_is_a_mistake(member: Served, capsys: Out) -> None:
    code, told = run_json(capsys, "plan", "--without", "px", "--admin", member.url)
    assert (code, told["error"]["kind"]) == (2, "unknown_member")


def test_a_plan_by_weight_wants_events(config: Path, capsys: Out, member: Served) -> None:
    code, told = run_json(capsys, "plan", "--weights", "--config", str(config), "--admin", member.url)
    assert (code, "add `events: {}`" in told["error"]["message"]) == (3, True)


def test_endpoints_in_names_do_not_become_markup(member: Served, capsys: Out) -> None:
    shown = view()
    first = replace(shown.members[0], rack="[red]a", admin=Endpoint("::1", 1))
    member.source.shown = replace(shown, members=(first, *shown.members[1:]))
    assert cli.run(["status", "--admin", member.url]) == 0
    assert "[red]a" in capsys.readouterr().out


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Served, Path]]:
    """A member with tokens and TLS, and its configuration, in which the others are not there."""
    sock = listening()
    config = secured(tmp_path, sock.getsockname()[1])
    admin = load(config, {}).admin
    assert admin.tls is not None
    assert admin.tokens is not None
    gate, context = Gate(admin.tokens, str(config), {}), tls.following(admin.tls.of("p1"))
    with served(Source(), sock, gate=gate, tls=context) as one:
        yield one, config


def test_commands_take_token_and_authority_from_the_configuration(
    guarded: tuple[Served, Path], capsys: Out
) -> None:
    (one, config), address = guarded, guarded[0].url.removeprefix("https://")
    code, told = run_json(capsys, "status", "-c", str(config))
    assert (code, told["answers"][0]["admin"], told["answers"][0]["error"]) == (0, one.url, None)
    assert run_json(capsys, "plan", "--without", "p2", "-c", str(config))[0] == 0
    assert run_json(capsys, "drain", "p2", "-c", str(config))[1]["applied"]
    assert run_json(capsys, "undrain", "p2", "-c", str(config), "--admin", address)[1]["applied"]
    assert one.source.asked == [("p2", True), ("p2", False)]


def test_a_member_is_asked_whether_it_is_ready_as_its_container_does(
    guarded: tuple[Served, Path], capsys: Out, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By TLS where it has that, and without a token, which nobody needs for it."""
    one, config = guarded
    for name in ("read-token", "write-token"):
        (tmp_path / name).unlink()
    monkeypatch.setenv("FLEET_CONFIG", str(config))
    monkeypatch.setenv("FLEET_NODE", "p1")
    code, told = run_json(capsys, "ready")
    assert (code, told["ready"]) == (0, True)
    one.source.shown = view(checks=(Check("workers", True), Check("upstream", False, "none of 3")))
    code, told = run_json(capsys, "ready")
    assert (code, told["ready"]) == (1, False)
    assert cli.run(["ready"]) == 1
    assert capsys.readouterr().out == "not ready\nok      workers\nfailed  upstream: none of 3\n"
    assert run_json(capsys, "ready", "--node", "p2")[1]["error"]["kind"] == "unreachable"


def test_commands_take_the_token_from_the_environment(
    guarded: tuple[Served, Path], capsys: Out, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, config = guarded
    for name in ("read-token", "write-token"):
        (tmp_path / name).unlink()
    code, told = run_json(capsys, "drain", "p2", "-c", str(config))
    assert (code, told["error"]["kind"]) == (2, "config")
    assert "write-token: cannot be read" in told["error"]["message"]
    monkeypatch.setenv("FLEET_TOKEN", admin_tls.READ)
    assert run_json(capsys, "status", "-c", str(config))[0] == 0
    code, told = run_json(capsys, "drain", "p2", "-c", str(config))
    assert (code, "answered 403: this is the token to read" in told["error"]["message"]) == (3, True)
    assert admin_tls.READ not in told["error"]["message"]
    monkeypatch.setenv("FLEET_TOKEN", admin_tls.WRITE)
    assert run_json(capsys, "drain", "p2", "-c", str(config))[0] == 0
    assert one.source.asked == [("p2", True)]


def test_without_a_configuration_a_named_address_is_believed_as_the_system_does(
    guarded: tuple[Served, Path], capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = guarded
    monkeypatch.setenv("FLEET_TOKEN", admin_tls.READ)
    code, told = run_json(capsys, "status", "--admin", one.url)
    assert (code, "is not believed" in told["error"]["message"]) == (3, True)
    code, told = run_json(capsys, "status", "--admin", "http://192.0.2.1:7201")
    assert (code, "the token in the clear" in told["error"]["message"]) == (3, True)
