"""The wall clock may jump: it only labels moments for people, and no decision depends on it.

What comes of a jump in a fleet is looked at in `tests/chaos/test_clock_jump.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import fleet
from fleet.core.model import Broker, FleetState, Member, Ownership
from fleet.core.state import BrokersSeen, Command, MemberUp, OwnershipSet, apply, stamp

ROOT = Path(fleet.__file__).parent
WALL_CLOCK = re.compile(
    r"\btime\.time\(|\btime_ns\(|\bdatetime\.(?:now|utcnow|today)\(|\bgmtime\(|\blocaltime\("
)

ALLOWED = {
    "tls/checking.py": "until when a certificate is valid",
    "cli/certs.py": "until when a certificate is valid",
    "cli/pipeline.py": "up to when a report is, where nobody says",
    "control/process.py": "when a command was proposed, which is shown and never compared",
    "runtime/data_dir.py": "the name of what is set aside",
    "cli/doctor/collect.py": "how far members' clocks are from this one, which is shown",
    "cli/journal_files.py": "the name of what is set aside",
    "proxy/worker.py": "when something passed, in events",
    "control/clock.py": "when something was seen, in documents",
    "runtime/supervisor.py": "the number of a life, which grows whatever the clock says",
}
TOOLS = "drills/"
"""Modules that are not part of a member."""


def test_wall_clock_is_read_only_in_allowed_places() -> None:
    modules = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    found = {name for name, text in modules.items() if not name.startswith(TOOLS) and WALL_CLOCK.search(text)}
    assert found <= ALLOWED.keys()


def test_proposal_times_do_not_change_the_state() -> None:
    commands: tuple[Command, ...] = (
        MemberUp(Member("p1")),
        BrokersSeen((Broker(1, "kafka", 9092),)),
        OwnershipSet(0, {1: Ownership(("p1",))}),
    )

    def played(*times_ms: int) -> FleetState:
        state = FleetState()
        for number, (command, at_ms) in enumerate(zip(commands, times_ms, strict=True)):
            state, outcome = apply(state, stamp(command, f"c{number}", at_ms))
            assert outcome.applied
        return state

    assert played(1, 2, 3) == played(3_600_000, 1, 0)
