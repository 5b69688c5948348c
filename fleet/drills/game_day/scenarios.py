"""The scenarios of game days, and what each requires of the operator's commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import wrap
from types import MappingProxyType
from typing import Final, Literal

Role = Literal["leader", "follower", "nobody"]
Effect = Literal["killed", "silent", "drained", "restarted", "nothing"]
"""The effect on the victim that must be visible from outside."""


@dataclass(frozen=True, slots=True)
class Example:
    """The commands for one kind of installation."""

    where: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of game day.

    Args:
        role: role of the victim.
        must: requirements on the commands, in sentences.
        needs: required options.
        takes: optional options.
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
        """Whether the other members must take over from a silent victim."""
        return self.effect in ("killed", "silent")


_KILL_MUST = (
    "--inject-command kills every process of the member at once (SIGKILL). A member that can drain fails the "
    "run. --heal-command starts the member again; leave it out if a service manager restarts the member."
)
_KILLS = (
    Example("systemd", ("--inject-command 'ssh {host} systemctl kill -s KILL fleet@{proxy_id}'",)),
    Example(
        "Docker",
        (
            "--inject-command 'ssh {host} docker kill {proxy_id}'",
            "--heal-command 'ssh {host} docker start {proxy_id}'",
        ),
    ),
    Example("Kubernetes, with the script of docs/game-day.md", ("--inject-command './pod kill {proxy_id}'",)),
)
_DROP = "-p tcp -m multiport --ports 7100,9100:9132 -j DROP"
_INSERT = f"iptables -I INPUT {_DROP}; iptables -I OUTPUT {_DROP}"
_DELETE = f"iptables -D INPUT {_DROP}; iptables -D OUTPUT {_DROP}"

SCENARIOS: Final[Mapping[str, Scenario]] = MappingProxyType(
    {
        "leader-kill": Scenario(
            "The Raft leader dies.",
            "leader",
            "killed",
            _KILL_MUST,
            frozenset({"inject-command"}),
            frozenset({"heal-command"}),
            _KILLS,
        ),
        "follower-kill": Scenario(
            "A member that does not lead dies.",
            "follower",
            "killed",
            _KILL_MUST,
            frozenset({"inject-command"}),
            frozenset({"heal-command"}),
            _KILLS,
        ),
        "leader-freeze": Scenario(
            "The Raft leader freezes, and resumes later. No connection is reset.",
            "leader",
            "silent",
            "--inject-command stops every process of the member (SIGSTOP), --heal-command resumes them "
            "(SIGCONT).",
            frozenset({"inject-command", "heal-command"}),
            examples=(
                Example(
                    "systemd",
                    (
                        "--inject-command 'ssh {host} systemctl kill -s STOP fleet@{proxy_id}'",
                        "--heal-command 'ssh {host} systemctl kill -s CONT fleet@{proxy_id}'",
                    ),
                ),
                Example(
                    "Docker",
                    (
                        "--inject-command 'ssh {host} docker pause {proxy_id}'",
                        "--heal-command 'ssh {host} docker unpause {proxy_id}'",
                    ),
                ),
                Example(
                    "Kubernetes, with the script of docs/game-day.md",
                    ("--inject-command './pod pause {proxy_id}'", "--heal-command './pod resume {proxy_id}'"),
                ),
            ),
        ),
        "drain": Scenario(
            "A member is drained, and undrained later: a planned move that applications do not notice.",
            "follower",
            "drained",
            "No command is needed if a member has a loopback admin address on this machine. Otherwise "
            "--inject-command drains the member and --heal-command undrains it.",
            takes=frozenset({"inject-command", "heal-command"}),
            examples=(
                Example(
                    "admin addresses that are not on loopback here",
                    (
                        "--inject-command 'ssh {host} fleet drain {proxy_id} --admin 127.0.0.1:7200'",
                        "--heal-command 'ssh {host} fleet undrain {proxy_id} --admin 127.0.0.1:7200'",
                    ),
                ),
            ),
        ),
        "blackhole": Scenario(
            "All packets to and from a member are dropped. No connection is reset, no request is answered.",
            "follower",
            "silent",
            "--inject-command drops every packet of the member's peer, bootstrap and identity ports, in both "
            "directions and on existing connections. --heal-command removes the rules.",
            frozenset({"inject-command", "heal-command"}),
            examples=(
                Example(
                    "iptables, for peer port 7100 and client ports 9100 to 9132",
                    (
                        f"--inject-command 'ssh {{host}} \"{_INSERT}\"'",
                        f"--heal-command 'ssh {{host}} \"{_DELETE}\"'",
                    ),
                ),
            ),
        ),
        "rolling-restart": Scenario(
            "All members are restarted, one by one, as `fleet rolling-restart` does.",
            "nobody",
            "restarted",
            "--restart-command restarts one member: it sends SIGTERM, waits for the end, and starts the "
            "member again.",
            frozenset({"restart-command"}),
            examples=(
                Example("systemd", ("--restart-command 'ssh {host} systemctl restart fleet@{proxy_id}'",)),
                Example("Docker", ("--restart-command 'ssh {host} docker restart -t 45 {proxy_id}'",)),
            ),
        ),
        "watch": Scenario(
            "No command runs: break something by hand during --duration.",
            "nobody",
            "nothing",
            "Heal the fleet before --duration is over.",
        ),
    }
)


def mistakes(name: str, given: frozenset[str]) -> str:
    """The error about missing or useless options of a scenario; empty without an error."""
    scenario = SCENARIOS[name]
    missing = sorted(scenario.needs - given)
    useless = sorted(given - scenario.needs - scenario.takes)
    if missing:
        return f"{name} needs {' and '.join(f'--{each}' for each in missing)}. {scenario.must}"
    if useless:
        return f"{name} does not use {' and '.join(f'--{each}' for each in useless)}. {scenario.must}"
    if scenario.effect == "drained" and len(given) == 1:
        return f"{name} takes --inject-command and --heal-command together, or neither"
    return ""


def page(name: str) -> str:
    """A scenario's section in the help of the command."""
    scenario = SCENARIOS[name]
    lines = [
        f"{name}: {scenario.summary}",
        *wrap(scenario.must, 96, initial_indent="  ", subsequent_indent="  "),
    ]
    for example in scenario.examples:
        lines.append(f"  {example.where}:")
        lines += [f"    {command}" for command in example.commands]
    return "\n".join(lines)
