"""No printer of a document lets text from outside control the terminal."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from rich.console import Console

from fleet.admin.documents import ERROR, ErrorDetail, ErrorDocument
from fleet.cli import journal_files
from fleet.cli.render import pipeline, tables, top
from fleet.drills.game_day import report as game_day_report

HOSTILE = "\x1b]0;x\x07\n\x9b31m\u202e[red]"
SHOWN = r"\x1b]0;x\x07\n\x9b31m\u202e[red]"
MODULES: tuple[ModuleType, ...] = (tables, top, pipeline, game_day_report, journal_files)
PRINTERS: Mapping[str, Callable[[Any, Console], None]] = {
    f"{module.__name__}.{name}": found
    for module in MODULES
    for name, found in inspect.getmembers(module, inspect.isfunction)
    if name.startswith("print_") and found.__module__ == module.__name__
}


def make_hostile(kind: Any) -> Any:
    """A value of a type, with hostile text in every string."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return make_hostile(next(each for each in arguments if each is not NoneType))
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        kinds = arguments[:1] if arguments[-1] is Ellipsis else arguments
        return tuple(make_hostile(each) for each in kinds)
    if origin is not None and issubclass(origin, Mapping):
        return {make_hostile(arguments[0]): make_hostile(arguments[1])}
    if is_dataclass(kind):
        assert isinstance(kind, type)
        hints = get_type_hints(kind)
        return kind(**{field.name: make_hostile(hints[field.name]) for field in fields(kind) if field.init})
    if issubclass(kind, Enum):
        return next(iter(kind))
    if kind in (str, Path):
        return kind(HOSTILE)
    return kind(1)


@pytest.mark.parametrize("name", PRINTERS)
def test_document_does_not_control_the_terminal(name: str) -> None:
    printer = PRINTERS[name]
    kind = next(iter(get_type_hints(printer).values()))
    out = io.StringIO()
    printer(make_hostile(kind), Console(file=out, width=10_000, highlight=False))
    printed = out.getvalue()
    assert all(line.isprintable() for line in printed.split("\n")), printed
    assert SHOWN in printed


def test_printers_of_all_kinds_of_documents_are_found() -> None:
    assert {"print_status", "print_live", "print_anomalies", "print_pipeline", "print_result"} <= {
        name.rpartition(".")[2] for name in PRINTERS
    }


def test_json_does_not_control_the_terminal() -> None:
    document = ErrorDocument(ErrorDetail("unreachable", HOSTILE))
    encoded = ERROR.encode(document)
    assert encoded.decode().isprintable()
    assert ERROR.decode(encoded) == document
