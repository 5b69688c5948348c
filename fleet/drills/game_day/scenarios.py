"""What a game day can be about, and what the operator's commands have to do for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import wrap
from types import MappingProxyType
from typing import Final, Literal

Role = Literal["leader", "follower", "nobody"]
Effect = Literal["killed", "silent", "drained", "restarted", "nothing"]
"""What has to be seen of the member that it happens to."""


@dataclass(frozen=True, slots=True)
class Example:
    """The commands of one kind of installation."""

    where: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing that can happen to a fleet.

    Args:
        role: to whom.
        needs: the options without which it cannot be.
        takes: those that may be given in addition.
        must: what the commands have to do, in sentences.
    """

    summary: str
    role: Role
    effect: Effect
    must: str
    needs: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()
    examples: tuple[Example, ...] = ()

    @property
    def cuts_off(self) -> bool:
        """Whether the others have to take over from a member that says nothing."""
        return self.effect in ("killed", "silent")


_KILL_MUST = (
    "--break ends every process of the member at once (SIGKILL): one that can say goodbye fails the run. "
    "--mend starts it again; leave it out where a service manager does so by itself."
)
_KILLS = (
    Example("systemd", ("--break 'ssh {host} systemctl kill -s KILL fleet@{proxy_id}'",)),
    Example(
        "Docker",
        ("--break 'ssh {host} docker kill {proxy_id}'", "--mend 'ssh {host} docker start {proxy_id}'"),
    ),
    Example("Kubernetes, with the script of docs/game-day.md", ("--break './pod kill {proxy_id}'",)),
)
_DROP = "-p tcp -m multiport --ports 7100,9100:9132 -j DROP"

SCENARIOS: Final[Mapping[str, Scenario]] = MappingProxyType(
    {
        "leader-kill": Scenario(
            "The Raft leader dies.",
            "leader",
            "killed",
            _KILL_MUST,
            frozenset({"break"}),
            frozenset({"mend"}),
            _KILLS,
        ),
        "follower-kill": Scenario(
            "A member that does not lead dies.",
            "follower",
            "killed",
            _KILL_MUST,
            frozenset({"break"}),
            frozenset({"mend"}),
            _KILLS,
        ),
        "leader-freeze": Scenario(
            "The Raft leader stops in its tracks, and goes on later: no connection is reset.",
            "leader",
            "silent",
            "--break stops every process of the member (SIGSTOP), --mend lets them go on (SIGCONT).",
            frozenset({"break", "mend"}),
            examples=(
                Example(
                    "systemd",
                    (
                        "--break 'ssh {host} systemctl kill -s STOP fleet@{proxy_id}'",
                        "--mend 'ssh {host} systemctl kill -s CONT fleet@{proxy_id}'",
                    ),
                ),
                Example(
                    "Docker",
                    (
                        "--break 'ssh {host} docker pause {proxy_id}'",
                        "--mend 'ssh {host} docker unpause {proxy_id}'",
                    ),
                ),
                Example(
                    "Kubernetes, with the script of docs/game-day.md",
                    ("--break './pod pause {proxy_id}'", "--mend './pod resume {proxy_id}'"),
                ),
            ),
        ),
        "drain": Scenario(
            "A member is drained, and undrained later: a planned move, of which applications see nothing.",
            "follower",
            "drained",
            "No command is needed: members do it, if one of them has a loopback admin address on this "
            "machine. Else --break drains the member and --mend undrains it.",
            takes=frozenset({"break", "mend"}),
            examples=(
                Example(
                    "admin addresses that are not loopback here",
                    (
                        "--break 'ssh {host} fleet drain {proxy_id} --admin 127.0.0.1:7200'",
                        "--mend 'ssh {host} fleet undrain {proxy_id} --admin 127.0.0.1:7200'",
                    ),
                ),
            ),
        ),
        "blackhole": Scenario(
            "All packets to and from a member are dropped: nothing is reset, nothing answers.",
            "follower",
            "silent",
            "--break drops every packet of the member's peer, bootstrap and identity ports, in both "
            "directions and in connections that stand; --mend undoes it.",
            frozenset({"break", "mend"}),
            examples=(
                Example(
                    "iptables, for peer port 7100 and client ports 9100 to 9132",
                    (
                        f"--break 'ssh {{host}} \"iptables -I INPUT {_DROP}; iptables -I OUTPUT {_DROP}\"'",
                        f"--mend 'ssh {{host}} \"iptables -D INPUT {_DROP}; iptables -D OUTPUT {_DROP}\"'",
                    ),
                ),
            ),
        ),
        "rolling-restart": Scenario(
            "All members are restarted, one by one, as `fleet rolling-restart` does.",
            "nobody",
            "restarted",
            "--command restarts one member: it sends SIGTERM, waits for the end, and starts it again.",
            frozenset({"command"}),
            examples=(
                Example("systemd", ("--command 'ssh {host} systemctl restart fleet@{proxy_id}'",)),
                Example("Docker", ("--command 'ssh {host} docker restart -t 45 {proxy_id}'",)),
            ),
        ),
        "watch": Scenario(
            "Nothing is done: break by hand what you like, for as long as --duration says.",
            "nobody",
            "nothing",
            "Have the fleet whole again when the time is over.",
        ),
    }
)


def mistakes(name: str, given: frozenset[str]) -> str:
    """Which options a scenario misses, or has no use for; empty where all is well."""
    scenario = SCENARIOS[name]
    missing = sorted(scenario.needs - given)
    useless = sorted(given - scenario.needs - scenario.takes)
    if missing:
        return f"{name} needs {' and '.join(f'--{each}' for each in missing)}. {scenario.must}"
    if useless:
        return f"{name} has no use for {' and '.join(f'--{each}' for each in useless)}. {scenario.must}"
    if scenario.effect == "drained" and len(given) == 1:
        return f"{name} takes --break and --mend together, or neither of them"
    return ""


def page(name: str) -> str:
    """A scenario for the help of the command."""
    scenario = SCENARIOS[name]
    lines = [
        f"{name}: {scenario.summary}",
        *wrap(scenario.must, 96, initial_indent="  ", subsequent_indent="  "),
    ]
    for example in scenario.examples:
        lines.append(f"  {example.where}:")
        lines += [f"    {command}" for command in example.commands]
    return "\n".join(lines)
