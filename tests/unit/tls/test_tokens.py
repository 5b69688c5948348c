"""fleet/tls/tokens.py: roles of tokens, invalid tokens, and counted and logged refusals."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
import yaml

from fleet.config import Settings, TokenSettings
from fleet.config.file import load
from fleet.config.secrets import Secret
from fleet.core.errors import ConfigError
from fleet.tls.tokens import (
    MAX_LOGGED_SOURCES,
    REFUSAL_LOG_INTERVAL_S,
    Gate,
    Tokens,
    check_tokens,
    read_tokens,
)
from tests.unit.config.test_file import tree

READ, WRITE = "read-0123456789abcdef", "write-0123456789abcdef"
ENVIRON = {"READ": READ, "WRITE": WRITE}
PLACES = TokenSettings(
    Secret(None, "READ", ("admin", "tokens", "read"), 3),
    Secret(None, "WRITE", ("admin", "tokens", "write"), 4),
)


@pytest.mark.parametrize(
    ("authorization", "to_read", "to_write"),
    [
        (f"Bearer {READ}", None, "read_only"),
        (f"bearer  {WRITE} ", None, None),
        (None, "no_token", "no_token"),
        ("", "no_token", "no_token"),
        ("Bearer", "no_token", "no_token"),
        ("Bearer ", "no_token", "no_token"),
        (READ, "no_token", "no_token"),
        (f"Basic {WRITE}", "no_token", "no_token"),
        (f"Bearer {READ[:-1]}", "wrong_token", "wrong_token"),
        (f"Bearer {READ}x", "wrong_token", "wrong_token"),
        (f"Bearer {READ} {READ}", "wrong_token", "wrong_token"),
        ("Bearer caf\u00e9 \udcff", "wrong_token", "wrong_token"),
    ],
)
def test_token_allows_its_role(authorization: str | None, to_read: str | None, to_write: str | None) -> None:
    both = Tokens(READ, WRITE)
    assert both.refusal(authorization, writes=False) == to_read
    assert both.refusal(authorization, writes=True) == to_write
    assert READ not in repr(both)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {"READ": "short"},
            "tokens.read: must be at least 16 ASCII characters without a space; create one with `openssl",
        ),
        (
            {"WRITE": "hidden 0123456789"},
            "fleet.yaml:4: admin.tokens.write: must be at least 16 ASCII characters",
        ),
        ({"WRITE": "hidden-012345678\u00e9"}, "admin.tokens.write: must be at least 16 ASCII characters"),
        (
            {"WRITE": READ},
            "fleet.yaml:4: admin.tokens.write: must differ from the read token; create a separate one",
        ),
        ({"READ": ""}, "fleet.yaml:3: admin.tokens.read: $READ: is not set or empty"),
    ],
)
def test_invalid_token_is_reported(environ: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_tokens(PLACES, "fleet.yaml", ENVIRON | environ)
    error_text = str(caught.value)
    assert expected in error_text
    assert "\n" not in error_text
    assert not any(value in error_text for value in (*environ.values(), READ, WRITE) if value)


def test_both_mistakes_are_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        read_tokens(PLACES, "fleet.yaml", {"READ": "short"})
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "admin.tokens.read",
        "admin.tokens.write",
    ]


def test_invalid_new_tokens_keep_the_previous_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "read-token"
    file.touch(mode=0o600)
    file.write_text(READ)
    gate = Gate(TokenSettings(Secret(file, None, (), 0), PLACES.write), "fleet.yaml", ENVIRON)
    assert gate.refusal(f"Bearer {READ}", False, "::1") is None
    file.write_text(f"new-{READ}\n")
    assert gate.refusal(f"Bearer {READ}", False, "::1") == "wrong_token"
    assert gate.refusal(f"Bearer new-{READ}", False, "::1") is None
    file.write_text("hidden")
    assert gate.refusal(f"Bearer new-{READ}", False, "::1") is None
    assert "cannot load the new tokens of the admin address, keeping the previous one" in caplog.text
    assert not any(each in caplog.text for each in ("hidden", READ))


def test_every_request_is_refused_until_tokens_exist(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "read-token"
    gate = Gate(TokenSettings(Secret(file, None, (), 0), PLACES.write), "fleet.yaml", ENVIRON)
    assert f"cannot read the tokens: fleet.yaml: {file}: cannot be read" in caplog.text
    for token in (READ, WRITE):
        assert gate.refusal(f"Bearer {token}", False, "::1") == "unreadable"
    file.touch(mode=0o600)
    file.write_text(READ)
    assert gate.refusal(f"Bearer {READ}", False, "::1") is None


def test_refusals_are_counted_and_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    caplog.set_level(logging.INFO)
    gate = Gate(PLACES, "fleet.yaml", ENVIRON)
    for _ in range(3):
        gate.refusal(None, False, "10.0.0.1")
        gate.refusal("Bearer hidden", False, "10.0.0.2")
    gate.refusal(f"Bearer {READ}", True, "10.0.0.3")
    assert gate.refused == {"no_token": 3, "wrong_token": 3, "read_only": 1, "unreadable": 0}
    assert [each.getMessage() for each in caplog.records] == [
        "admin request refused: source=10.0.0.1 reason=no_token",
        "admin request refused: source=10.0.0.2 reason=wrong_token",
        "admin request refused: source=10.0.0.3 reason=read_only",
    ]
    now_s = REFUSAL_LOG_INTERVAL_S
    gate.refusal(None, False, "10.0.0.2")
    assert len(caplog.records) == 4


def test_many_sources_fill_neither_the_log_nor_the_memory(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    gate = Gate(PLACES, "fleet.yaml", ENVIRON)
    for number in range(2 * MAX_LOGGED_SOURCES):
        gate.refusal(None, False, f"source {number}")
    assert len(caplog.records) == MAX_LOGGED_SOURCES
    assert gate.refused["no_token"] == 2 * MAX_LOGGED_SOURCES
    now_s = REFUSAL_LOG_INTERVAL_S
    gate.refusal(None, False, "another")
    assert len(caplog.records) == MAX_LOGGED_SOURCES + 1


class TestChecking:
    """Before anything is bound."""

    def settings(self, folder: Path, **admin: object) -> Settings:
        file = folder / "fleet.yaml"
        file.write_text(yaml.safe_dump({**tree(), **({"admin": admin} if admin else {})}))
        return load(file, {})

    def in_files(self, folder: Path) -> Settings:
        for name, token in ENVIRON.items():
            (folder / name).touch(0o600)
            (folder / name).write_text(token)
        return self.settings(folder, tokens={"read": {"file": "READ"}, "write": {"file": "WRITE"}})

    @pytest.mark.parametrize("must_be_there", [True, False])
    def test_valid_or_absent_tokens_are_accepted(self, tmp_path: Path, must_be_there: bool) -> None:
        assert check_tokens(self.in_files(tmp_path), must_be_there=must_be_there) == ()
        assert check_tokens(self.settings(tmp_path), must_be_there=must_be_there) == ()

    def test_missing_token_file_is_named_or_a_mistake(self, tmp_path: Path) -> None:
        settings = self.in_files(tmp_path)
        (tmp_path / "WRITE").unlink()
        assert check_tokens(settings, must_be_there=False) == ("admin.tokens",)
        with pytest.raises(ConfigError) as caught:
            check_tokens(settings, must_be_there=True)
        error_text = f"admin.tokens.write: {tmp_path}/WRITE: cannot be read (no such file or directory)"
        assert error_text in str(caught.value)

    def test_unset_token_variable_is_named_or_a_mistake(self, tmp_path: Path) -> None:
        settings = self.settings(tmp_path, tokens={"read": {"env": "READ"}, "write": {"env": "WRITE"}})
        here = {"READ": READ}
        assert check_tokens(settings, must_be_there=False, environ=here) == ("admin.tokens",)
        assert check_tokens(settings, must_be_there=False, environ=ENVIRON) == ()
        with pytest.raises(ConfigError) as caught:
            check_tokens(settings, must_be_there=True, environ=here)
        error_text = "admin.tokens.write: $WRITE: is not set or empty; set the variable WRITE"
        assert error_text in str(caught.value)

    @pytest.mark.parametrize("must_be_there", [True, False])
    def test_token_file_readable_by_others_is_refused(self, tmp_path: Path, must_be_there: bool) -> None:
        settings = self.in_files(tmp_path)
        (tmp_path / "READ").chmod(0o644)
        with pytest.raises(ConfigError) as caught:
            check_tokens(settings, must_be_there=must_be_there)
        error_text = f"admin.tokens.read: {tmp_path}/READ: must be readable only by its owner; run `chmod 600"
        assert error_text in str(caught.value)
        assert READ not in str(caught.value)
