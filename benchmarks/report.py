"""The figures as text: a table on the terminal, and one in docs/performance.md."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks import picture
from benchmarks.errors import BenchError
from benchmarks.goals import GOALS, Goal, Verdict
from benchmarks.results import FLEET, Figure, Say

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
BEGIN: Final = "<!-- results: written by `make bench ARGS=--write-docs` -->"
END: Final = "<!-- end of results -->"
LINE_EVERY_S: Final = 30.0
"""The interval of progress lines where the output cannot change a line."""
_GOAL_COLUMNS: Final = ("goal", "at most", "measured", "")
_COLUMNS: Final = ("workload", "measure", "target", "median", "min … max", "of direct", "of HAProxy")


@contextmanager
def progress(terminal: Console, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Say]:
    """Progress: one line that changes on a terminal, elsewhere a line now and then."""
    if terminal.is_terminal:
        with terminal.status("") as status:
            yield status.update
        return
    due_s = clock()

    def say(line: str) -> None:
        nonlocal due_s
        if clock() >= due_s:
            due_s = clock() + LINE_EVERY_S
            terminal.print(line, markup=False, highlight=False)

    yield say


def rows(found: Sequence[Figure]) -> list[tuple[str, ...]]:
    """One row of text for each figure, without members that consist of their proxy only."""
    return [
        (
            each.workload,
            each.measure,
            each.target,
            number(each.value),
            "" if each.least == each.most else f"{number(each.least)} … {number(each.most)}",
            ratio(each.to_direct),
            ratio(each.to_haproxy),
        )
        for each in found
        if not ("member_" in each.measure and each.target != FLEET)
    ]


def number(value: float) -> str:
    """A number with three digits, and commas between thousands."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def show(found: Sequence[Figure], console: Console) -> None:
    """Print the table."""
    table = Table()
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in _COLUMNS[:3] else "right", no_wrap=True)
    last = None
    for row in rows(found):
        if last not in (None, row[:2]):
            table.add_section()
        last = row[:2]
        table.add_row(*row)
    console.print(table)


def goals(verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """One row of text for each goal, missed goals in bold."""
    found = {each.goal.description: each for each in verdicts}
    return [_goal_row(goal, found.get(goal.description)) for goal in GOALS]


def _goal_row(goal: Goal, verdict: Verdict | None) -> tuple[str, ...]:
    most = f"≤ {goal.limit:g} {goal.unit}".strip()
    if verdict is None:
        return goal.description, most, "not measured", ""
    endless = math.isinf(verdict.value)
    measured = "HAProxy adds nothing" if endless else f"{number(verdict.value)} {goal.unit}".strip()
    return goal.description, most, measured, "met" if verdict.met else "**missed**"


def write_docs(found: Sequence[Figure], verdicts: Sequence[Verdict], about: str, page: Path = PAGE) -> None:
    """Write goals, picture and table between the page's marks. Raises: BenchError: the marks are missing."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"{page} has no lines {BEGIN} and {END}")
    picture.draw(found, page.with_suffix(".svg"))
    image = f"![CPU time compared with HAProxy's]({page.with_suffix('.svg').name})"
    parts = (
        about,
        "",
        *_table(_GOAL_COLUMNS, goals(verdicts)),
        "",
        image,
        "",
        *_table(_COLUMNS, rows(found)),
    )
    page.write_text("\n".join((before + begin, "", *parts, "", end)) + after)


def _table(columns: tuple[str, ...], found: Sequence[tuple[str, ...]]) -> Iterator[str]:
    for row in (columns, ("---",) * len(columns), *found):
        yield "| " + " | ".join(row) + " |"


def _processor() -> str:
    """The processor's model, as Linux reports it; empty if Linux does not."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return f" ({value.strip()})"
    return ""


def about(
    haproxy_version: str | None,
    rounds: int,
    load_before: float,
    paces_ms: Sequence[float],
    before: Sequence[str] = (),
) -> str:
    """Where and when the figures were measured, in two or three sentences, without the machine's name.

    Args:
        load_before: the load average before the start: how busy the machine was with other work.
        paces_ms: the results of `pace_ms` before each part, and at the end.
        before: workloads that were measured in an earlier run.
    """
    machine = f"{os.cpu_count()}-core {platform.machine().replace('_', '-')} VM{_processor()}"
    system = f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    haproxy_text = f", HAProxy {haproxy_version}" if haproxy_version else ""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return (
        f"{day}, a {machine} that also runs the three brokers and the clients, "
        f"{system}{haproxy_text}, {rounds} interleaved rounds, "
        f"load average {load_before:.1f} before the start. "
        f"A million additions in Python took {min(paces_ms):.0f} to {max(paces_ms):.0f} ms "
        "before the parts of this run and after the last."
        + (f" The figures of {', '.join(before)} are from an earlier run." if before else "")
    )
