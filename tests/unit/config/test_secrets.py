"""fleet/config/secrets.py: the places of secrets, and errors that do not contain the secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.config.document import Document, Value
from fleet.config.secrets import MAX_SECRET_BYTES, Secret, parse_secret
from fleet.core.errors import ConfigError

HIDDEN = "correct horse"


def in_file(folder: Path, content: bytes, mode: int = 0o600) -> Secret:
    file = folder / "password"
    file.write_bytes(content)
    file.chmod(mode)
    return Secret(file, None, ("sasl", "password"), 7)


def in_variable() -> Secret:
    return Secret(None, "PASSWORD", ("sasl", "password"), 7)


def mistake(secret: Secret, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        secret.read("fleet.yaml", environ or {})
    assert HIDDEN not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_is_read_without_the_line_break_at_its_end(tmp_path: Path, end: bytes, mode: int) -> None:
    found = in_file(tmp_path, HIDDEN.encode() + end, mode)
    assert found.read("fleet.yaml") == HIDDEN
    assert HIDDEN not in repr(found)


def test_a_variable_is_read_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", HIDDEN)
    assert in_variable().read("fleet.yaml") == HIDDEN


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    error_text = mistake(in_file(tmp_path, HIDDEN.encode(), mode))
    file = tmp_path / "password"
    where = f"fleet.yaml:7: sasl.password: {file}"
    assert error_text == f"{where}: must be readable only by its owner; run `chmod 600 {file}`"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_file_of_another_owner_may_be_group_readable(tmp_path: Path) -> None:
    found = in_file(tmp_path, HIDDEN.encode(), 0o440)
    os.chown(tmp_path / "password", 1, -1)
    assert found.read("fleet.yaml") == HIDDEN
    (tmp_path / "password").chmod(0o444)
    assert "must be readable only by its owner" in mistake(found)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\n", "is empty; write the secret into this file"),
        (HIDDEN.encode() + b"\nmore", "must be one line of text"),
        (HIDDEN.encode() + b"\x00", "must be one line of text"),
        (HIDDEN.encode() + b"\xff", "is not UTF-8 text"),
        (HIDDEN.encode("utf-8-sig"), "the file begins with a byte-order mark; save it as UTF-8 without BOM"),
        (HIDDEN.encode("utf-16"), "the file is UTF-16 text with a byte-order mark; save it as UTF-8"),
        (HIDDEN.encode() * MAX_SECRET_BYTES, f"is larger than {MAX_SECRET_BYTES} bytes"),
    ],
)
def test_file_without_a_valid_secret_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in mistake(in_file(tmp_path, content))


def test_missing_secret_is_named(tmp_path: Path) -> None:
    missing = Secret(tmp_path / "none", None, ("sasl", "password"), 7)
    assert f"{tmp_path}/none: cannot be read (no such file or directory)" in mistake(missing)
    folder = Secret(tmp_path, None, ("sasl", "password"), 7)
    assert "cannot be read (is a directory); name the file in it" in mistake(folder)
    error_text = "fleet.yaml:7: sasl.password: $PASSWORD: is not set or empty; set the variable PASSWORD"
    assert mistake(in_variable()) == error_text
    assert mistake(in_variable(), {"PASSWORD": ""}) == error_text
    marked = mistake(in_variable(), {"PASSWORD": f"\ufeff{HIDDEN}"})
    assert marked.endswith("$PASSWORD: begins with a byte-order mark; remove this character")


def test_secret_is_available_where_it_can_be_opened(tmp_path: Path) -> None:
    assert in_file(tmp_path, b"").is_available(), "only read() checks the content"
    assert not Secret(tmp_path / "none", None, ("sasl", "password"), 7).is_available()
    assert in_variable().is_available({"PASSWORD": ""})
    assert not in_variable().is_available({})


def test_field_names_the_place_of_its_secret() -> None:
    document = Document(lines={("sasl", "password"): 7})
    base = Path("/etc/fleet")
    assert parse_secret({"file": "../password"}, ("sasl", "password"), base, document) == Secret(
        Path("/etc/password"), None, ("sasl", "password"), 7
    )
    assert parse_secret({"env": "PASSWORD"}, ("sasl", "password"), base, document) == in_variable()
    assert document.problems == []


@pytest.mark.parametrize(
    "value",
    [
        HIDDEN,
        None,
        7,
        [HIDDEN],
        {},
        {"file": ""},
        {"file": [HIDDEN]},
        {"value": HIDDEN},
        {"file": "a", "env": "B"},
    ],
)
def test_other_value_in_a_secret_field_is_refused_and_hidden(value: Value) -> None:
    document = Document(lines={("sasl", "password"): 7})
    assert parse_secret(value, ("sasl", "password"), Path("/"), document) is None
    (problem,) = document.problems
    assert "must be `{file: PATH}` or `{env: NAME}`, not the secret" in problem.text("fleet.yaml")
    assert HIDDEN not in problem.text("fleet.yaml")
