"""Tests read no private attribute of another module's objects: they use the public interface.

A test that needs more makes the attribute public, under a plain name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from tools.bootstrap import ROOT

LIBRDKAFKA: Final = "librdkafka publishes its local error codes under names that begin with an underscore"
PYSYNCOBJ: Final = "pysyncobj has no public name for it; fleet/raft/guards.py checks the version"
PYTEST: Final = "pytest has no public name for it"
ALLOWED: Final = MappingProxyType(
    {
        "_AUTHENTICATION": LIBRDKAFKA,
        "_STATE": LIBRDKAFKA,
        "_TIMED_OUT": LIBRDKAFKA,
        "_SyncObj__raftElectionDeadline": PYSYNCOBJ,
        "_SyncObj__raftLog": PYSYNCOBJ,
        "_destroy": "pysyncobj calls the method of a journal by this name",
        "_exit": "the public name of os._exit",
        "_setupstate": PYTEST,
        "_tmp_path_factory": PYTEST,
        "_sslobj": "ssl has no public name for the OpenSSL object, which alone can ask for new keys",
    }
)
"""Attribute of a library → why tests need it."""


def private_accesses(source: str) -> Iterator[tuple[int, str]]:
    """Line and expression of each private attribute of an object that the same file does not define.

    An attribute is defined by a function, by a class, or by an assignment to an attribute of `self`.
    """
    nodes = list(ast.walk(ast.parse(source)))
    accesses = [each for each in nodes if isinstance(each, ast.Attribute) and is_private(each.attr)]
    own = {
        each.name for each in nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    own |= {each.attr for each in accesses if is_self(each.value) and isinstance(each.ctx, ast.Store)}
    for each in accesses:
        if not is_self(each.value) and each.attr not in own | ALLOWED.keys():
            yield each.lineno, ast.unparse(each)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def test_tests_read_no_private_attributes() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {expression}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, expression in private_accesses(path.read_text())
    ]
    assert found == [], "make the attribute public, or name the library and the reason in ALLOWED"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("worker._limiter.enforce()", ["worker._limiter"]),
        ("worker._draining = True", ["worker._draining"]),
        ("class A:\n def f(self):\n  return super()._g()", ["super()._g"]),
        ("class A:\n def f(self):\n  self._x = 1\na._x", []),
        ("class A:\n def _f(self): ...\na._f()", []),
        ("self._x + cls._y + a.__class__", []),
        ("os._exit(1)", []),
    ],
)
def test_private_accesses_are_found(source: str, found: list[str]) -> None:
    assert [expression for _, expression in private_accesses(source)] == found


def test_allowed_attributes_are_all_in_use() -> None:
    text = "".join(path.read_text() for path in Path(ROOT, "tests").rglob("*.py") if path != Path(__file__))
    assert [name for name in ALLOWED if f".{name}" not in text] == []
