"""Reads and checks a configuration file.

Only the process that reads the file imports this module. Long-running processes receive the settings from
that process, so that the code that reads files stays out of their memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fleet.config.document import Problem, parse
from fleet.config.partial import build_draft
from fleet.config.rules import check_rules
from fleet.config.settings import Settings
from fleet.core.errors import ConfigError
from fleet.core.file_faults import encoding_fault, read_fault

MAX_FILE_BYTES = 4 * 1024 * 1024


def _read(path: Path, source: str) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{source}: file not found; set its path with --config") from None
    except IsADirectoryError:
        raise ConfigError(f"{source}: is a directory; name the file in this directory") from None
    except (OSError, ValueError) as error:
        rule, fix = read_fault(error)
        raise ConfigError(f"{source}: {rule}; {fix}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{source}: is larger than {MAX_FILE_BYTES} bytes; check that it is the right file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fault = encoding_fault(raw)  # utf-8-sig has already skipped a UTF-8 byte-order mark
        if fault is not None:
            raise ConfigError(f"{source}: {fault[0]}; {fault[1]}") from None
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{line}: is not UTF-8 text; save it as UTF-8") from None


def parse_text(text: str, environ: Mapping[str, str], source: str, base: Path) -> Settings:
    """Settings from the text of a configuration file.

    Args:
        text: the whole file.
        environ: the environment variables that replace ``${NAME}``.
        source: the name of the file in errors.
        base: the directory that relative paths start from.

    Raises:
        ConfigError: every mistake, in the order of the file, one line each.
    """
    document = parse(text, environ)
    if document.data is None and not document.problems:
        raise ConfigError(f"{source}: is empty; start from deploy/examples/fleet.yaml")
    if document.data is None:
        raise _error(document.problems, source)
    draft = build_draft(document, Path(os.path.abspath(base)))
    check_rules(draft, document)
    if document.problems:
        raise _error(document.problems, source)
    return draft.settings(source)


def _error(problems: list[Problem], source: str) -> ConfigError:
    lines = [problem.text(source) for problem in sorted(problems, key=lambda each: (each.line, each.path))]
    return ConfigError("\n".join(dict.fromkeys(lines)))


def load(path: str | Path, environ: Mapping[str, str]) -> Settings:
    """Read and validate a configuration file.

    Args:
        path: the file; relative paths in the file start from its directory.
        environ: the environment variables that replace ``${NAME}`` and ``${NAME:-default}`` in values.

    Raises:
        ConfigError: the file cannot be read, or breaks rules: every mistake, one line each.
    """
    source = str(path)
    file = Path(path)
    return parse_text(_read(file, source), environ, source, file.parent)
