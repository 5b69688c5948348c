from __future__ import annotations

from fleet.core.log_limit import LogLimit


def test_equal_keys_are_due_once_per_interval() -> None:
    limit = LogLimit(10.0)
    assert [limit.is_due(now_s, "one") for now_s in (0.0, 9.9, 10.0, 19.9, 20.0)] == [
        *(True, False, True, False, True),
    ]
    assert limit.is_due(20.0, "another")


def test_flood_of_keys_is_limited_but_not_for_ever() -> None:
    limit = LogLimit(10.0, max_keys=3)
    assert [limit.is_due(0.1 * number, str(number)) for number in range(5)] == [True] * 3 + [False] * 2
    assert not limit.is_due(1.0, "0")
    assert limit.is_due(10.0, "5"), "the first line is long ago"
    assert not limit.is_due(10.0, "6")
