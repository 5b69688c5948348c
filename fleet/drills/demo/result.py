"""The result of a demo, and the JSON object that its option `--json` prints.

Source: docs/schemas/demo.schema.json
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from fleet.core.model import ProxyId
from fleet.drills.workload.audit import Audit


@dataclass(frozen=True, slots=True)
class Round:
    """One kill and its takeover. Times are milliseconds from the kill; None if a step did not happen.

    Args:
        detected_ms: until the last survivor suspected the killed member.
        advertised_ms: until an outside prober saw a survivor's address for every identity in every
            survivor's Metadata.
        committed_ms: until the last survivor applied the new ownership.
        producer_stall_ms, consumer_stall_ms: the longest interval of any partition without an
            acknowledgement, or without a record.
    """

    killed: ProxyId
    was_leader: bool
    detected_ms: float | None
    advertised_ms: float | None
    committed_ms: float | None
    producer_stall_ms: float
    consumer_stall_ms: float


@dataclass(frozen=True, slots=True)
class Result:
    """A whole demo.

    Args:
        unfinished: steps of takeovers that did not happen in time, in sentences.
    """

    audit: Audit
    rounds: tuple[Round, ...]
    unfinished: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.audit.passed and not self.unfinished

    def to_json(self) -> str:
        """The result as one JSON object on one line."""
        rounds = [
            {
                key: round(value, 1) if isinstance(value, float) else value
                for key, value in asdict(each).items()
            }
            for each in self.rounds
        ]
        return json.dumps({**asdict(self.audit), "rounds": rounds})
