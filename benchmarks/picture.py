"""The chart next to the table: what each target costs, compared with HAProxy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

from benchmarks.results import HAPROXY, Figure

_INCH_A_ROW: Final = 0.34
_WIDTH_INCH: Final = 9.0
_COLOURS: Final = mpl.color_sequences["tab10"]


def charted_figures(found: Sequence[Figure]) -> list[Figure]:
    """The figures of CPU time that HAProxy also has, without those of a whole member."""
    return [
        each
        for each in found
        if "cpu_" in each.measure and "member_" not in each.measure and each.to_haproxy is not None
    ]


def draw(found: Sequence[Figure], path: Path) -> None:
    """Write an SVG: a row for each measure, a mark for each target, and a line for HAProxy."""
    figures = charted_figures(found)
    rows = list(dict.fromkeys((each.workload, each.measure) for each in figures))
    targets = list(dict.fromkeys(each.target for each in figures if each.target != HAPROXY))
    mpl.rcParams.update({"svg.hashsalt": "fleet", "svg.fonttype": "none"})
    canvas = Canvas(figsize=(_WIDTH_INCH, 1.2 + _INCH_A_ROW * max(1, len(rows))), layout="constrained")
    FigureCanvasSVG(canvas)
    axes = canvas.add_subplot()
    for number, target in enumerate(targets):
        mine = [each for each in figures if each.target == target]
        places = [rows.index((each.workload, each.measure)) for each in mine]
        axes.plot(
            [each.to_haproxy or 0.0 for each in mine],
            places,
            "o",
            color=_COLOURS[number % len(_COLOURS)],
            label=target,
        )
    axes.axvline(1.0, color="black", linewidth=1, label=HAPROXY)
    axes.set_yticks(range(len(rows)), [f"{workload}: {measure}" for workload, measure in rows])
    axes.set_ylim(max(1, len(rows)) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.grid(axis="both", alpha=0.3)
    axes.set_xlabel("proxy's CPU time as a multiple of HAProxy's in the same round (median)")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    canvas.savefig(path, format="svg", metadata={"Date": None})
