"""kafka-python, in a virtual environment of its own: `main.py` says what it can do."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.clients.node_program import Program, Said, run_command
from tools.bootstrap import bring_kafka_python

MAIN = Path(__file__).with_name("main.py")

_python = cache(bring_kafka_python)


def run(*arguments: str) -> Said:
    """Have the program do something to its end, which must go well."""
    return run_command([str(_python()), str(MAIN), *arguments])


class KafkaPython(Program):
    """`Program`: `work` and its arguments."""

    def __init__(self, *arguments: str) -> None:
        super().__init__([str(_python()), str(MAIN), *arguments])
