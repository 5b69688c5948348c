"""Words that the style guide bans, and what to write instead.

`make lint` checks the files of FOLDERS: identifiers, messages, help texts and comments. A line that must
keep a word, such as the deprecated alias of a JSON key, ends in the comment `# words: REASON`.

    python -m tools.banned_words              checks the files that git knows
    python -m tools.banned_words FILE ...     checks these files
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = ("fleet", "benchmarks", "deploy", "tools", "setup.py", "Makefile")
SUFFIXES: Final = frozenset({".py", ".html", ".yml", ".yaml", ".tpl", ".txt", ".sh", ""})
"""Suffixes of files with text for people; the Makefile and container files have none."""
EXCUSE: Final = re.compile(r"(?:#|//|<!--) words: \S")

INSTEAD: Final = {
    r"told": "reported, sent, named",
    r"tell(?:s|ing)? of": "report, name",
    r"who(?:m|se)?ever": "a client, a member, the person who",
    r"(?:go|goes|going|gone|went) around": "bypass",
    r"mend(?:s|ed|ing)?": "fix, heal, remedy",
    r"anew": "again",
    r"(?:stand|stands|stood|standing) for": "own; advertise; mean",
    r"beside": "next to, with, compared with",
    r"want(?:s|ed|ing)?": "require, need, expect",
    r"(?:is|are|was|were|be) to be had": "be available",
    r"as of": "since, from; see",
    r"of no use": "useless",
    r"by turns": "alternately, in turn",
    r"supposed(?:ly)?": "suspected, expected, assumed",
    r"so many": "the number, or `N`",
    r"other ways": "alternatives",
}
"""Each banned word or phrase as a regular expression, and what to write instead."""

STORED_NAMES: Final = frozenset({"told_by"})
"""Stored names: a field of events in topics, and a column of the pipeline's tables."""

_PART: Final = re.compile(r"\w")
# A phrase may be broken by the end of a line, with the quote or the comment sign of the next one.
_GAP: Final = r"""(?:[ \t]|\n|\#|"|'|\*)+"""
_PATTERN: Final = re.compile(
    r"(?<![A-Za-z])(?:" + "|".join(f"({phrase.replace(' ', _GAP)})" for phrase in INSTEAD) + r")(?![A-Za-z])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Finding:
    """A banned word in a text: the line counts from 1."""

    line: int
    word: str
    instead: str


def findings(text: str) -> Iterator[Finding]:
    """Yield the banned words of a text, in the order of the text, except on lines that have an excuse."""
    lines = text.split("\n")
    suggestions = tuple(INSTEAD.values())
    for match in _PATTERN.finditer(text):
        number = text.count("\n", 0, match.start())
        if not EXCUSE.search(lines[number]) and _identifier(text, match) not in STORED_NAMES:
            group = match.lastindex
            assert group is not None
            yield Finding(number + 1, " ".join(match[0].split()), suggestions[group - 1])


def _identifier(text: str, match: re.Match[str]) -> str:
    """The identifier that contains a match."""
    begin, end = match.span()
    while begin and _PART.fullmatch(text[begin - 1]):
        begin -= 1
    while end < len(text) and _PART.fullmatch(text[end]):
        end += 1
    return text[begin:end]


def tracked_files() -> list[Path]:
    """The files of FOLDERS with text for people that git tracks or does not ignore, without this list."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *FOLDERS],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    this_file = Path(__file__).resolve()
    return [path for path in paths if path.suffix in SUFFIXES and path.is_file() and path != this_file]


def main(arguments: Sequence[str]) -> int:
    """Print each banned word with its place, and return the exit code."""
    if any(argument in {"-h", "--help"} for argument in arguments):
        print(__doc__.strip())
        return 0
    count = 0
    for path in [Path(argument) for argument in arguments] or tracked_files():
        for finding in findings(path.read_text(encoding="utf-8")):
            count += 1
            shown = path.resolve()
            place = shown.relative_to(ROOT) if shown.is_relative_to(ROOT) else shown
            print(f"{place}:{finding.line}: '{finding.word}' is banned; write: {finding.instead}")
    if count:
        print(f"{count} banned words; the style guide in CONTRIBUTING.md says why", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
