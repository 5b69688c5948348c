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


def test_placeholders_are_replaced_in_words_without_a_shell() -> None:
    command = "ssh {host} 'systemctl restart fleet@{proxy_id}; true'"
    assert command_for(command, "p2", URL) == ["ssh", "10.0.0.2", "systemctl restart fleet@p2; true"]


def test_replaced_text_is_not_replaced_again() -> None:
    assert command_for("echo {proxy_id}", "{host}", URL) == ["echo", "{host}"]


def test_braces_without_a_name_are_kept() -> None:
    assert command_for("awk '{print $1}' {}", "p2", URL) == ["awk", "{print $1}", "{}"]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("", "--inject-command is empty"),
        ("ssh 'p2", "No closing quotation"),
        ("ssh {hots}", r"unknown {hots}; use {proxy_id} and {host}"),
    ],
)
def test_invalid_command_template_is_refused(template: str, why: str) -> None:
    with pytest.raises(CommandTemplateError, match=why):
        command_for(template, "p2", URL, "--inject-command")


def test_missing_program_is_reported_beforehand() -> None:
    check_program(["sh"], "--heal-command")
    with pytest.raises(
        CommandTemplateError, match="--heal-command: no program no-such-program on this machine"
    ):
        check_program(["no-such-program"], "--heal-command")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (python('import sys; print("trying"); sys.exit("no such unit")'), "exited with 1: no such unit"),
        (["/no/such/command"], "p2: cannot start /no/such/command: No such file"),
    ],
)
async def test_failed_command_reports_the_reason(words: list[str], why: str) -> None:
    with pytest.raises(CommandFailed, match=why):
        await run_command(words, "p2")


async def test_hanging_command_ends_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    hangs = f"sleep 60 & echo $! > {shlex.quote(str(child))}; wait"
    with pytest.raises(CommandFailed, match="did not end within"):
        await run_command(["sh", "-c", hangs], "p2", 0.5)
    for _ in range(100):
        try:
            os.kill(int(child.read_text()), 0)
        except ProcessLookupError:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the child lives")


async def test_cancelled_command_runs_to_its_end(tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    script = f"touch {shlex.quote(str(begun))}; sleep 0.3; touch {shlex.quote(str(ended))}"
    running = asyncio.create_task(run_command(["sh", "-c", script], "p2"))
    assert await eventually(begun.exists, 10.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.exists()
