"""The list of modules in docs/architecture.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import gen_reference
from tools.module_list import first_sentence, module_list


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("The frames of one link.", "The frames of one link"),
        ("The frames\nof one link. They are short.\n\nMore.", "The frames of one link"),
        ("The frames of one link\n\nMore.", "The frames of one link"),
    ],
)
def test_first_sentence_ends_at_its_full_stop(docstring: str, sentence: str) -> None:
    assert first_sentence(f'"""{docstring}"""') == sentence


def test_module_without_docstring_is_an_error() -> None:
    with pytest.raises(ValueError, match="docstring"):
        first_sentence("x = 1")


def test_list_names_packages_and_modules_in_order(tmp_path: Path) -> None:
    root = tmp_path / "fleet"
    (root / "core").mkdir(parents=True)
    (root / "__init__.py").write_text('"""The whole."""')
    (root / "assign.py").write_text('"""Owners."""')
    (root / "core" / "__init__.py").write_text('"""Values."""')
    (root / "core" / "state.py").write_text('"""State."""')
    (root / "notes").mkdir()
    assert module_list(root) == (
        "### fleet\n\nThe whole.\n\n- `assign.py`: Owners\n\n"
        "### fleet/core\n\nValues.\n\n- `state.py`: State\n"
    )


def test_architecture_page_has_the_current_list() -> None:
    page = gen_reference.DOCS / gen_reference.ARCHITECTURE
    assert gen_reference.render()[page] == page.read_text(encoding="utf-8")
