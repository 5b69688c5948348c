"""The list of modules in docs/architecture.md, made of the first sentence of each module's docstring.

`tools/gen_reference.py` writes the list to the page.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def first_sentence(source: str) -> str:
    """The first sentence of a module's docstring, without its full stop.

    Raises:
        ValueError: the module has no docstring.
    """
    docstring = ast.get_docstring(ast.parse(source))
    if not docstring:
        raise ValueError("a module needs a docstring whose first line says what the module is")
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".").replace("``", "`")


def packages(root: Path) -> Iterator[Path]:
    """The folders of fleet/ that hold modules, parents first."""
    return (folder for folder in sorted([root, *root.rglob("*")]) if (folder / "__init__.py").is_file())


def module_list(root: Path) -> str:
    """A heading for each package, and below it a line for each module."""
    parts = []
    for package in packages(root):
        name = package.relative_to(root.parent).as_posix()
        purpose = first_sentence((package / "__init__.py").read_text(encoding="utf-8"))
        parts.append(f"### {name}\n\n{purpose}.\n")
        lines = [
            f"- `{module.name}`: {first_sentence(module.read_text(encoding='utf-8'))}"
            for module in sorted(package.glob("*.py"))
            if module.name != "__init__.py"
        ]
        parts.append("\n".join(lines) + "\n" if lines else "")
    return "\n".join(part for part in parts if part)
