"""The page of tested clients and features, and the marks of tests that it is made from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import compatibility
from tests.compatibility import COMMAND, PAGE, Notes, Proof, declared_in, read, render, unproved

PATH = "tests/unit/test_some.py"
KCAT_VERSION = re.compile(r"kcat [\d.]+")
"""kcat's version depends on the machine; all other versions are pinned."""
SOURCE = """
@pytest.mark.parametrize("one", [1, pytest.param(2, marks=pytest.mark.proves("Java", "TLS"))])
@pytest.mark.proves("aiokafka", "produce", "SNI")
async def test_some(one): ...
"""


def test_page_matches_the_marks_of_tests() -> None:
    found, expected = (KCAT_VERSION.sub("kcat", text) for text in (PAGE.read_text(), compatibility.page()))
    assert found == expected, f"run the tests that are new, and {COMMAND}"


def test_marks_are_read_with_their_places() -> None:
    test = f"{PATH}::test_some"
    assert declared_in(SOURCE, PATH) == {
        Proof("Java", "TLS", test),
        Proof("aiokafka", "produce", test),
        Proof("aiokafka", "SNI", test),
    }


@pytest.mark.parametrize(
    "source",
    [
        SOURCE.replace("aiokafka", "aiokafak"),
        SOURCE.replace("produce", "prodcue"),
        SOURCE.replace(', "produce", "SNI"', ""),
        SOURCE.replace('"SNI"', "SNI"),
        'MARKS = [pytest.mark.proves("Java", "TLS")]',
    ],
)
def test_unreadable_mark_is_rejected(source: str) -> None:
    with pytest.raises(ValueError, match=r"tests/compatibility\.py|where they stand|right above a test"):
        declared_in(source, PATH)


def test_page_lists_proofs_and_tests() -> None:
    text = render({Proof("Java", "TLS", f"{PATH}::test_some")}, {"Java": "9.9"}, "8.8")
    assert "| | | Java 9.9 |" in text
    assert "| TLS | to the fleet | yes |" in text
    assert f"| Java | [test_some](../{PATH}) | TLS |" in text
    assert "Kafka 8.8" in text
    assert "aiokafka" not in text


MARKED = """
import pathlib, pytest

@pytest.mark.proves("aiokafka", "TLS")
@pytest.mark.parametrize("one", [1, 2])
def test_it(one):
    assert one < int(pathlib.Path(__file__).with_name("limit").read_text())

@pytest.mark.proves("aiokafka", "SNI")
def test_that():
    pytest.skip("not here")
"""


def test_passed_tests_are_recorded_and_failed_ones_removed(tmp_path: Path) -> None:
    noted = tmp_path / "noted.json"
    (tmp_path / "test_some.py").write_text(MARKED)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    proof = Proof("aiokafka", "TLS", "test_some.py::test_it")
    here = {"aiokafka": compatibility.CLIENTS["aiokafka"]()}
    for limit, expected in ((3, {proof: here["aiokafka"]}), (2, {}), (3, {proof: here["aiokafka"]})):
        (tmp_path / "limit").write_text(str(limit))
        apart = ("-c", str(tmp_path / "pytest.ini"), "--import-mode=importlib", "-p", "no:cacheprovider")
        pytest.main([str(tmp_path), "-q", *apart], plugins=[Notes(noted)])
        assert read(noted) == expected
    assert unproved([proof], read(noted), here) == []
    assert unproved([proof], read(noted), {"aiokafka": "another"}) == [proof]
