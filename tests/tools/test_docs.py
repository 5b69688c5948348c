"""The handbook: links have targets, commands exist, and every alert has a runbook."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import yaml

from fleet import cli
from fleet.config.file import load
from fleet.drills.demo.command import command as demo
from tools.bootstrap import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
MENTIONED = re.compile(r"`([^`\n]+)`")
"""A command inside a sentence; `tests/integration/test_commands.py` runs separate lines."""
FLEET = re.compile(r"(?:^|\s)fleet (?P<words>.*)$")
SHELL = re.compile(r"\s*[|;>&].*$")
"""Separators that may follow a command, before a second command."""
TARGET = re.compile(r"^([a-z-]+):.*##", re.MULTILINE)
RUNBOOKS_URL = "https://docs.example.com/kafka-proxy-fleet/runbooks.html"
"""Where alerts look for docs/runbooks.md until an operator replaces it."""


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of headings."""
    found = set()
    for heading in HEADING.findall(page.read_text()):
        text = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


def mentioned(page: Path) -> list[str]:
    return MENTIONED.findall(page.read_text())


def commands(page: Path) -> Iterator[list[str]]:
    for text in mentioned(page):
        found = FLEET.search(SHELL.sub("", text))
        if found is not None:
            try:
                yield shlex.split(found["words"])
            except ValueError:
                yield found["words"].split()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_mentioned_commands_and_options_exist(page: Path) -> None:
    for words in commands(page):
        command: click.Command = cli.cli
        while isinstance(command, click.Group) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        if command is cli.cli.commands["demo"]:
            command = demo  # `fleet demo` passes all its arguments on
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        if command is cli.cli and words and not words[0].startswith("-"):
            pytest.fail(f"fleet {words[0]}: no such command")
        if isinstance(command, click.Group) and words and words[0].isidentifier():
            pytest.fail(f"{command.name} {words[0]}: no such command")
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert options <= known | {"--help"}, (command.name, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_mentioned_targets_and_modules_exist(page: Path) -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text()))
    for words in map(str.split, mentioned(page)):
        if words[:1] == ["make"] and len(words) > 1:
            assert words[1] in targets, words
        if words[:2] == ["python", "-m"]:
            module = find_spec(words[2])
            assert module is not None, words
            assert module.submodule_search_locations is None or find_spec(f"{words[2]}.__main__"), words


def test_every_alert_links_to_its_runbook() -> None:
    loaded = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    links = {
        rule["alert"]: rule["annotations"]["runbook_url"]
        for group in loaded["groups"]
        for rule in group["rules"]
    }
    text = (ROOT / "docs" / "runbooks.md").read_text()
    sections = dict(
        zip(
            re.findall(r"^## (\w+)$", text, re.MULTILINE),
            re.split(r"^## ", text, flags=re.MULTILINE)[1:],
            strict=True,
        )
    )
    assert sorted(sections) == sorted(links)
    assert {link.partition("#")[0] for link in links.values()} == {RUNBOOKS_URL}
    assert RUNBOOKS_URL.endswith("/runbooks.html")
    for name, section in sections.items():
        # GitHub and mkdocs make the anchor of a heading in the same way.
        assert links[name].partition("#")[2] == name.lower()
        parts = re.findall(r"^- \*\*(.+?)\*\*: ", section, re.MULTILINE)
        assert parts == ["What it means", "Impact", "Check", "Fix", "Resolved when"], name
        assert "?" not in section, name


def test_chart_replaces_the_address_of_runbooks() -> None:
    chart = ROOT / "deploy" / "helm" / "fleet"
    assert yaml.safe_load((chart / "values.yaml").read_text())["monitoring"]["runbookUrl"] == RUNBOOKS_URL
    template = (chart / "templates" / "monitoring.yaml").read_text()
    value = f'(default "{RUNBOOKS_URL}" $.Values.monitoring.runbookUrl)'
    assert f'replace "{RUNBOOKS_URL}" {value}' in template


def test_walk_through_file_is_a_valid_configuration(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "three-machines.md").read_text()
    found = re.search(r"as `fleet\.yaml`:\n\n((?:    .*\n)+)", page)
    assert found is not None
    file = tmp_path / "fleet.yaml"
    file.write_text(textwrap.dedent(found[1]))
    settings = load(file, {})
    assert {each.peer.host for each in settings.members.values()} == {"vm-a", "vm-b", "vm-c"}
    for each in settings.members.values():
        (way_in,) = each.listeners
        last_port = way_in.first_port + settings.identities.count - 1
        assert f"| {way_in.bootstrap_port} to {last_port} |" in page
