"""What a run of the pipeline's jobs says at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.console import Console

from fleet.admin.documents import Codec


@dataclass(frozen=True, slots=True)
class JobDocument:
    """One job.

    Args:
        records: how many it has read in this run.
    """

    name: str
    records: int


@dataclass(frozen=True, slots=True)
class PipelineDocument:
    """What ``fleet pipeline run --json`` prints when it ends."""

    out: str
    jobs: tuple[JobDocument, ...]


PIPELINE: Final = Codec(PipelineDocument)


def print_report(document: PipelineDocument, console: Console) -> None:
    """The same for people."""
    for job in document.jobs:
        console.print(f"{job.name}: {job.records} records read")
    console.print(f"results: {document.out}")
