"""JSON documents: a dataclass to bytes and back, with validation."""

from __future__ import annotations

from functools import cached_property
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from fleet.core.text import escape_json

T = TypeVar("T")


class Codec(Generic[T]):
    """Encodes and decodes one kind of document.

    The validator is created at its first use: no process needs all kinds, and each takes milliseconds.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        return TypeAdapter(self._kind)

    def encode(self, document: T) -> bytes:
        return escape_json(self._adapter.dump_json(document))

    def decode(self, raw: bytes) -> T:
        """Decode a document. Unknown fields, which other versions may send, are ignored.

        Raises:
            ValueError: the bytes are not a document of this kind.
        """
        return self._adapter.validate_json(raw)

    def schema(self) -> dict[str, object]:
        return self._adapter.json_schema(mode="serialization")
