"""Secrets: the configuration names the file or the environment variable of a secret, never the secret itself.

Settings can therefore be shown, logged and passed to child processes. A process reads a secret when it needs
the secret.
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
"""Large enough for tokens that list many groups."""


@dataclass(frozen=True, slots=True)
class Secret:
    """The place of a secret.

    Args:
        file: an absolute path; None if the secret is in the environment.
        env: the name of a variable; None if the secret is in a file.
        path, line: the field and its line in the configuration, for errors.
    """

    file: FilePath | None
    env: str | None
    path: Path
    line: int

    @property
    def where(self) -> str:
        """The place of the secret in text for an operator: a path, or the name of a variable after ``$``."""
        return f"${self.env}" if self.file is None else str(self.file)

    def is_available(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Whether the variable is set, or the file can be opened. ``read`` checks the rest."""
        return self.env in environ if self.file is None else os.access(self.file, os.R_OK)

    def read(self, source: str, environ: Mapping[str, str] = os.environ) -> str:
        """The current secret, without the line break at its end.

        Args:
            source: the name of the configuration file in errors.
        Raises:
            ConfigError: the secret is missing or malformed, or other users can read its file. The error is
                one line and does not contain the secret.
        """
        if self.file is None:
            text = environ.get(self.env or "", "")
            if not text:
                raise self._error(source, "is not set or empty", f"set the variable {self.env}")
            if text.startswith(_BOM):
                raise self._error(source, "begins with a byte-order mark", "remove this character")
        else:
            text = self._read_file(self.file, source).rstrip("\r\n")
            if not text:
                raise self._error(source, "is empty", "write the secret into this file")
        if not text.isprintable():
            raise self._error(source, "must be one line of text", "write only the secret")
        return text

    def _read_file(self, file: FilePath, source: str) -> str:
        try:
            with file.open("rb") as opened:
                status = os.fstat(opened.fileno())
                raw = opened.read(MAX_SECRET_BYTES + 1)
        except (OSError, ValueError) as error:
            raise self._error(source, *read_fault(error)) from None
        # Kubernetes and systemd place files of another owner, which this process reads through its group.
        forbidden = 0o077 if status.st_uid == os.geteuid() else 0o037
        if stat.S_ISREG(status.st_mode) and status.st_mode & forbidden:
            raise self._error(source, "must be readable only by its owner", f"run `chmod 600 {file}`")
        if len(raw) > MAX_SECRET_BYTES:
            fix = "check that it is the right file"
            raise self._error(source, f"is larger than {MAX_SECRET_BYTES} bytes", fix)
        fault = encoding_fault(raw)
        if fault is not None:
            raise self._error(source, *fault)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._error(source, "is not UTF-8 text", "check that it is the right file") from None

    def _error(self, source: str, rule: str, fix: str) -> ConfigError:
        return ConfigError(Problem(self.line, self.path, self.where, rule, fix).text(source))


def find_secrets(settings: object) -> Iterator[Secret]:
    """Every secret in settings, at any depth."""
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


def parse_secret(value: Value, path: Path, base: FilePath, document: Document) -> Secret | None:
    """Read a field that must be ``{file: PATH}`` or ``{env: NAME}``.

    Args:
        base: the directory that relative paths start from; absolute.

    Returns: the place of the secret; None for any other value, which is reported but not shown, because it
        may be the secret itself
    """
    if isinstance(value, dict) and len(value) == 1:
        where, line = next(iter(value.values())), document.line(path)
        if isinstance(where, str) and where:
            if "file" in value:
                return Secret(FilePath(os.path.normpath(base / where)), None, path, line)
            if "env" in value:
                return Secret(None, where, path, line)
    fix = "use a file that only its owner can read, or an environment variable"
    rule = "must be `{file: PATH}` or `{env: NAME}`, not the secret itself"
    document.report(path, None, rule, fix)
    return None
