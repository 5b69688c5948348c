"""Secrets: the configuration says in which file, or in which variable, one is, and never holds it.

So settings may be shown, logged and given to child processes; who needs a secret reads it then.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path as FilePath
from typing import Final

from fleet.config.document import Document, Path, Problem, Value
from fleet.core.errors import ConfigError
from fleet.core.file_faults import encoding_fault, read_fault

_BOM: Final = "\ufeff"
MAX_SECRET_BYTES: Final = 16_384
"""Tokens that name many groups are long."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a secret is.

    Args:
        file: an absolute path; None where it is in the environment.
        env: the name of a variable; None where it is in a file.
        path, line: where the configuration says so, for what is wrong with it.
    """

    file: FilePath | None
    env: str | None
    path: Path
    line: int

    @property
    def where(self) -> str:
        """In words for an operator."""
        return f"${self.env}" if self.file is None else str(self.file)

    def is_here(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Whether the variable is set, or the file may be opened; what is wrong with it, ``read`` says."""
        return self.env in environ if self.file is None else os.access(self.file, os.R_OK)

    def read(self, source: str, environ: Mapping[str, str] = os.environ) -> str:
        """The secret as it is now, without the line break at its end.

        Args:
            source: what errors call the configuration file.
        Raises:
            ConfigError: there is none, or the wrong people may read it; in one line, without the secret.
        """
        if self.file is None:
            text = environ.get(self.env or "", "")
            if not text:
                raise self._wrong(source, "is not set, or empty", f"set the variable {self.env}")
            if text.startswith(_BOM):
                raise self._wrong(source, "begins with a byte-order mark", "set it without this character")
        else:
            text = self._read_file(self.file, source).rstrip("\r\n")
            if not text:
                raise self._wrong(source, "is empty", "write the secret into it")
        if not text.isprintable():
            raise self._wrong(source, "is not one line of text", "write nothing but the secret")
        return text

    def _read_file(self, file: FilePath, source: str) -> str:
        try:
            with file.open("rb") as opened:
                status = os.fstat(opened.fileno())
                raw = opened.read(MAX_SECRET_BYTES + 1)
        except (OSError, ValueError) as error:
            raise self._wrong(source, *read_fault(error)) from None
        # Of another owner, as what Kubernetes and systemd put there, the group may be this process's own.
        forbidden = 0o077 if status.st_uid == os.geteuid() else 0o037
        if stat.S_ISREG(status.st_mode) and status.st_mode & forbidden:
            raise self._wrong(source, "nobody but its owner may read it", f"chmod 600 {file}")
        if len(raw) > MAX_SECRET_BYTES:
            raise self._wrong(source, f"is above {MAX_SECRET_BYTES} bytes", "is it the right file?")
        fault = encoding_fault(raw)
        if fault is not None:
            raise self._wrong(source, *fault)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._wrong(source, "is not UTF-8 text", "is it the right file?") from None

    def _wrong(self, source: str, rule: str, fix: str) -> ConfigError:
        return ConfigError(Problem(self.line, self.path, self.where, rule, fix).text(source))


def find_secrets(settings: object) -> Iterator[Secret]:
    """Every secret that settings name, however deep."""
    if isinstance(settings, Secret):
        yield settings
    elif is_dataclass(settings):
        for field in fields(settings):
            yield from find_secrets(getattr(settings, field.name))
    elif isinstance(settings, Mapping):
        for value in settings.values():
            yield from find_secrets(value)
    elif isinstance(settings, tuple):
        for value in settings:
            yield from find_secrets(value)


def secret(value: Value, path: Path, base: FilePath, document: Document) -> Secret | None:
    """A field that is ``{file: PATH}`` or ``{env: NAME}``; None where it is neither, which is reported.

    What stands there is not shown: it may be a secret.

    Args:
        base: the directory that relative paths start from; absolute.
    """
    if isinstance(value, dict) and len(value) == 1:
        where, line = next(iter(value.values())), document.line(path)
        if isinstance(where, str) and where:
            if "file" in value:
                return Secret(FilePath(os.path.normpath(base / where)), None, path, line)
            if "env" in value:
                return Secret(None, where, path, line)
    fix = "write {file: PATH}, of a file that nobody else may read, or {env: NAME}"
    document.report(path, None, "a secret is not written here, but where it is", fix)
    return None
