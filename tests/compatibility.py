"""The features that each client has proved through a fleet: what tests declare, and which of them passed.

    @pytest.mark.proves("librdkafka", "produce", "classic group")
    def test_…

The mark goes right above a test, or to a parameter of it (`pytest.param(…, marks=pytest.mark.proves(…))`),
with names out of `CLIENTS` and `FEATURES`, written out. What carries it is noted in `build/` where it passes,
and taken out again where it fails: `Notes` does that in every run.

    python -m tests.compatibility       writes docs/compatibility.md; refuses while something has not passed

A unit test fails where the page is not what tests declare, with the versions that are installed.
"""

from __future__ import annotations

import ast
import fcntl
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version as of_package
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import confluent_kafka
import pytest

from fleet.drills.cluster.kafka_jars import CHECKOUT_LIBS
from tools.bootstrap import (
    CLIENTS_SOURCE,
    FRANZ_GO,
    KAFKA_CLIENTS,
    KAFKA_GO,
    KAFKA_PYTHON_LOCK,
    KCAT,
    RSKAFKA_SOURCE,
    SARAMA,
)

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "compatibility.md"
NOTES_FILE: Final = ROOT / "build" / "compatibility.json"
MARK: Final = "proves"
COMMAND: Final = "python -m tests.compatibility"


def of_jar(folder: Path, name: str) -> str:
    """The version of the only jar with a name."""
    (jar,) = folder.glob(f"{name}-[0-9]*.jar")
    return jar.stem.removeprefix(f"{name}-")


def of_kcat() -> str:
    output = subprocess.run([KCAT, "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"^Version (\S+)", output, re.MULTILINE)
    assert found is not None, output
    return found[1]


def of_go(program: Path) -> str:
    output = subprocess.run([program, "-version"], capture_output=True, text=True, check=True).stdout
    return output.strip().removeprefix("v")


def locked_version(library: str, folder: str) -> str:
    """The version of a Node library in a lock file, which is readable without Node."""
    lock = json.loads((CLIENTS_SOURCE / folder / "package-lock.json").read_text())
    version: str = lock["packages"][f"node_modules/{library}"]["version"]
    return version


def of_kafka_python() -> str:
    """The version of kafka-python in its lock file."""
    found = re.search(r"^kafka-python==(\S+)", KAFKA_PYTHON_LOCK.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def of_crate(name: str, source: Path) -> str:
    """The version of a crate in a lock file, which is readable without Rust."""
    packages = tomllib.loads((source / "Cargo.lock").read_text())["package"]
    return next(str(each["version"]) for each in packages if each["name"] == name)


CLIENTS: Final[Mapping[str, Callable[[], str]]] = MappingProxyType(
    {
        "librdkafka": lambda: confluent_kafka.libversion()[0],
        "kcat": of_kcat,
        "Java": partial(of_jar, CHECKOUT_LIBS, "kafka-clients"),
        "Kafka Streams": partial(of_jar, KAFKA_CLIENTS, "kafka-streams"),
        "Kafka Connect": partial(of_jar, KAFKA_CLIENTS, "connect-runtime"),
        "aiokafka": partial(of_package, "aiokafka"),
        "franz-go": partial(of_go, FRANZ_GO),
        "sarama": partial(of_go, SARAMA),
        "kafka-go": partial(of_go, KAFKA_GO),
        "rskafka": partial(of_crate, "rskafka", RSKAFKA_SOURCE),
        "kafka-python": of_kafka_python,
        "kafkajs": partial(locked_version, "kafkajs", "kafkajs"),
        "@platformatic/kafka": partial(locked_version, "@platformatic/kafka", "platformatic"),
        "Spark": partial(of_package, "pyspark"),
    }
)
"""How to find each client's installed version.

Spark reads and writes by the project's own source and sink.
"""
FEATURES: Final = MappingProxyType(
    {
        "produce": "records arrive as they were, each once",
        "consume": "partitions that it chose itself",
        "classic group": "a group that its members balance",
        "consumer group": "KIP-848",
        "share group": "KIP-932",
        "streams group": "KIP-1071",
        "transactions": "committed and aborted; what is read is exact",
        "administration": "topics, configurations, groups, the cluster",
        "addresses": "the client learns only addresses of the fleet",
        "leader moves": "a partition's leader moves, and it follows (KIP-951)",
        "takeover": "a member is killed: it goes on, nothing lost, repeated or out of order",
        "takeover at least once": "a member is killed: it goes on, nothing lost; a record may come twice",
        "silence": "a member is frozen or cut off, so that nothing is reset: the same",
        "broker fails": "a broker is killed or restarted: the same",
        "planned move": "a drain, or a rolling restart: no error either",
        "planned move at least once": "a drain: no record refused, nothing lost; a record may come twice",
        "TLS": "to the fleet",
        "client certificate": "which the fleet asks for",
        "SNI": "one port, the server name says which broker",
        "IP addresses": "one port, the IP address says which broker",
        "shared port": "one port, requests say which broker",
        "SASL PLAIN": "between client and broker",
        "SASL SCRAM": "between client and broker",
        "SASL OAUTHBEARER": "between client and broker",
        "delegation token": "made, and used instead of a password",
        "re-authentication": "before a session ends (KIP-368)",
        "ACLs": "what is denied directly is denied through the fleet",
        "Kafka 3.9": "with brokers of that release",
        "Kafka 4.0": "with brokers of that release",
        "client 4.4": "the library of that release, which says whom it expects (KIP-1242)",
    }
)
"""The features that tests can prove, in the order of the page, and their meaning."""


REMARKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "rskafka": (
            "it has no groups, no transactions and no idempotent producer, so a record may come twice when"
            " a member is killed ([settings](clients.md#rskafka))"
        ),
        "@platformatic/kafka": (
            "when the proxy of the coordinator is killed, the group goes on without a pause, or pauses until"
            " `sessionTimeout` (60 s) is over. Both are the library's doing"
            " ([measured](clients.md#platformatickafka))"
        ),
    }
)
"""The limits of a "yes", by client."""


class Proof(NamedTuple):
    client: str
    feature: str
    test: str
    """A file and a function: `tests/…/test_….py::test_…`, for all of its parameters."""


def proofs(client: object, features: Collection[object], test: str) -> Iterator[Proof]:
    """The proofs of one mark. Raises: ValueError: an unknown client or feature."""
    if client not in CLIENTS:
        raise ValueError(f"{test}: there is no client {client!r} in tests/compatibility.py")
    unknown = [each for each in features if each not in FEATURES]
    if unknown or not features:
        raise ValueError(
            f"{test}: {client} proves {unknown or 'nothing'}: see FEATURES in tests/compatibility.py"
        )
    yield from (Proof(str(client), str(feature), test) for feature in features)


# ------------------------------------------------------------------------------------------ declared proofs


def declared(folder: Path = ROOT / "tests") -> set[Proof]:
    """The proofs that the tests below a folder of the project declare.

    Raises: ValueError: something that they say makes no sense.
    """
    found: set[Proof] = set()
    for path in sorted(folder.rglob("test_*.py")):
        text = path.read_text()
        if f"mark.{MARK}" in text:
            found.update(declared_in(text, path.relative_to(ROOT).as_posix()))
    return found


def declared_in(source: str, path: str) -> set[Proof]:
    """The proofs that the tests of a file declare. Raises: ValueError: a mark is invalid."""
    module, found = ast.parse(source), set[Proof]()
    known = 0
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in (mark for decorator in node.decorator_list for mark in _marks(decorator)):
                known += 1
                try:
                    client, *features = map(ast.literal_eval, mark.args)
                except ValueError:
                    raise ValueError(
                        f"{path}:{mark.lineno}: names are written out where they stand"
                    ) from None
                found.update(proofs(client, features, f"{path}::{node.name}"))
    if known != sum(1 for _ in _marks(module)):
        raise ValueError(f"{path}: a mark is right above a test, or at one of its parameters there")
    return found


def _marks(node: ast.AST) -> Iterator[ast.Call]:
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and ast.unparse(each.func) == f"pytest.mark.{MARK}":
            yield each


# -------------------------------------------------------------------------------------------- passed proofs


class Notes:
    """A plugin of pytest that notes which marked tests passed, and with which versions."""

    def __init__(self, path: Path = NOTES_FILE) -> None:
        self._path = path
        self._good: dict[str, bool] = {}
        self._outcomes: dict[Proof, bool] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", f"{MARK}(client, *features): see tests/compatibility.py")

    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            try:
                list(self._proofs(item))
            except ValueError as error:
                raise pytest.UsageError(str(error)) from error

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        report = yield
        good = self._good[item.nodeid] = report.passed and self._good.get(item.nodeid, True)
        if report.when == "teardown":
            for proof in self._proofs(item):
                self._outcomes[proof] = good and self._outcomes.get(proof, True)
        return report

    def pytest_sessionfinish(self) -> None:
        if not self._outcomes:
            return
        good = [proof for proof, passed in self._outcomes.items() if passed]
        installed = versions(proof.client for proof in good)
        self._path.parent.mkdir(exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a test process on another core may write at the same time
            noted = {
                proof: version for proof, version in read(self._path).items() if proof not in self._outcomes
            }
            noted.update({proof: installed[proof.client] for proof in good})
            self._path.write_text(
                json.dumps([[*proof, version] for proof, version in sorted(noted.items())], indent=0)
            )

    @staticmethod
    def _proofs(item: pytest.Item) -> Iterator[Proof]:
        test = item.nodeid.partition("[")[0]
        for mark in item.iter_markers(MARK):
            client, *features = mark.args
            yield from proofs(client, features, test)


def read(path: Path = NOTES_FILE) -> dict[Proof, str]:
    """The noted proofs, and each client's version at that time."""
    rows = json.loads(path.read_text()) if path.exists() else []
    return {Proof(client, feature, test): version for client, feature, test, version in rows}


def versions(clients: Iterator[str] | Collection[str]) -> dict[str, str]:
    """The installed versions of clients."""
    return {client: CLIENTS[client]() for client in set(clients)}


def unproved(
    declared_proofs: Collection[Proof], noted: Mapping[Proof, str], installed: Mapping[str, str]
) -> list[Proof]:
    """The proofs that have not passed, or passed with another version."""
    return sorted(proof for proof in declared_proofs if noted.get(proof) != installed[proof.client])


# ------------------------------------------------------------------------------------------------- the page


def render(declared_proofs: Collection[Proof], installed: Mapping[str, str], brokers: str) -> str:
    """Make the page."""
    clients = [client for client in CLIENTS if any(proof.client == client for proof in declared_proofs)]
    features = [feature for feature in FEATURES if any(proof.feature == feature for proof in declared_proofs)]
    cells = {(proof.client, proof.feature) for proof in declared_proofs}
    lines = [
        "# Compatibility",
        "",
        f"Written by `{COMMAND}` out of tests that have passed; one of the tests fails where",
        f"this page differs from what they declare. Brokers are of Kafka {brokers}, where a row does not say",
        "otherwise. An empty cell says that no test proves it, not that it does not work. Spark reads and",
        "writes by the project's own source and sink ([pipeline.md](pipeline.md)), which are librdkafka.",
        "",
        f"| | | {' | '.join(f'{client} {installed[client]}' for client in clients)} |",
        f"|---|---|{'---|' * len(clients)}",
    ]
    for feature in features:
        marks = ("yes" if (client, feature) in cells else "" for client in clients)
        lines.append(f"| {feature} | {FEATURES[feature]} | {' | '.join(marks)} |")
    remarks = [f"- {client}: {REMARKS[client]}." for client in clients if client in REMARKS]
    lines += ["", "## Remarks", "", *remarks] if remarks else []
    lines += ["", "## By which tests", "", "| client | test | what it proves |", "|---|---|---|"]
    for client in clients:
        by_test: dict[str, set[str]] = {}
        for proof in declared_proofs:
            if proof.client == client:
                by_test.setdefault(proof.test, set()).add(proof.feature)
        for test, found in sorted(by_test.items()):
            path, _, name = test.partition("::")
            what = ", ".join(feature for feature in FEATURES if feature in found)
            lines.append(f"| {client} | [{name}](../{path}) | {what} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The current page."""
    declared_proofs = declared()
    return render(
        declared_proofs,
        versions(proof.client for proof in declared_proofs),
        of_jar(CHECKOUT_LIBS, "kafka-server"),
    )


def main() -> int:
    declared_proofs = declared()
    missing = unproved(declared_proofs, read(), versions(proof.client for proof in declared_proofs))
    for test in sorted({proof.test for proof in missing}):
        print(f"{test} has not passed here", file=sys.stderr)
    if missing:
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
