from __future__ import annotations

import io

import pytest
from rich.console import Console

from fleet.admin.documents import IdentityDocument, MemberDocument, OwnershipDocument, QuorumDocument
from fleet.core.model import IdentitySpace, Liveness, MemberStatus
from fleet.drills.demo.result import Round
from fleet.drills.demo.view import Lines, Picture, Terminal, round_line

ROUND = Round("p2", False, 12.4, 20.6, 250.0, 400.0, 500.0)


def member(proxy_id: str) -> MemberDocument:
    return MemberDocument(
        proxy_id=proxy_id,
        condition="up",
        status=MemberStatus.UP,
        liveness=Liveness.UP,
        drained=False,
        ready=True,
        generation=7,
        voter=True,
        witness=False,
        rack=None,
        admin="",
        connected=True,
        silent_s=0.0,
        incarnation=0,
        listeners=(),
        identities=IdentitySpace(),
    )


def document(proxy_id: str) -> OwnershipDocument:
    return OwnershipDocument(
        fleet="demo",
        proxy_id=proxy_id,
        version="1",
        now_ms=0,
        now_mono_s=0.0,
        incarnation=0,
        generation=7,
        revision=0,
        role="leader" if proxy_id == "p1" else "follower",
        leader="p1",
        term=1,
        commit_index=1,
        quorum=QuorumDocument(True, (), 0.0),
        staleness_s=0.0,
        suspects=(),
        members=(member("p1"), member("p3")),
        brokers=(),
        identities=(IdentityDocument(1, ("p2",), ("p2",), ("p3",), None, ()),),
        takeovers=(),
        raft_error=None,
        balanced_by="identities",
    )


def test_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    view = Lines()
    view.say("hello")
    view.add_round(ROUND)
    view.close()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"hello\n{round_line(ROUND)}\n"
    assert "killed p2, a follower: detected after 12 ms, advertised after 21 ms" in printed.err


def test_terminal_lines_name_no_source_file(capsys: pytest.CaptureFixture[str]) -> None:
    view = Terminal()
    view.say("killing")
    view.close()
    printed = capsys.readouterr().out
    assert "killing" in printed
    assert ".py" not in printed


def test_the_picture_shows_owners_members_rates_and_rounds() -> None:
    output = io.StringIO()
    view = Terminal(Console(file=output, force_terminal=True, width=120, height=50, color_system=None))
    try:
        view.say("killing")
        view.show(
            Picture(
                members={"p1": document("p1"), "p2": None, "p3": document("p3")},
                advertised={1: "p3", 2: None},
                acknowledged=4321,
                received=4320,
                produced_per_s=1199.6,
                consumed_per_s=1001.2,
            )
        )
        view.add_round(ROUND)
    finally:
        view.close()
    last = output.getvalue().rsplit("╭", 1)[1]
    rows = [line.strip("│ ").split() for line in last.splitlines()]
    assert ["1", "p3", "p2", "p3"] in rows
    assert ["2", "no", "owner"] in rows
    assert ["p1", "up", "leader", "7"] in rows
    assert ["p2", "dead"] in rows
    assert ["p3", "up", "follower", "7", "1"] in rows
    assert "1200 records/s, 4321 acknowledged" in last
    assert "p2 (follower)   12 ms" in last
