"""Operators' commands: what is put in, and what is said when one is wrong or fails."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path

import pytest

from fleet.admin.operator_commands import check_program, command_for, run_command
from fleet.core.errors import CommandFailed, CommandTemplateError
from fleet.drills.workload.waiting import eventually

URL = "http://10.0.0.2:7201"


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_names_and_hosts_are_put_into_words_not_into_a_shell() -> None:
    command = "ssh {host} 'systemctl restart fleet@{proxy_id}; true'"
    assert command_for(command, "p2", URL) == ["ssh", "10.0.0.2", "systemctl restart fleet@p2; true"]


def test_what_is_put_in_is_not_looked_into_again() -> None:
    assert command_for("echo {proxy_id}", "{host}", URL) == ["echo", "{host}"]


def test_braces_that_name_nothing_are_left_alone() -> None:
    assert command_for("awk '{print $1}' {}", "p2", URL) == ["awk", "{print $1}", "{}"]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("", "--inject-command is empty"),
        ("ssh 'p2", "No closing quotation"),
        ("ssh {hots}", r"knows {proxy_id} and {host}, not {hots}"),
    ],
)
def test_what_is_no_command_is_said(template: str, why: str) -> None:
    with pytest.raises(CommandTemplateError, match=why):
        command_for(template, "p2", URL, "--inject-command")


def test_a_program_that_is_not_here_is_said_before_it_is_wanted() -> None:
    check_program(["sh"], "--heal-command")
    with pytest.raises(
        CommandTemplateError, match="--heal-command: there is no program no-such-program here"
    ):
        check_program(["no-such-program"], "--heal-command")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (python('import sys; print("trying"); sys.exit("no such unit")'), "exited with 1: no such unit"),
        (["/no/such/command"], "p2: /no/such/command cannot be started: No such file"),
    ],
)
async def test_a_command_that_fails_says_why(words: list[str], why: str) -> None:
    with pytest.raises(CommandFailed, match=why):
        await run_command(words, "p2")


async def test_a_command_that_hangs_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    child = tmp_path / "child"
    hangs = f"sleep 60 & echo $! > {shlex.quote(str(child))}; wait"
    with pytest.raises(CommandFailed, match="is not through after"):
        await run_command(["sh", "-c", hangs], "p2", 0.5)
    for _ in range(100):
        try:
            os.kill(int(child.read_text()), 0)
        except ProcessLookupError:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the child lives")


async def test_a_command_that_has_begun_is_let_come_to_its_end(tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    script = f"touch {shlex.quote(str(begun))}; sleep 0.3; touch {shlex.quote(str(ended))}"
    running = asyncio.create_task(run_command(["sh", "-c", script], "p2"))
    assert await eventually(begun.exists, 10.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.exists()
