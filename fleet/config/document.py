"""A YAML document as plain values, with the line of each field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml

Path: TypeAlias = tuple[str, ...]
Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value] | None"

MAX_NODES = 100_000
MAX_DEPTH = 50
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_MERGE_TAG = "tag:yaml.org,2002:merge"
_TEXT_TAG = "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in the file.

    Args:
        line: line number, counted from 1; 0 if the mistake has no line.
        path: keys from the top level down to the field.
        value: the value in the file, shortened; "" if the field has no value.
        rule: the rule that the value breaks.
        fix: what to write instead.
    """

    line: int
    path: Path
    value: str
    rule: str
    fix: str

    def text(self, source: str) -> str:
        where = f"{source}:{self.line}" if self.line else source
        parts = [where, ".".join(self.path), self.value, f"{self.rule}; {self.fix}"]
        return ": ".join(part for part in parts if part)


@dataclass(slots=True)
class Document:
    """A parsed file.

    Args:
        data: the values. Keys are always text, so that a member may be named ``no`` or ``1``.
        lines: the line of each field's key.
        problems: duplicate keys, unset variables and syntax errors.
    """

    data: Value = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """The line of a field, or of the nearest enclosing field that the file has."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def report(self, path: Path, value: object, rule: str, fix: str, line: int | None = None) -> None:
        shown = "" if value is None else shorten(value)
        self.problems.append(Problem(self.line(path) if line is None else line, path, shown, rule, fix))


def shorten(value: object) -> str:
    """A value as an operator wrote it, on one line of at most 60 characters."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = f'"{value}"'
    else:
        text = str(value)
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."


class _TooManyNodes(Exception):
    pass


class _TooDeep(Exception):
    """The document is nested too deep. Args: line: the line of the first value that is too deep."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _Reader:
    """Walks the node tree of one document once and records the line of each field."""

    def __init__(self, text: str, environ: Mapping[str, str]) -> None:
        self._loader = yaml.SafeLoader(text)
        self._environ = environ
        self._nodes = 0
        self.document = Document()

    def read(self) -> Document:
        try:
            node = self._loader.get_single_node()
            if node is not None:
                self.document.data = self._value(node, ())
        except _TooManyNodes:
            self.document.report(
                (), None, f"more than {MAX_NODES} values, or an alias inside itself", "remove aliases"
            )
        except _TooDeep as error:
            self._report_depth(error.line)
        except RecursionError:  # PyYAML's parser recurses once for each level
            self._report_depth(self._loader.line + 1)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 0
            rule = f"not YAML: {error.problem or error.context}"
            self.document.report((), None, rule, "check the indentation and quotes of this line", line)
        finally:
            self._loader.dispose()
        return self.document

    def _report_depth(self, line: int) -> None:
        rule = f"nested more than {MAX_DEPTH} levels deep, or an alias inside itself"
        self.document.report((), None, rule, "close the brackets and check the indentation", line)

    def _value(self, node: yaml.Node, path: Path) -> Value:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _TooManyNodes
        if len(path) > MAX_DEPTH:
            raise _TooDeep(node.start_mark.line + 1)
        self.document.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, str(index))) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> Value:
        self._report_duplicates(node, path)
        if any(key.tag == _MERGE_TAG for key, _ in node.value):
            self._loader.flatten_mapping(node)
        found: dict[str, Value] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                self.document.report(path, None, "a key must be a plain word", "write `name: value`", line)
                continue
            inner = (*path, key.value)
            self.document.lines[inner] = key.start_mark.line + 1
            found[key.value] = self._value(value, inner)
        return found

    def _report_duplicates(self, node: yaml.MappingNode, path: Path) -> None:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in seen:
                rule = f"is already set on line {seen[key.value]}"
                self.document.report((*path, key.value), None, rule, "remove one of the two lines", line)
            else:
                seen[key.value] = line

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Value:
        text = _VARIABLE.sub(lambda match: self._variable(match, path, node), node.value)
        tag = node.tag
        if text != node.value and node.style is None:
            tag = str(self._loader.resolve(yaml.ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]
        if tag == _TEXT_TAG:
            return text
        try:
            value = self._loader.construct_object(yaml.ScalarNode(tag, text, node.start_mark, node.end_mark))
        except (yaml.YAMLError, ValueError):
            self.document.report(path, text, f"is not a value of YAML type {tag}", "put it in quotes")
            return text
        return value if value is None or isinstance(value, (str, int, float, bool)) else text

    def _variable(self, match: re.Match[str], path: Path, node: yaml.ScalarNode) -> str:
        name, default = match.group(1), match.group(2)
        found = self._environ.get(name) or default
        if found is None:
            self.document.report(
                path,
                node.value,
                f"environment variable {name} is not set",
                f"set {name}, or write ${{{name}:-default}}",
                node.start_mark.line + 1,
            )
            return match.group(0)
        return found


def parse(text: str, environ: Mapping[str, str]) -> Document:
    """Read one YAML document and substitute ``${NAME}`` and ``${NAME:-default}``.

    Args:
        text: the whole file.
        environ: the environment variables. An empty variable counts as unset.
    """
    try:
        return _Reader(text, environ).read()
    except yaml.reader.ReaderError as error:
        document = Document()
        line = text.count("\n", 0, error.position) + 1
        rule = f"character #x{ord(text[error.position]):04x} is not allowed in YAML"
        document.report((), None, rule, "remove the character", line)
        return document
