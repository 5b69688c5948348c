"""A hook of mkdocs: adds every decision to the navigation, and turns links out of docs/ into names.

In the repository those links lead to files; `tests/tools/test_docs.py` checks that the files exist.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath
from typing import Any, Final

OUTWARD: Final = re.compile(r"(?<!!)\[([^]]+)\]\(((?:\.\./)+[^)\s]*)\)")


def on_config(config: Any) -> None:
    found = sorted((Path(config["docs_dir"]) / "adr").glob("*.md"))
    config["nav"].append({"Decisions": [f"adr/{each.name}" for each in found]})


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    folder = Path("docs", page.file.src_uri).parent.as_posix()

    def named(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = normpath(f"{folder}/{target.partition('#')[0]}")
        if path.startswith("docs/"):
            return link.group()
        bare = text.replace("`", "")
        return f"`{path}`" if bare in path else f"{text} (`{path}`)"

    return OUTWARD.sub(named, markdown)
