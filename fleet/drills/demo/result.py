"""What a demo has measured, and the JSON object that its option `--json` prints.

Source: docs/schemas/demo.schema.json
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from fleet.core.model import ProxyId
from fleet.drills.workload.audit import Audit


@dataclass(frozen=True, slots=True)
class Round:
    """One kill, and what came of it; milliseconds from the kill, None where it never came about.

    Args:
        detected_ms: the last survivor to do so suspected the killed member.
        advertised_ms: an outside prober had seen the address of a survivor for every identity in every
            survivor's Metadata.
        committed_ms: the last survivor had applied the new ownership.
        producer_stall_ms, consumer_stall_ms: the longest interval without an acknowledgement, or a record, on
            any one partition.
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
        unfinished: what did not happen in time, in sentences.
    """

    audit: Audit
    rounds: tuple[Round, ...]
    unfinished: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.audit.passed and not self.unfinished

    def to_json(self) -> str:
        """The one object, on one line."""
        rounds = [
            {
                key: round(value, 1) if isinstance(value, float) else value
                for key, value in asdict(each).items()
            }
            for each in self.rounds
        ]
        return json.dumps({**asdict(self.audit), "rounds": rounds})
