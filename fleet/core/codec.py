"""JSON documents: a dataclass to bytes and back, checked."""

from __future__ import annotations

from functools import cached_property
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from fleet.core.text import escape_json

T = TypeVar("T")


class Codec(Generic[T]):
    """One kind of document, to and from JSON.

    What does that is made when it is first needed: no process needs all of them, and each takes milliseconds.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        return TypeAdapter(self._kind)

    def encode(self, document: T) -> bytes:
        return escape_json(self._adapter.dump_json(document))

    def decode(self, raw: bytes) -> T:
        """The document; fields that it does not know are left out, for members of another version.

        Raises:
            ValueError: it is no such document.
        """
        return self._adapter.validate_json(raw)

    def schema(self) -> dict[str, object]:
        return self._adapter.json_schema(mode="serialization")
