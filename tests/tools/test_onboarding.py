"""The timing of a new user's first commands: parsing and report; `make test-long` runs the commands."""

from __future__ import annotations

from itertools import count

import pytest

from tests import onboarding

SHOWN = ["cloned\n", "Kafka is up\n", "killed p1, the Raft leader: …\n", "killed p3, a follower: …\n"]


def test_first_takeover_counts(capsys: pytest.CaptureFixture[str]) -> None:
    clock = count(1)
    times = onboarding.times_of(SHOWN, lambda: float(next(clock)))
    assert times == {"cloned_s": 1.0, "takeover_s": 2.0, "done_s": 3.0}
    assert capsys.readouterr() == ("", "".join(SHOWN))


@pytest.mark.parametrize(
    ("takeover_s", "code", "why"),
    [
        (onboarding.GOAL_S, 0, None),
        (onboarding.GOAL_S + 0.1, 0, "after 180.1 s, and not within 180 s"),
        (60.0, 2, "ended with 2; it has shown a takeover"),
        (None, 0, "no takeover"),
        (None, 124, "ended with 124; it has shown no takeover"),
    ],
)
def test_unsuitable_environment_is_reported_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    takeover_s: float | None,
    code: int,
    why: str | None,
) -> None:
    times = {"done_s": 200.0} | ({} if takeover_s is None else {"takeover_s": takeover_s})
    monkeypatch.setattr(onboarding, "watch", lambda _: (times, code))
    monkeypatch.setattr("sys.argv", ["newcomer", "--json"])
    assert onboarding.main() == (0 if why is None else 1)
    printed = capsys.readouterr()
    assert '"goal_s": 180.0' in printed.out
    assert (why or "") in printed.err
    assert bool(printed.err) == bool(why)


def test_missing_own_root_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onboarding, "UNSHARE", (("sh", "-c", "echo not permitted >&2; exit 1"),))
    with pytest.raises(RuntimeError, match="needs user namespaces, or root: not permitted"):
        onboarding.isolating()


def test_programs_at_home_stay_with_their_neighbours() -> None:
    path = "/home/me/.pyenv/shims:/home/me/.pyenv/bin:/usr/bin:/home/me:/home/you/bin:/home/me/go/bin"
    assert onboarding.programs(path, "/home/me") == [".pyenv", "go"]
