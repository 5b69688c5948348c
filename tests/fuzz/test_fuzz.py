"""The wire core under a fuzzer for a short time; `make test-long` runs ten million inputs."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from fleet.proxy.addresses import AddressBook
from fleet.proxy.rewriter import Rewriter
from fleet.proxy.wire import _tables
from fleet.proxy.wire.addresses import Address
from fleet.proxy.wire.primitives import classic_string, compact_string
from fleet.proxy.wire.requests import RESPONSE_LAYOUTS
from tests.fuzz import target
from tests.fuzz.corpus import read_corpus, write_minimal_corpus
from tests.fuzz.run import Result, branches, corpora, fuzz
from tests.fuzz.seeds import REAL_ENDPOINTS, read_finds, seeds
from tests.fuzz.target import BROKER, CLIENT, FRAMED, MESSAGES

SEED = 1
INPUT_COUNT = 25_000
MIN_BRANCH_PERCENT = 95.0
"""Share of the branches. The seeds alone reach 75 %, with the corpus of ten million inputs 96 %."""
WITH_ADDRESSES = {MESSAGES[api >> 16].name for api in target.WITH_ADDRESSES}


def failures(corpus: list[bytes]) -> dict[str, set[str]]:
    """Map the type of each exception to the APIs whose responses raised it, for requests of one API."""
    found: dict[str, set[str]] = {}
    for data in corpus:
        if data[0] != BROKER | FRAMED:
            continue
        (number,) = struct.unpack_from(">H", data, 2)
        try:
            target.check(data)
        except Exception as error:
            found.setdefault(type(error).__name__, set()).add(MESSAGES[target.decode_api(number) >> 16].name)
    return found


@pytest.fixture(scope="module")
def corpus() -> list[bytes]:
    return list(seeds(SEED))


def test_seeds_are_of_every_key_and_version_both_ways(corpus: list[bytes]) -> None:
    asked = {struct.unpack_from(">HH", data, 6) for data in corpus if data[0] == CLIENT}
    answers = [data for data in corpus if data[0] == BROKER | FRAMED]
    answered = {target.decode_api(*struct.unpack_from(">H", data, 2)) for data in answers}
    assert asked >= {(api >> 16, api & 0xFFFF) for api in RESPONSE_LAYOUTS}
    assert answered >= RESPONSE_LAYOUTS.keys()


def test_seeds_former_finds_and_what_is_kept_pass(corpus: list[bytes]) -> None:
    for data in (*corpus, *read_finds(), *read_corpus()):
        target.check(data)


def test_a_leak_would_be_found(corpus: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def real(_: AddressBook, broker_id: int, __: bytes) -> Address:
        host, port = REAL_ENDPOINTS[broker_id].host, struct.pack(">i", REAL_ENDPOINTS[broker_id].port)
        return Address(compact_string(host) + port, classic_string(host) + port, b"", b"")

    monkeypatch.setattr(AddressBook, "lookup", real)
    monkeypatch.setattr(_tables, "carries_address", lambda _: False)
    monkeypatch.setattr(_tables, "NO_ADDRESS", compact_string(REAL_ENDPOINTS[1].host) + bytes(2))
    monkeypatch.setattr(target, "INPUTS_PER_DECODE", 1)
    assert failures(corpus) == {"AssertionError": WITH_ADDRESSES}


def test_fuzz_finds_a_dependence_on_cuts(corpus: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    real = Rewriter.continue_response
    monkeypatch.setattr(
        Rewriter, "continue_response", lambda *args: (args[-1](b"!") and real(*args)) or real(*args)
    )
    assert failures(corpus)["AssertionError"] >= {"Metadata", "Fetch", "Produce"}


def test_fuzz_finds_an_unexpected_exception(corpus: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr(Rewriter, "_count_rewritten", fail)
    assert failures(corpus)["KeyError"] >= WITH_ADDRESSES - {"DescribeConfigs"}


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="atheris does not support this Python yet")
@pytest.mark.timeout(3600)
def test_guided_by_coverage_nothing_is_found(tmp_path: Path) -> None:
    progress: list[str] = []
    result: Result = fuzz(INPUT_COUNT, 2, SEED, tmp_path, progress.append)
    assert result.finds == [], progress
    assert result.inputs >= INPUT_COUNT
    assert result.corpus > 0
    assert result.features > 2_000
    assert result.branches["percent"] >= MIN_BRANCH_PERCENT, result.branches
    assert write_minimal_corpus(corpora(tmp_path, 2), tmp_path / "kept.zip") > 1_000
    fewest = tmp_path / "fewest"
    fewest.mkdir()
    for number, data in enumerate(read_corpus(tmp_path / "kept.zip")):
        (fewest / str(number)).write_bytes(data)
    assert branches([fewest])["percent"] >= MIN_BRANCH_PERCENT
