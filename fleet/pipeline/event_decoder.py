"""Events as columns, in the process that reads Kafka: those that have all their fields.

msgspec decodes such an event in about a microsecond, Spark's `from_json` in seven; and what goes on to Spark
are a few numbers, not text. Only records about which there is no doubt are decoded here. All others are left
to `fleet.pipeline.parse`, which has the say about what an event is: the same comes out, later. Fields that
the class does not have are not looked at, whatever is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, get_type_hints

import msgspec
import pyarrow as pa

from fleet.pipeline.spark_schema import plain_of

TOLD: Final = "told"
"""The column: a struct, null where the record is left to others. Its `value` is null where it is not."""
_ARROW: Final = {int: pa.int64(), str: pa.string(), bool: pa.bool_(), float: pa.float64()}
_NO_EVENT: Final = (msgspec.MsgspecError, UnicodeDecodeError, TypeError, RecursionError)
"""Of what is no JSON, no such event, no text, no bytes, or nested a thousand times."""


class EventDecoder:
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
        self._decode: Callable[[Any], Any] = msgspec.json.Decoder(row).decode
        self._cells = attrgetter(*names)
        self._columns = [pa.field(name, _ARROW[plain[name]]) for name in names]
        self.type = pa.struct(self._columns)

    def __call__(self, values: Sequence[bytes | None]) -> tuple[pa.StructArray, list[bytes | None]]:
        """Returns: the events, and the values that are left."""
        rows, left = self._rows(values)
        cells = zip(*map(self._cells, rows), strict=True) if rows else ((),) * len(self._columns)
        try:
            columns = [pa.array(each, field.type) for each, field in zip(cells, self._columns, strict=True)]
        except OverflowError:  # a number of more than 64 bits
            return pa.array([], self.type), list(values)
        return pa.StructArray.from_arrays(columns, fields=self._columns), left

    def _rows(self, values: Sequence[bytes | None]) -> tuple[list[Any], list[bytes | None]]:
        try:
            return list(map(self._decode, values)), []
        except _NO_EVENT:
            rows, left = [], []
        for value in values:
            try:
                rows.append(self._decode(value))
            except _NO_EVENT:
                left.append(value)
        return rows, left
