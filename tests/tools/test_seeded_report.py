"""The document and the page of chaos runs."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.seeded.command import HANDWRITTEN_HEADING, write_report
from tests.chaos.seeded.report import Measures, Noticed, measures, page, summarize
from tests.tools.sample_chaos import chaos_run


def test_report_sums_its_runs() -> None:
    clean = chaos_run(violations=(), noticed={"idempotent": Noticed(10, 0, 0, 0, 0, 0, 0)}, stalls_ms={})
    document = summarize([chaos_run(), clean, chaos_run(takeovers_ms=(20.0,))])
    assert (document.runs, document.violations) == (3, 2)
    assert document.faults == {"kill_all": 3, "kill_member": 6}
    assert document.takeover_ms == Measures(20.0, 30.0, 30.0)
    assert document.stall_ms == {"acks0": Measures(100, 100, 100), "idempotent": Measures(300, 300, 300)}
    assert document.noticed["idempotent"] == Noticed(190, 4, 0, 0, 0, 0, 0)
    assert document.details[1].replay == 'make chaos ARGS="--runs 1 --seed 7"'


def test_unpromised_effects_are_only_noted() -> None:
    document = summarize([chaos_run()])
    assert (document.lost, document.duplicated, document.reordered) == (2, 0, 0)
    assert document.noticed["acks0"] == Noticed(50, 9, 3, 1, 2, 4, 0)
    everything = summarize(
        [chaos_run(exact=frozenset({"acks0"}), durable=frozenset({"acks0", "idempotent"}))]
    )
    assert (everything.lost, everything.duplicated, everything.reordered) == (11, 3, 1)


def test_producers_own_resend_is_noted_and_breaks_no_promise() -> None:
    once = chaos_run(noticed={"idempotent": Noticed(90, 0, 3, 0, 0, 0, 0, sent_again=2)})
    document = summarize([once, once])
    assert document.duplicated == 2
    assert document.noticed["idempotent"] == Noticed(180, 0, 6, 0, 0, 0, 0, sent_again=4)
    assert "| idempotent | 180 | 0 | 6 | 4 | 0 | 0 | 0 | 0 |" in page(document, 7)


def test_percentiles_are_values_that_were_measured() -> None:
    assert measures([]) == Measures(None, None, None)
    assert measures([5.0]) == Measures(5.0, 5.0, 5.0)
    assert measures(range(200, 0, -1)) == Measures(100, 198, 200)
    assert measures([1.0, 2.0, 3.0]) == Measures(2.0, 3.0, 3.0)


def test_page_lists_violations_and_commands() -> None:
    text = page(summarize([chaos_run()]), 7)
    assert "**1 violations**" in text
    assert "| kill member | 2 |" in text
    assert (
        '- 7, lost: idempotent: 2 of 90 acknowledged records are lost (`make chaos ARGS="--runs 1 --seed 7"`)'
        in text
    )
    assert "## Violations" not in page(summarize([chaos_run(violations=())]), 7)


def test_new_report_keeps_handwritten_text(tmp_path: Path) -> None:
    report = tmp_path / "reliability.md"
    write_report(report, summarize([chaos_run()]), 7)
    report.write_text(report.read_text() + f"\n{HANDWRITTEN_HEADING}\n\nA bug.\n")
    write_report(report, summarize([chaos_run()] * 2), 7)
    assert report.read_text().startswith("# Reliability\n")
    assert "2 runs, seeds 7 to 8" in report.read_text()
    assert report.read_text().endswith(f"\n\n{HANDWRITTEN_HEADING}\n\nA bug.\n")
