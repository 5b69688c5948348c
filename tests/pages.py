"""The commands of the pages for people, line by line as a reader would paste them.

A block is what is fenced without a language, or indented as code. Each one holds commands, or is known here
as something else. What is neither run nor named fails `tests/integration/test_commands.py`, and so does what
is named and is on no page.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import yaml
from markdown_it import MarkdownIt

from tools.bootstrap import ROOT

PAGES: Final = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *(str(each.relative_to(ROOT)) for each in sorted((ROOT / "docs").rglob("*.md"))),
)
PROGRAMS: Final = frozenset(
    {
        "(umask",
        ".venv/bin/python",
        "FLEET_COMPILE=1",
        "curl",
        "docker",
        "fleet",
        "helm",
        "kafka-acls",
        "kcat",
        "kubectl",
        "make",
        "pip",
        "python",
        "python3",
        "sed",
        "sudo",
        "systemctl",
    }
)
"""What a line that is a command begins with."""
FRAGMENT: Final = "--scenario "
"""What a line begins with that is the rest of a `fleet game-day`."""
SCRIPT: Final = "#!"
OTHER_LANGUAGES: Final = frozenset({"json", "python", "yaml"})
_CHUNK: Final = re.compile(r"(?:^.*\S.*\n)+", re.MULTILINE)
_SETTING: Final = re.compile(r"[\w.]+=\S*")
_KEY: Final = re.compile(r"[\w.]+")

SHOWN: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        ("README.md", "clients ── bootstrap"): "a drawing",
        ("README.md", "┌──"): "a drawing",
        ("README.md", "killed p1"): "what make demo prints",
        ("docs/adr/0003-describe-configs.md", "listeners, adv"): "names of settings",
        ("docs/clients.md", "let backoff = BackoffConfig"): "settings of rskafka",
        ("docs/architecture.md", ""): "what modules offer one another",
        ("docs/architecture.md", "fleet node ── supervisor"): "a drawing",
        ("docs/configuration.md", "fleet.yaml:12:"): "what fleet check prints",
        ("docs/game-day.md", "leader-kill on fleet demo"): "what fleet game-day prints",
        ("docs/tracing.md", "FROM fleet"): "a container file",
    }
)
"""Blocks that are no commands, by page and how they begin."""


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that belong together, as far left as they go.

    Args:
        number: of its first line on the page.
        language: what its fence says, if anything.
    """

    page: str
    number: int
    text: str
    language: str = ""

    @property
    def first_word(self) -> str:
        return (self.text.split() or [""])[0]

    @property
    def shown(self) -> tuple[str, str] | None:
        """Which entry of `SHOWN` it answers to: one with its first words, before one with its page alone."""
        begun = (each for each in SHOWN if each[0] == self.page and self.text.lstrip().startswith(each[1]))
        entry = max(begun, key=lambda each: len(each[1]), default=None)
        if entry is not None and not entry[1] and self.first_word in PROGRAMS:
            return None
        return entry

    @property
    def is_commands(self) -> bool:
        """Whether it begins as they do."""
        begun = self.first_word in PROGRAMS or self.text.startswith((FRAGMENT, SCRIPT))
        return begun and self.shown is None

    @property
    def is_data(self) -> bool:
        """Whether it is a file's content: of YAML, of properties, or of another language."""
        if self.language:
            return self.language in OTHER_LANGUAGES
        if all(_SETTING.fullmatch(line.strip()) for line in self.text.splitlines()):
            return True
        try:
            found = yaml.safe_load(self.text)
        except yaml.YAMLError:
            return False
        return isinstance(found, dict) and all(_KEY.fullmatch(str(key)) for key in found)


@dataclass(frozen=True, slots=True)
class Line:
    """One command, as it stands on the page; lines that end with a backslash are one with the next."""

    page: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.number}: {self.text}"


def blocks(page: str, text: str | None = None) -> Iterator[Block]:
    """All of a page; where a line in between is empty, another one begins."""
    for token in MarkdownIt().parse(text if text is not None else Path(ROOT, page).read_text()):
        if token.type in ("code_block", "fence") and token.map is not None:
            first = token.map[0] + (2 if token.type == "fence" else 1)
            for found in _CHUNK.finditer(token.content):
                number = first + token.content.count("\n", 0, found.start())
                yield Block(page, number, textwrap.dedent(found[0]).rstrip(), token.info)


def commands(page: str, text: str | None = None) -> Iterator[Line]:
    """Those of a page, in its order; a script is one line that begins with ``#!``.

    Raises: AssertionError: a block, or a line among commands, is nothing that is known here.
    """
    for block in blocks(page, text):
        if block.text.startswith(SCRIPT):
            yield Line(page, block.number, block.text)
        elif block.is_commands:
            yield from _lines(block)
        elif block.shown is None:
            known = "neither a command of PROGRAMS, nor data, nor in SHOWN"
            assert block.is_data, f"{page}:{block.number}: {known}: {block.text}"


def _lines(block: Block) -> Iterator[Line]:
    pending, begun = "", 0
    for offset, line in enumerate(block.text.splitlines()):
        begun = begun if pending else block.number + offset
        pending += line.strip()
        if pending.endswith("\\"):
            pending = pending.removesuffix("\\")
            continue
        found, pending = Line(block.page, begun, pending), ""
        is_known = found.text.split()[0] in PROGRAMS or found.text.startswith(FRAGMENT)
        assert is_known, f"{found}: not a command of PROGRAMS"
        yield found
