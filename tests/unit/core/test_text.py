import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core.text import MAX_SHOWN_CHARACTERS, escape_json, make_printable

ANY_TEXT = st.text(st.characters())  # with surrogates, which file names may contain


@given(ANY_TEXT)
def test_shown_text_is_printable_and_on_one_line(text: str) -> None:
    assert make_printable(text).isprintable()


@given(ANY_TEXT.filter(str.isprintable))
def test_printable_text_is_left_alone(text: str) -> None:
    assert make_printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\r", r"two\nlines\r"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31mred", r"\x9b31mred"),
        ("admin\u202enimda", r"admin\u202enimda"),
        ("a\u200bb\u2028c", r"a\u200bb\u2028c"),
        ("\udc80", r"\udc80"),
        ("Zürich 東京 ✓", "Zürich 東京 ✓"),
    ],
)
def test_control_characters_in_json_are_escaped(text: str, shown: str) -> None:
    assert make_printable(text) == shown


def test_long_text_is_cut() -> None:
    shown = make_printable("x" * (MAX_SHOWN_CHARACTERS + 1))
    assert shown == "x" * MAX_SHOWN_CHARACTERS + "…"


@given(st.text())
def test_escaped_json_decodes_to_the_same_value(text: str) -> None:
    escaped = escape_json(json.dumps([text], ensure_ascii=False).encode())
    assert json.loads(escaped) == [text]
    assert escaped.decode().isprintable()
