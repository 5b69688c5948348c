"""The banned words: what is found, where, and what excuses a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.banned_words import findings, main, tracked_files


@pytest.mark.parametrize(
    "text",
    [
        "the leader is told",
        "def _told(self)",
        "untold_by, told_of = 3",
        "Whoever asks",
        "survivors go around the owner",
        "a drained member stands for nobody",
        "it is made anew",
        "beside HAProxy",
        "mended links",
        "a key is wanted",
    ],
)
def test_banned_word_is_found(text: str) -> None:
    assert len(list(findings(text))) == 1


@pytest.mark.parametrize(
    "text", ["a recommended key", "besides", "renewed", "untold_x", "recommend", "understands for now"]
)
def test_word_that_contains_a_banned_word_is_allowed(text: str) -> None:
    assert not list(findings(text))


def test_phrase_across_lines_is_found_at_its_first_line() -> None:
    text = '# one\n# survivors go\n# around the owner\nx = ("stands "\n     "for it")\n'
    assert [(finding.line, finding.instead[:6]) for finding in findings(text)] == [
        (2, "bypass"),
        (4, "own; a"),
    ]


def test_line_with_an_excuse_is_allowed() -> None:
    assert not list(findings('    old: str = Field(alias="told")  # words: a key of 0.2.0\n'))
    assert len(list(findings('    old: str = Field(alias="told")  # words:\n'))) == 1


def test_findings_print_place_and_replacement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "messages.py"
    file.write_text("x = 1\n# made anew\n")
    assert main([str(file)]) == 1
    assert capsys.readouterr().out == f"{file}:2: 'anew' is banned; write: again\n"
    file.write_text("x = 1\n# made again\n")
    assert main([str(file)]) == 0


def test_command_covers_code_alerts_and_pages() -> None:
    names = {path.name for path in tracked_files()}
    assert {"session.py", "live.html", "page.html", "alerts.yml"} <= names
