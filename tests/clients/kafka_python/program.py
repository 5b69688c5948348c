"""kafka-python, in a virtual environment of its own: `main.py` describes the commands."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.clients import program
from tests.clients.program import Output, Program
from tools.bootstrap import bring_kafka_python

MAIN = Path(__file__).with_name("main.py")

_python = cache(bring_kafka_python)


def run(*arguments: str) -> Output:
    """Run the program to its end, and require its success."""
    return program.run([_python(), MAIN, *arguments])


class KafkaPython(Program):
    """The running program: `work` and its arguments."""

    def __init__(self, *arguments: str) -> None:
        super().__init__([_python(), MAIN, *arguments])
