"""franz-go, a client in Go: `main.go` in this folder describes the commands."""

from __future__ import annotations

from tests.clients import go_program
from tests.clients.go_program import GoProgram
from tests.clients.program import Output
from tests.integration.rights import Credentials, Outcomes
from tools.bootstrap import FRANZ_GO


def run(*arguments: str) -> Output:
    """Run the program to its end, and require its success."""
    return go_program.run(FRANZ_GO, *arguments)


def by_franz_go(name: str, bootstrap: str, credentials: Credentials) -> Outcomes:
    """The outcome of each attempt by franz-go, as `by_librdkafka` returns the outcomes of librdkafka."""
    sasl = ["-mechanism", credentials.mechanism, "-secret", credentials.secret]
    events = run(*sasl, "-username", credentials.username, "rights", bootstrap, name)
    return {operation: ", ".join(values) for operation, values in events.items()}


class FranzGo(GoProgram):
    """The running program: options, `work` and its arguments."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(FRANZ_GO, *arguments)
