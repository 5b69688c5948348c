"""franz-go, a client in Go, by the program of this folder: `main.go` says what it can do."""

from __future__ import annotations

from tests.clients import go_program
from tests.clients.go_program import GoProgram, Said
from tests.integration.rights import Credentials, Outcomes
from tools.bootstrap import FRANZ_GO


def run(*arguments: str) -> Said:
    """Have it do something to its end, which must go well."""
    return go_program.run(FRANZ_GO, *arguments)


def by_franz_go(name: str, bootstrap: str, credentials: Credentials) -> Outcomes:
    """As `by_librdkafka`."""
    sasl = ["-mechanism", credentials.mechanism, "-secret", credentials.secret]
    said = run(*sasl, "-username", credentials.username, "rights", bootstrap, name)
    return {what: ", ".join(values) for what, values in said.items()}


class FranzGo(GoProgram):
    """The program at work."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(FRANZ_GO, *arguments)
