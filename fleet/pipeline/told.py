"""Events as columns, in the process that reads Kafka: those that have all their fields.

msgspec decodes such an event in about a microsecond, Spark's `from_json` in seven; and what goes on to Spark
are a few numbers, not text. Only records about which there is no doubt are decoded here. All others are left
to `fleet.pipeline.parse`, which has the say about what an event is: the same comes out, later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, get_type_hints

import msgspec
import pyarrow as pa

from fleet.pipeline.ddl import plain_of

TOLD: Final = "told"
"""The column: a struct, null where the record is left to others. Its `value` is null where it is not."""
_ARROW: Final = {int: pa.int64(), str: pa.string(), bool: pa.bool_(), float: pa.float64()}


class Decoder:
    """Of the events of one class.

    Args:
        event: a dataclass with plain fields alone. What lacks one, or is of another `kind` or `version`, is
            left to others.
    Raises: TypeError: it has other fields.
    """

    def __init__(self, event: type[Any]) -> None:
        plain, hints = plain_of(event), get_type_hints(event)
        names = tuple(each.name for each in fields(event))
        # No field has a default here, so that one that is missing is no field of an event.
        row = msgspec.defstruct(event.__name__, [(name, hints[name]) for name in names], gc=False)
        self._decode = msgspec.json.Decoder(row).decode
        self._cells = attrgetter(*names)
        self._columns = [pa.field(name, _ARROW[plain[name]]) for name in names]
        self._nothing = (None,) * len(names)
        self.type = pa.struct(self._columns)

    def __call__(self, values: Sequence[bytes | None]) -> tuple[Sequence[bytes | None], pa.StructArray]:
        """Returns: for each value itself, or None where it was decoded; and the column."""
        rows: list[tuple[Any, ...] | None] = [self._row(value) for value in values]
        cells = zip(*(self._nothing if row is None else row for row in rows), strict=True)
        try:
            columns = [pa.array(each, field.type) for each, field in zip(cells, self._columns, strict=True)]
        except OverflowError:  # a number of more than 64 bits
            return values, pa.nulls(len(values), self.type)
        left = [value if row is None else None for value, row in zip(values, rows, strict=True)]
        missing = pa.array([row is None for row in rows], pa.bool_())
        return left, pa.StructArray.from_arrays(columns, fields=self._columns, mask=missing)

    def _row(self, value: bytes | None) -> tuple[Any, ...] | None:
        if value is None:
            return None
        try:
            return self._cells(self._decode(value))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
