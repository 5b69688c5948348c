"""fleet/core/errors.py: the tree in the docstring has every class, at its place in the hierarchy."""

from __future__ import annotations

import re

from fleet.core import errors
from fleet.core.errors import FleetError

_BRANCH_CHARACTERS = 4
"""Width of one level of the tree, such as ``├── ``."""


def drawn_parents() -> dict[str, str]:
    """Class name → name of its parent, as the docstring draws them."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in str(errors.__doc__).splitlines():
        found = re.match(r"([│├└─ ]*)([A-Z]\w+)(?: {2,}\S|$)", line)
        if found is None:
            continue
        depth = len(found[1]) // _BRANCH_CHARACTERS
        path[depth:] = [found[2]]
        if depth:
            parents[found[2]] = path[depth - 1]
    return parents


def defined_parents(base: type[FleetError] = FleetError) -> dict[str, str]:
    """Class name → name of its parent, for the classes that the module defines."""
    parents: dict[str, str] = {}
    for each in base.__subclasses__():
        if each.__module__ == errors.__name__:
            parents |= {each.__name__: base.__name__, **defined_parents(each)}
    return parents


def test_docstring_tree_has_every_error_class() -> None:
    assert drawn_parents() == defined_parents()
    assert len(drawn_parents()) > 20
