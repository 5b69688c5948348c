"""fleet/cli: commands that ask members over HTTP and HTTPS."""

from __future__ import annotations

import asyncio
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
from fleet.admin import client
from fleet.admin.snapshot import Check, RaftView
from fleet.config.file import load
from fleet.core import errors
from fleet.core.model import Endpoint, FleetState
from fleet.core.state import Outcome
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
    """Serve the admin interface of a member in a thread: commands start their own event loops."""
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


def test_status_prints_the_view_of_one_member(member: Served, capsys: Out) -> None:
    code, printed = run_json(capsys, "status", "--admin", member.url)
    assert code == 0
    assert (printed["leader"], printed["generation"], printed["agree"]) == ("p1", 7, True)
    assert [each["advertised"] for each in printed["identities"]] == [["p1"], ["p3"], ["p3"]]
    assert printed["answers"][0]["proxy_id"] == "p1"
    assert cli.run(["status", "--admin", member.url]) == 0
    out = capsys.readouterr().out
    assert "demo: generation 7, leader p1, term 4 (reported by p1)" in out
    assert any(line.split()[:3] == ["2", "p2", "p3"] for line in out.splitlines())
    assert any(line.split()[:2] == ["p2", "suspect"] for line in out.splitlines())


def test_status_without_a_quorum_exits_with_3(member: Served, capsys: Out) -> None:
    member.source.shown = view(raft=RaftView(role="follower", quorum_lost_mono_s=25.5))
    code, printed = run_json(capsys, "status", "--admin", member.url)
    assert (code, printed["quorum"]["present"], printed["quorum"]["lost_s"]) == (3, False, 75.0)
    assert cli.run(["status", "--admin", member.url]) == 3
    out = capsys.readouterr().out
    assert "no quorum for 1 min 15 s" in out
    assert "leader none" in out


def test_status_shows_members_that_did_not_answer(config: Path, member: Served, capsys: Out) -> None:
    data = tree()
    for number, settings in enumerate(data["members"].values()):
        settings["admin"] = member.url.removeprefix("http://") if number == 0 else f"127.0.0.1:{number}"
    config.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    code, printed = run_json(capsys, "status", "-c", str(config))
    assert code == 0
    assert [each["proxy_id"] for each in printed["answers"]] == ["p1", "p2", "p3"]
    assert [each["error"] is None for each in printed["answers"]] == [True, False, False]
    assert cli.run(["status", "-c", str(config)]) == 0
    assert capsys.readouterr().out.count("cannot be reached: connect") == 2


def test_status_without_an_answer_exits_with_3(config: Path, capsys: Out) -> None:
    data = tree()
    for number, settings in enumerate(data["members"].values(), start=1):
        settings["admin"] = f"127.0.0.1:{number}"
    config.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    code, printed = run_json(capsys, "status", "-c", str(config))
    assert (code, printed["error"]["kind"]) == (3, "unreachable")
    assert cli.run(["status", "-c", str(config)]) == 3
    assert capsys.readouterr().err.startswith("fleet: no member answered: ")


def test_drain_and_undrain_print_the_new_state(member: Served, capsys: Out) -> None:
    code, printed = run_json(capsys, "drain", "p2", "--admin", member.url)
    assert (code, printed) == (0, {"proxy_id": "p2", "drained": True, "applied": True, "generation": 8})
    assert cli.run(["undrain", "p2", "--admin", member.url]) == 0
    assert "p2 is undrained" in capsys.readouterr().out
    assert member.source.asked == [("p2", True), ("p2", False)]


def test_repeated_drain_says_so(member: Served, capsys: Out) -> None:
    member.source.outcome = Outcome(False, "no_change", 7)
    assert cli.run(["drain", "p2", "--admin", member.url]) == 0
    assert capsys.readouterr().out == "p2 is already drained (generation 7)\n"
    assert cli.run(["undrain", "p2", "--admin", member.url]) == 0
    assert capsys.readouterr().out == "p2 is already undrained (generation 7)\n"


def test_pin_and_unpin_print_the_new_state(member: Served, capsys: Out) -> None:
    code, printed = run_json(capsys, "pin", "2", "p1", "--admin", member.url)
    assert (code, printed) == (0, {"broker_id": 2, "proxy_id": "p1", "applied": True, "generation": 8})
    code, printed = run_json(capsys, "unpin", "2", "--admin", member.url)
    assert (code, printed) == (0, {"broker_id": 2, "proxy_id": None, "applied": True, "generation": 8})
    assert cli.run(["pin", "2", "p1", "--admin", member.url]) == 0
    assert capsys.readouterr().out == (
        "broker 2 is pinned to p1: that member owns it as long as it can (generation 8)\n"
    )
    assert cli.run(["unpin", "2", "--admin", member.url]) == 0
    assert capsys.readouterr().out == "broker 2 is unpinned: any member may own it (generation 8)\n"
    assert member.source.pinned == [(2, "p1"), (2, None)] * 2


def test_repeated_pin_says_so(member: Served, capsys: Out) -> None:
    member.source.outcome = Outcome(False, "no_change", 7)
    assert not run_json(capsys, "pin", "2", "p1", "--admin", member.url)[1]["applied"]
    assert cli.run(["pin", "2", "p1", "--admin", member.url]) == 0
    assert capsys.readouterr().out == "broker 2 is already pinned to p1 (generation 7)\n"
    assert cli.run(["unpin", "2", "--admin", member.url]) == 0
    assert capsys.readouterr().out == "broker 2 is already unpinned (generation 7)\n"


@pytest.mark.parametrize("command", [("pin", "9", "p1"), ("unpin", "9")])
def test_pin_of_an_unknown_broker_exits_with_2(command: tuple[str, ...], member: Served, capsys: Out) -> None:
    code, printed = run_json(capsys, *command, "--admin", member.url)
    assert (code, printed["error"]["kind"]) == (2, "not_found")
    assert "broker 9 is unknown" in printed["error"]["message"]
    assert member.source.pinned == []


def test_pin_to_an_unknown_member_exits_with_2(config: Path, member: Served, capsys: Out) -> None:
    """The configuration is checked first; without a configuration, the member refuses."""
    for arguments in (("-c", str(config)), ("--admin", member.url)):
        code, printed = run_json(capsys, "pin", "2", "p9", *arguments)
        assert (code, printed["error"]["kind"]) == (2, "unknown_member")
        assert "'p9'" in printed["error"]["message"]


def test_pin_without_a_quorum_exits_with_3(member: Served, capsys: Out) -> None:
    member.source.outcome = errors.NoQuorum("no majority")
    code, printed = run_json(capsys, "pin", "2", "p1", "--admin", member.url)
    assert (code, printed["error"]) == (3, {"kind": "no_quorum", "message": "no majority"})


@pytest.mark.parametrize("new_member_first", [True, False])
def test_pin_reports_no_quorum_before_an_unknown_broker(new_member_first: bool, member: Served) -> None:
    """A member that has just started without a quorum has an empty state, and knows no broker."""
    member.source.outcome = errors.NoQuorum("no majority")
    with served(Source(view(state=FleetState()))) as new_member:
        urls = [new_member.url, member.url]
        with pytest.raises(errors.NoQuorum):
            asyncio.run(client.pin(urls if new_member_first else urls[::-1], 2, "p1"))


def test_pin_without_an_answer_exits_with_3(capsys: Out) -> None:
    code, printed = run_json(capsys, "pin", "2", "p1", "--admin", "127.0.0.1:1")
    assert (code, printed["error"]["kind"]) == (3, "unreachable")


def test_pin_uses_the_token_of_the_configuration(guarded: tuple[Served, Path], capsys: Out) -> None:
    one, config = guarded
    assert run_json(capsys, "pin", "2", "p1", "-c", str(config))[1]["applied"]
    assert run_json(capsys, "unpin", "2", "-c", str(config))[1]["applied"]
    assert one.source.pinned == [(2, "p1"), (2, None)]


def test_drain_without_a_quorum_exits_with_3(member: Served, capsys: Out) -> None:
    member.source.outcome = errors.NoQuorum("no majority")
    code, printed = run_json(capsys, "drain", "p2", "--admin", member.url)
    assert (code, printed["error"]) == (3, {"kind": "no_quorum", "message": "no majority"})


def test_error_from_a_member_is_printed_on_one_line(member: Served, capsys: Out) -> None:
    member.source.outcome = errors.NoQuorum("none\nfleet: all is well\x1b[2J\x9b31m")
    assert cli.run(["drain", "p2", "--admin", member.url]) == 3
    assert capsys.readouterr().err == "fleet: none\\nfleet: all is well\\x1b[2J\\x9b31m\n"


def test_plan_shows_the_moves(member: Served, capsys: Out) -> None:
    code, printed = run_json(capsys, "plan", "--without", "p1", "--admin", member.url)
    assert code == 0
    assert [(move["broker_id"], move["before"]) for move in printed["moves"]] == [(1, ["p1"])]
    assert printed["moves"][0]["after"][0] in ("p2", "p3")
    assert printed["stays"] == [2, 3]
    assert next(load for load in printed["loads"] if load["proxy_id"] == "p1") == {
        "proxy_id": "p1",
        "before": 1,
        "after": 0,
        "weight_before": None,
        "weight_after": None,
    }
    assert cli.run(["plan", "--without", "p1", "--admin", member.url]) == 0
    assert "Without p1, from generation 7" in capsys.readouterr().out
    assert member.source.asked == []


def test_plan_without_all_members_moves_nothing(member: Served, capsys: Out) -> None:
    arguments = [part for proxy_id in MEMBERS for part in ("--without", proxy_id)]
    code, printed = run_json(capsys, "plan", *arguments, "--admin", member.url)
    assert (code, printed["served"], printed["moves"]) == (0, False, [])


def test_plan_without_an_unknown_member_exits_with_2(member: Served, capsys: Out) -> None:
    code, printed = run_json(capsys, "plan", "--without", "px", "--admin", member.url)
    assert (code, printed["error"]["kind"]) == (2, "unknown_member")


def test_plan_by_weight_requires_events(config: Path, capsys: Out, member: Served) -> None:
    code, printed = run_json(capsys, "plan", "--weights", "--config", str(config), "--admin", member.url)
    assert (code, "add `events: {}`" in printed["error"]["message"]) == (3, True)


def test_brackets_in_names_do_not_become_markup(member: Served, capsys: Out) -> None:
    shown = view()
    first = replace(shown.members[0], rack="[red]a", admin=Endpoint("::1", 1))
    member.source.shown = replace(shown, members=(first, *shown.members[1:]))
    assert cli.run(["status", "--admin", member.url]) == 0
    assert "[red]a" in capsys.readouterr().out


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Served, Path]]:
    """A running member with tokens and TLS, and its configuration, whose other members do not run."""
    sock = listening()
    config = secured(tmp_path, sock.getsockname()[1])
    admin = load(config, {}).admin
    assert admin.tls is not None
    assert admin.tokens is not None
    gate, context = Gate(admin.tokens, str(config), {}), tls.reloading_context(admin.tls.for_member("p1"))
    with served(Source(), sock, gate=gate, tls=context) as one:
        yield one, config


def test_token_and_authority_come_from_the_configuration(guarded: tuple[Served, Path], capsys: Out) -> None:
    (one, config), address = guarded, guarded[0].url.removeprefix("https://")
    code, printed = run_json(capsys, "status", "-c", str(config))
    assert (code, printed["answers"][0]["admin"], printed["answers"][0]["error"]) == (0, one.url, None)
    assert run_json(capsys, "plan", "--without", "p2", "-c", str(config))[0] == 0
    assert run_json(capsys, "drain", "p2", "-c", str(config))[1]["applied"]
    assert run_json(capsys, "undrain", "p2", "-c", str(config), "--admin", address)[1]["applied"]
    assert one.source.asked == [("p2", True), ("p2", False)]


def test_ready_uses_tls_and_needs_no_token(
    guarded: tuple[Served, Path], capsys: Out, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The health check of the container runs this command."""
    one, config = guarded
    for name in ("read-token", "write-token"):
        (tmp_path / name).unlink()
    monkeypatch.setenv("FLEET_CONFIG", str(config))
    monkeypatch.setenv("FLEET_NODE", "p1")
    code, printed = run_json(capsys, "ready")
    assert (code, printed["ready"]) == (0, True)
    one.source.shown = view(checks=(Check("workers", True), Check("upstream", False, "none of 3")))
    code, printed = run_json(capsys, "ready")
    assert (code, printed["ready"]) == (1, False)
    assert cli.run(["ready"]) == 1
    assert capsys.readouterr().out == "not ready\nok      workers\nfailed  upstream: none of 3\n"
    assert run_json(capsys, "ready", "--node", "p2")[1]["error"]["kind"] == "unreachable"


def test_token_comes_from_the_environment(
    guarded: tuple[Served, Path], capsys: Out, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, config = guarded
    for name in ("read-token", "write-token"):
        (tmp_path / name).unlink()
    code, printed = run_json(capsys, "drain", "p2", "-c", str(config))
    assert (code, printed["error"]["kind"]) == (2, "config")
    assert "write-token: cannot be read" in printed["error"]["message"]
    monkeypatch.setenv("FLEET_TOKEN", admin_tls.READ)
    assert run_json(capsys, "status", "-c", str(config))[0] == 0
    code, printed = run_json(capsys, "drain", "p2", "-c", str(config))
    assert (code, "answered 403: this token may only read" in printed["error"]["message"]) == (3, True)
    assert admin_tls.READ not in printed["error"]["message"]
    monkeypatch.setenv("FLEET_TOKEN", admin_tls.WRITE)
    assert run_json(capsys, "drain", "p2", "-c", str(config))[0] == 0
    assert one.source.asked == [("p2", True)]


def test_address_without_configuration_uses_system_authorities(
    guarded: tuple[Served, Path], capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = guarded
    monkeypatch.setenv("FLEET_TOKEN", admin_tls.READ)
    code, printed = run_json(capsys, "status", "--admin", one.url)
    assert (code, "the certificate is not trusted" in printed["error"]["message"]) == (3, True)
    code, printed = run_json(capsys, "status", "--admin", "http://192.0.2.1:7201")
    assert (code, "would expose the token" in printed["error"]["message"]) == (3, True)
