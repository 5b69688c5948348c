"""A sample report with content in each part."""

from __future__ import annotations

from fleet.pipeline.documents import (
    AnomaliesDocument,
    AttainmentDocument,
    AuditDocument,
    AvailabilityDocument,
    ClientAuditDocument,
    FlappingDocument,
    HotBrokerDocument,
    IntervalDocument,
    OneSidedDocument,
    OutageDocument,
    ReportDocument,
    StaleClientDocument,
    StallDocument,
    TakeoverAuditDocument,
    TakeoverDocument,
)

HOUR_MS = 3_600_000
BEGIN_MS = 1_795_219_200_000
"""A midnight in UTC."""
END_MS = BEGIN_MS + 48 * HOUR_MS


def sample() -> ReportDocument:
    """Return a report of two brokers, two days and one takeover; the second day is below the objective."""
    taken_ms = BEGIN_MS + 30 * HOUR_MS
    taken = (
        TakeoverDocument(
            "demo", 1, 7, ("p2",), taken_ms - 90, taken_ms, taken_ms + 150, taken_ms + 200, taken_ms + 480
        ),
        TakeoverDocument("demo", 2, 7, ("p3",), None, taken_ms, taken_ms + 60_000, taken_ms + 210, None),
    )
    attained = (
        AttainmentDocument("demo", None, "2026-11-21", 48 * HOUR_MS, 0, 1.0, 17_280, 17_280),
        AttainmentDocument("demo", None, "2026-11-22", 48 * HOUR_MS, 60_150, 0.999652, 17_280, -42_870),
    )
    out = (
        OutageDocument("demo", 1, BEGIN_MS + HOUR_MS, BEGIN_MS + HOUR_MS + 2_500, 40),
        OutageDocument("demo", 2, END_MS - 10, None, 1),
    )
    availability = AvailabilityDocument(BEGIN_MS, END_MS, 0.9999, taken, out, attained, ())
    anomalies = AnomaliesDocument(
        BEGIN_MS,
        END_MS,
        (FlappingDocument("demo", "p1", "p2", BEGIN_MS, BEGIN_MS + 9_000, 4),),
        (OneSidedDocument("demo", "p3", "p1", BEGIN_MS, BEGIN_MS + 20_000),),
        (StaleClientDocument("demo", "192.0.2.9", "<b>&", 1, "p1", BEGIN_MS, END_MS, 12),),
    )
    intervals = (
        IntervalDocument("demo", 1, 1, ("p1",), "bootstrap", BEGIN_MS - HOUR_MS, taken_ms),
        IntervalDocument("demo", 1, 7, ("p2",), "takeover", taken_ms, None),
        IntervalDocument("demo", 2, 1, ("p1",), "bootstrap", BEGIN_MS - HOUR_MS, taken_ms),
        IntervalDocument("demo", 2, 7, ("p3",), "takeover", taken_ms, None),
    )
    hot = (
        HotBrokerDocument("demo", 2, 900, 7_000, 75.0, 0.75, (BEGIN_MS, BEGIN_MS + HOUR_MS), (1.0, 2.0)),
        HotBrokerDocument("demo", 1, 300, 900, 25.0, 0.25, (BEGIN_MS,), (3.0,)),
    )
    audit = AuditDocument(
        BEGIN_MS,
        END_MS,
        (
            ClientAuditDocument("orders", 1_000, 1_000, 7, 0, 0, 0),
            ClientAuditDocument("<i>prices", 500, 499, 0, 1, 2, 3),
        ),
        (
            TakeoverAuditDocument(None, None, (), None, 0, 1, 0),
            TakeoverAuditDocument("demo", 7, (1, 2), taken_ms, 1, 1, 3),
        ),
        (
            StallDocument("orders", "acknowledged", 3, taken_ms, 640),
            StallDocument("orders", "received", 3, taken_ms + 50, 610),
        ),
    )
    return ReportDocument(availability, anomalies, intervals, hot, audit)
