"""Modules that the fleet imports by name are part of the fleet: no import contract sees a string."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import fleet

FLEET = Path(fleet.__file__).parent
NAMED = re.compile(r"""["']((?:fleet|tests|tools|benchmarks)(?:\.\w+)+)["']""")
TOPICS = re.compile(r"fleet\.\w+(\.latest)?|fleet\.takeover\.\w+")
"""What looks like a module, and is the name of a topic or of a span."""


def named_modules() -> list[tuple[str, str]]:
    return [
        (path.relative_to(FLEET).as_posix(), name)
        for path in sorted(FLEET.rglob("*.py"))
        for name in NAMED.findall(path.read_text(encoding="utf-8"))
        if find_spec(name.partition(".")[0]) is not None and not TOPICS.fullmatch(name)
    ]


@pytest.mark.parametrize(("file", "name"), named_modules())
def test_named_module_exists_and_belongs_to_the_fleet(file: str, name: str) -> None:
    assert name.startswith("fleet."), f"{file}: {name} is not installed with the fleet"
    assert find_spec(name) is not None, f"{file}: there is no {name}"


def test_module_names_in_code_are_found() -> None:
    assert ("cli/game_day.py", "fleet.drills.spark_audit") in named_modules()
