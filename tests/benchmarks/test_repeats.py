"""The benchmark of repeated records examines a log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from benchmarks.plain_producer import HEADER, RECORD_BYTES, ProducerReport
from benchmarks.repeats import SLACK_MS, LogAnalysis, Move, RepeatsResult, examine, longest_ms, main

BEGUN_MS = [10_000, 20_000]
MEASURED = RepeatsResult((1.0, 2.0), 2, 4, 600.0, (), 0, 10, 0, 0, {}, 0)


def test_ordered_log_has_no_repeats() -> None:
    rows = [(0, 0, 0, 1), (1, 0, 0, 2), (0, 0, 1, 3), (0, 1, 0, 4)]
    assert examine(rows, [ProducerReport([2, 1]), ProducerReport([1, 0])], BEGUN_MS) == LogAnalysis(
        4, {}, {}, 0
    )


def test_a_repeated_batch_is_twice_and_not_out_of_order() -> None:
    rows = [(0, 0, each, 12_000) for each in (0, 1, 2, 1, 2, 3)]
    assert examine(rows, [ProducerReport([4])], BEGUN_MS) == LogAnalysis(6, {0: 2}, {}, 0)


def test_a_record_that_first_comes_late_is_out_of_order() -> None:
    rows = [(0, 0, 0, 9_000), (0, 0, 2, 20_001), (0, 0, 1, 20_000), (0, 0, 3, 20_002)]
    assert examine(rows, [ProducerReport([4])], BEGUN_MS) == LogAnalysis(4, {}, {1: 1}, 0)


def test_record_in_flight_counts_for_the_move_that_began_then() -> None:
    produced_ms = BEGUN_MS[1] - SLACK_MS
    rows = [(0, 0, 0, at_ms) for at_ms in (0, produced_ms, produced_ms - 1, 0)]
    assert examine(rows, [ProducerReport([1])], BEGUN_MS).twice == {1: 1, 0: 1, -1: 1}


def test_a_missing_record_is_lost_unless_it_was_given_up() -> None:
    assert examine([(0, 0, 0, 1)], [ProducerReport([3], failed=[(0, 2)])], BEGUN_MS).lost == 1


def test_a_pause_counts_where_it_ends() -> None:
    seen = [
        ProducerReport([1], pauses=[(0, 1.0, 4.0), (0, 5.0, 5.5)]),
        ProducerReport([1], pauses=[(0, 4.0, 5.2)]),
    ]
    assert longest_ms(seen, 0.0, 5.0) == pytest.approx(3000.0)
    assert longest_ms(seen, 5.0, 6.0) == pytest.approx(1200.0)
    assert longest_ms(seen, 6.0, 9.0) == 0.0


def test_moves_that_repeat_are_counted_by_their_kind() -> None:
    moves = (
        Move("drain", 1, 100.0, twice=3),
        Move("return", 2, 200.0),
        Move("drain", 3, 300.0, out_of_order=1),
    )
    measured = replace(MEASURED, moves=moves)
    drains = measured.totals()["drain"]
    assert (drains["moves"], drains["moves_that_repeat"], drains["moves_that_reorder"]) == (2, 1, 1)
    assert drains["stall_ms"] == {"median": 200.0, "worst": 300.0}
    assert measured.document()["totals"] == measured.totals()
    assert not measured.failed
    assert replace(measured, lost=1).failed


def test_help_shows_an_example() -> None:
    said = CliRunner().invoke(main, ["--help"])
    assert said.exit_code == 0
    assert "python -m benchmarks.repeats --drains 20 --json" in said.output


def test_a_record_has_room_for_its_header() -> None:
    assert HEADER.size < RECORD_BYTES
